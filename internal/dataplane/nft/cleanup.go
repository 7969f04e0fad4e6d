package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
)

// Remove takes away what drivers left in the kernel: tables, routes to other nodes, routing rules, and entries by which neighbours are answered. Devices, and routes of weir0, stay,
// which another data plane uses.
func Remove(ctx context.Context) error {
	if err := conntrack.Release(); err != nil { // by it programs let pass what the tables judge: it goes first
		return err
	}
	if err := table.DeleteTables(); err != nil {
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
