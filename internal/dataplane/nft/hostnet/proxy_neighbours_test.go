// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestProxied: announced addresses have entries on the uplinks in whose subnets they lie and a
// route to weir0; what an agent before left goes, somebody else's stays, and so does everything
// while nothing changes.
func TestProxied(t *testing.T) {
	nettest.Run(t, proxyAndRemove)
}

func proxyAndRemove(dir string) error {
	for _, line := range []string{
		"ip link add eth0 type veth peer name far0", "ip link add eth1 type veth peer name far1", "ip link add eth2 type veth peer name far2",
		"ip addr add 192.0.2.1/24 dev eth0", "ip addr add 198.51.100.1/24 dev eth1", "ip addr add 192.0.2.2/24 dev eth2",
		"ip -6 addr add 2001:db8::1/64 dev eth0 nodad", "ip link set eth0 up", "ip link set eth1 up",
		"ip neigh add proxy 192.0.2.200 dev eth0", "ip neigh add proxy 192.0.2.40 dev eth0",
	} {
		if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	s := nodestate.New()
	s.Settings.DataIfaces, s.Settings.IPv6 = "^eth", true
	s.Settings.PoolRoutes = map[netip.Prefix]int{netip.MustParsePrefix("192.0.2.64/28"): 1400, netip.MustParsePrefix("192.0.0.0/8"): 1300}
	for _, a := range []string{"192.0.2.40", "192.0.2.65", "192.0.2.50", "192.0.2.1", "198.51.100.9", "203.0.113.1", "2001:db8::9", "192.0.2.60"} {
		s.Announced[netip.MustParseAddr(a)] = true
	}
	s.Addrs[netip.MustParseAddr("192.0.2.1")] = nodestate.Addr{Kind: nodestate.AddrHost}
	s.Addrs[netip.MustParseAddr("192.0.2.60")] = nodestate.Addr{Kind: nodestate.AddrEndpoint}
	apply := func(m *Network) error {
		links, err := uplinks(s)
		errs := []error{err}
		for _, f := range table.Families {
			errs = append(errs, m.answer(s, f, links)...)
		}
		return errors.Join(errs...)
	}
	fresh := func() *Network {
		return &Network{answers: map[table.Family]int{}, stateDir: dir, host: &device{index: 7}}
	}
	m := fresh()
	if err := errors.Join(apply(m), apply(m)); err != nil {
		return err
	}
	// 192.0.2.40 is somebody else's already, 192.0.2.1 the node's own, eth2 is down, and
	// 203.0.113.1 on no link.
	if err := proxiedAre("eth0 192.0.2.200 eth0 192.0.2.40 eth0 192.0.2.50 eth0 192.0.2.60 eth0 192.0.2.65 eth0 2001:db8::9 eth1 198.51.100.9"); err != nil {
		return err
	}
	links, err := uplinks(s)
	if err != nil {
		return err
	}
	routes := map[netip.Prefix]route{}
	m.announcedRoutes(s, table.Family{}, links, routes)
	var led []string
	for p, r := range routes {
		led = append(led, fmt.Sprintf("%s by %d mtu %d", p, r.link, r.mtu))
	}
	slices.Sort(led)
	if got := strings.Join(led, ", "); got != "192.0.2.40/32 by 7 mtu 1300, 192.0.2.50/32 by 7 mtu 1300, 198.51.100.9/32 by 7 mtu 0" {
		return fmt.Errorf("routes to weir0: %s", got)
	}
	// Another agent, which announces less.
	s.Announced = map[netip.Addr]bool{netip.MustParseAddr("192.0.2.50"): true}
	if err := errors.Join(apply(fresh()), proxiedAre("eth0 192.0.2.200 eth0 192.0.2.40 eth0 192.0.2.50")); err != nil {
		return err
	}
	if err := errors.Join(is(0, arpDelay.of("eth0")), is(1, proxyNDP.of("all"))); err != nil {
		return err
	}
	if err := errors.Join(Remove(), proxiedAre("eth0 192.0.2.200 eth0 192.0.2.40"), RestoreSettings(dir)); err != nil {
		return err
	}
	if err := errors.Join(is(80, arpDelay.of("eth0")), is(0, proxyNDP.of("all"))); err != nil { // the kernel's own, in hundredths of a second
		return err
	}
	// The last one goes, and nothing is left to look for.
	m = fresh()
	s.Announced = nil
	if err := errors.Join(apply(m), proxiedAre("eth0 192.0.2.200 eth0 192.0.2.40")); err != nil {
		return err
	}
	if n, looked := m.answers[table.Family{}]; n != 0 || !looked {
		return errors.New("a driver that announces nothing goes on looking for its entries")
	}
	return nil
}

// proxiedAre compares all entries in the kernel, sorted.
func proxiedAre(want string) error {
	var got []string
	for _, f := range table.Families {
		have, err := listProxied(f)
		if err != nil {
			return err
		}
		for p := range maps.Keys(have) {
			l, err := netlink.LinkByIndex(p.link)
			if err != nil {
				return err
			}
			got = append(got, l.Attrs().Name+" "+p.addr.String())
		}
	}
	slices.Sort(got)
	if text := strings.Join(got, " "); text != want {
		return fmt.Errorf("entries are %s, want %s", text, want)
	}
	return nil
}

func is(want int, path []string) error {
	got, err := kernel.Sysctl(path...)
	if err == nil && got != want {
		err = fmt.Errorf("%v is %d, want %d", path, got, want)
	}
	return err
}
