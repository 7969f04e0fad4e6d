package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/kernel"
)

// Remove takes away what drivers left in the kernel: tables, routes to other nodes, routing rules, and entries by which neighbours are answered. Devices, and routes of weir0, stay,
// which another data plane uses.
func Remove(ctx context.Context) error {
	if err := conntrack.Release(); err != nil { // by it programs let pass what the tables judge: it goes first
		return err
	}
	if err := deleteTables(); err != nil {
		return err
	}
	host, err := findDevice(hostDevice)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := kernel.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(f, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return fmt.Errorf("listing routes: %w", err)
		}
		for _, r := range found {
			if host != nil && r.LinkIndex == host.index {
				continue
			}
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, routeError(kernel.RoutePrefix(r.Dst, f), "removing", err))
			}
		}
	}
	return errors.Join(append(errs, removePolicyRoutes(), removeProxied(), ctx.Err())...)
}

// deleteTables empties the base chains and deletes the tables once no packet is inside of them. A packet that is inside of a chain while a
// transaction takes effect goes on by the rules of before, and finds the elements of after: with the table's maps gone, and their elements, it would be
// dropped where a rule asks who sent it.
func deleteTables() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("opening nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if kernel.LacksNFTables(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing tables: %w", err)
	}
	tables = slices.DeleteFunc(tables, func(t *nftables.Table) bool {
		return t.Name != tableName || t.Family != nftables.TableFamilyIPv4 && t.Family != nftables.TableFamilyIPv6 && t.Family != nftables.TableFamilyNetdev && t.Family != nftables.TableFamilyARP
	})
	if len(tables) == 0 {
		return nil
	}
	chains, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("listing chains: %w", err)
	}
	for _, c := range chains {
		// Without its layout a table that stays, emptied, counts as none.
		if (c.Hooknum != nil || c.Name == layoutChain) && slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == c.Table.Name && t.Family == c.Table.Family }) {
			conn.FlushChain(c)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("emptying chains: %w", err)
	}
	conntrack.AwaitPackets()
	for _, t := range tables {
		conn.DelTable(t)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("deleting tables: %w", err)
	}
	return nil
}

// There reports whether a driver's table of a family is in the kernel.
func There() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("opening nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if kernel.LacksNFTables(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listing tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool {
		return t.Name == tableName && (t.Family == nftables.TableFamilyIPv4 || t.Family == nftables.TableFamilyIPv6)
	}), nil
}
