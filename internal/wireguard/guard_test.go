// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// encryptsHosts is a device of a family whose nodes encrypt what they exchange.
func encryptsHosts(six bool) *nodestate.WireGuard {
	own := netip.MustParseAddr("192.0.2.1")
	if six {
		own = netip.MustParseAddr("2001:db8::1")
	}
	return &nodestate.WireGuard{Interface: "wg", Port: 51820, RulePriority: 99,
		Hosts: nodestate.WireGuardHosts{Own: own, Clear: []uint16{22, 6443}, SNATFirst: 20000, SNATLast: 29999}}
}

// TestHostRules: the rules are in their order, also after somebody removed one, and go again; the
// tunnel's comes before them.
func TestHostRules(t *testing.T) {
	nettest.NeedRoot(t, "routing rules in a network namespace")
	ns := nettest.New(t, "rules")
	for _, six := range []bool{false, true} {
		w := encryptsHosts(six)
		want := hostRules(six, w)
		if last := want[len(want)-1]; last.Table != kernel.NodeRouteTable || !last.Invert || last.Sport.Start != 51820 || len(want) != 6 {
			t.Fatalf("%d rules, the last is %+v", len(want), last)
		}
		ensure := func() (all []netlink.Rule) {
			ns.Do(t, "rules", func() error {
				made, err := ensureRule(six, 99, 4789)
				nettest.Must(t, err)
				nettest.Must(t, ensureHostRules(six, want, made))
				all, err = netlink.RuleList(familyNumber(six))
				return err
			})
			return all
		}
		for range 2 {
			all := ensure()
			if len(all) < 2+len(want) || all[1].Table != RouteTable {
				t.Fatalf("IPv6 %t: %v", six, all)
			}
			for i := range want {
				if !sameRule(all[2+i], want[i]) {
					t.Errorf("IPv6 %t: rule %d is %+v, want %+v", six, i, all[2+i], want[i])
				}
			}
			ns.Do(t, "removing the tunnel's rule", func() error { return netlink.RuleDel(&all[1]) })
		}
		ns.Do(t, "removing the rules", func() error {
			nettest.Must(t, ensureHostRules(six, nil, false))
			all, err := netlink.RuleList(familyNumber(six))
			for _, r := range all {
				if r.Protocol == protocol {
					t.Errorf("IPv6 %t: %+v is left", six, r)
				}
			}
			return err
		})
	}
}

// What WireGuard carries is taken from nodes alone: a node that bears an address of somebody else's
// could have its peers follow it elsewhere. The rules are the kernel's to read.
func TestHostileGuardTakesOuterPacketsOfNodesAlone(t *testing.T) {
	hostile.Record(t, "a node bears an address of a machine outside, and has what is sent there follow it elsewhere", hostile.Node, hostile.ControlPlane, hostile.Both)
	nettest.NeedRoot(t, "nftables in a network namespace")
	ns := nettest.New(t, "guard")
	for i, six := range []bool{false, true} {
		w := encryptsHosts(six)
		g := guard{port: 4789}
		g.interfaces[i], g.nodes[i] = "wg", []netip.Addr{w.Hosts.Own.Next()}
		g.hosts[i] = hostGuard{own: w.Hosts.Own, outer: w.Port, clear: w.Hosts.Clear}
		ns.Do(t, "the guard", g.write)
		ip := map[bool]string{false: "ip", true: "ip6"}[six]
		want := "udp dport 51820 " + ip + " daddr " + w.Hosts.Own.String() + " " + ip + " saddr != @" + ip + "-nodes counter drop"
		if text := g.rules(); !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
		other := g
		other.hosts[i].clear = []uint16{unix.IPPROTO_TCP}
		if g.equal(&other) {
			t.Error("guards that let other ports pass are taken for the same")
		}
	}
}
