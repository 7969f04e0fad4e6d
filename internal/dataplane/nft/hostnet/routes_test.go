// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestRoutesInTheirPlace: where routes of another length take the place of one, and where one that
// was taken over from somebody else is replaced, the new ones are there before the old one goes.
func TestRoutesInTheirPlace(t *testing.T) {
	nettest.Run(t, func(string) error {
		for _, line := range []string{
			"ip link add eth0 type veth peer name far0", "ip link set eth0 up", "ip link set far0 up", "ip addr add 192.0.2.1/24 dev eth0",
			"ip route add 10.65.1.0/26 via 192.0.2.9 dev eth0 proto 87", "ip route add 10.65.2.0/26 via 192.0.2.9 dev eth0 proto 87",
		} {
			if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", line, err, out)
			}
		}
		seen, done := make(chan netlink.RouteUpdate, 100), make(chan struct{})
		defer close(done)
		if err := netlink.RouteSubscribe(seen, done); err != nil {
			return err
		}
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		via := route{link: l.Attrs().Index, via: netip.MustParseAddr("192.0.2.10")}
		var r routes
		if err := errors.Join(r.ensure(map[netip.Prefix]route{netip.MustParsePrefix("10.65.1.7/32"): via, netip.MustParsePrefix("10.65.2.0/26"): via}, slog.New(slog.DiscardHandler))...); err != nil {
			return err
		}
		var got []string
		for len(got) < 3 {
			u := <-seen
			got = append(got, fmt.Sprintf("%s %s", map[uint16]string{unix.RTM_NEWROUTE: "new", unix.RTM_DELROUTE: "gone"}[u.Type], u.Dst))
		}
		if slices.Sort(got[:2]); !slices.Equal(got, []string{"new 10.65.1.7/32", "new 10.65.2.0/26", "gone 10.65.1.0/26"}) {
			t.Errorf("%q", got)
		}
		return nil
	})
}

// TestLearnedRoutes: routes to pods of other nodes are before what BGP told the kernel (metric 512)
// on one link, and behind it where learned routes count, which may change at any time: then one of
// the two is always there, and no other stays.
func TestLearnedRoutes(t *testing.T) {
	nettest.Run(t, func(string) error {
		for _, line := range []string{
			"ip link add eth0 type veth peer name far0", "ip link set eth0 up", "ip link set far0 up",
			"ip addr add 192.0.2.1/24 dev eth0", "ip -6 addr add 2001:db8::1/64 dev eth0 nodad",
			"ip route add default via 192.0.2.254", "ip -6 route add default via 2001:db8::254",
			// As versions before left it.
			"ip -6 route add fd00:65::/122 via 2001:db8::254 dev eth0 proto 87",
			"ip route add 10.65.1.0/26 via 192.0.2.9 dev eth0 proto 88 metric 512", "ip -6 route add fd00:65::/122 via 2001:db8::9 dev eth0 proto 88 metric 512",
		} {
			if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", line, err, out)
			}
		}
		m := &Network{log: slog.New(slog.DiscardHandler), host: &device{index: 1 << 20}}
		for _, step := range []struct {
			learned  bool
			via, ask string // whose route it is
			metrics  [2]string
		}{
			{true, "192.0.2.9 2001:db8::9", "learned", [2]string{"metric 2048", "metric 2048"}},
			{false, "192.0.2.254 2001:db8::254", "the node's", [2]string{"", "metric 256"}},
			{true, "192.0.2.9 2001:db8::9", "learned again", [2]string{"metric 2048", "metric 2048"}},
		} {
			s := nodestate.New()
			s.Settings.Node, s.Settings.Node6, s.Settings.IPv6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), true
			s.Routes[netip.MustParsePrefix("10.65.1.0/26")] = nodestate.Route{Pool: true, Learned: step.learned, Node: netip.MustParseAddr("198.51.100.7")}
			s.Routes[netip.MustParsePrefix("fd00:65::/122")] = nodestate.Route{Pool: true, Learned: step.learned, Node: netip.MustParseAddr("2001:db8:9::7")}
			want, errs := m.wantedRoutes(s, func(table.Family) bool { return true }, true)
			if err := errors.Join(append(errs, m.routes.ensure(want, m.log)...)...); err != nil {
				return fmt.Errorf("%s: %w", step.ask, err)
			}
			for i, show := range []string{"ip route show 10.65.1.0/26 proto 87", "ip -6 route show fd00:65::/122 proto 87"} {
				out, err := exec.Command("sh", "-c", show).CombinedOutput()
				if lines := strings.Count(string(out), "\n"); err != nil || lines != 1 || !strings.Contains(string(out), step.metrics[i]) {
					return fmt.Errorf("%s: there is %q (%v), want one route with %q", step.ask, out, err, step.metrics[i])
				}
			}
			for i, get := range []string{"ip route get 10.65.1.5", "ip -6 route get fd00:65::5"} {
				out, err := exec.Command("sh", "-c", get).CombinedOutput()
				if via := strings.Fields(step.via)[i]; err != nil || !strings.Contains(string(out), "via "+via+" ") {
					return fmt.Errorf("%s: %s says %q (%v), want it by %s", step.ask, get, out, err, via)
				}
			}
		}
		return nil
	})
}
