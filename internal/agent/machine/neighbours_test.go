// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

// Two nodes on one link, and an address that nobody has.
const (
	nodeOne, nodeOne6 = "172.31.1.8", "fd00:172:31:1::8"
	nodeTwo, nodeTwo6 = "172.31.1.9", "fd00:172:31:1::9"
	silent, silent6   = "172.31.1.55", "fd00:172:31:1::55"
)

// TestHostileLinkAddressAndNeighbours holds a published link address against what ARP and neighbour
// discovery of a real kernel found: n1 reads, n2 has the addresses.
func TestHostileLinkAddressAndNeighbours(t *testing.T) {
	nettest.NeedRoot(t, "making network namespaces")
	hostile.Record(t, "a node publishes a link address that ARP and neighbour discovery contradict", hostile.Node, hostile.ControlPlane, hostile.Both)
	n1, n2 := nettest.New(t, "node n1"), nettest.New(t, "node n2")
	mac, forged, ofPod := net.HardwareAddr{2, 0, 0, 0, 0, 9}, [6]byte{2, 6, 6, 6, 6, 6}, net.HardwareAddr{2, 7, 7, 7, 7, 7}
	up := func(name string, addrs ...string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			if addr.IP.To4() == nil {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(l, addr); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(l)
	}
	n1.Do(t, "a link between the nodes", func() error {
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 8}},
			PeerName: "eth0", PeerNamespace: netlink.NsFd(n2.FD), PeerHardwareAddr: mac})
		if err != nil {
			return err
		}
		return up("eth0", nodeOne+"/24", nodeOne6+"/64")
	})
	n2.Do(t, "its other end", func() error { return up("eth0", nodeTwo+"/24", nodeTwo6+"/64") })
	n1.Do(t, "a pod that has entries of the other node's addresses", func() error {
		pod := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cali0"}, PeerName: "pod0"}
		if err := netlink.LinkAdd(pod); err != nil {
			return err
		}
		if err := netlink.LinkSetAlias(pod, "weir:default/pod/0"); err != nil {
			return err
		}
		if err := up("cali0"); err != nil {
			return err
		}
		for _, a := range []string{nodeTwo, nodeTwo6, silent} {
			entry := &netlink.Neigh{LinkIndex: pod.Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(a), HardwareAddr: ofPod}
			if err := netlink.NeighSet(entry); err != nil {
				return err
			}
		}
		return nil
	})
	nodes := map[string]*model.Node{"n1": {Name: "n1", Addrs: ips(nodeOne, nodeOne6)},
		"n2":    {Name: "n2", Addrs: ips(nodeTwo, nodeTwo6), LinkAddress: forged},
		"quiet": {Name: "quiet", Addrs: ips(silent, silent6)}} // whom nobody answers for
	l := &Watcher{log: slog.New(slog.DiscardHandler)}
	found := map[netip.Addr][6]byte{}
	await.That(t, "the other node's link address", func() (err error) {
		n1.Do(t, "a look at the neighbours", func() error {
			for _, a := range []string{nodeTwo, nodeTwo6, silent, silent6} {
				c, err := net.Dial("udp", net.JoinHostPort(a, "9"))
				if err != nil {
					return err
				}
				_, _ = c.Write([]byte("x")) // refused, or nobody is there: it is the kernel that has to ask
				if err := c.Close(); err != nil {
					return err
				}
			}
			if _, err := l.read(); err != nil {
				return err
			}
			found = l.LinkAddresses(nodes, nil)
			return nil
		})
		for a, at := range found {
			if net.HardwareAddr(at[:]).String() != mac.String() {
				t.Fatalf("%s is found at %x", a, at)
			}
		}
		if len(found) != 2 {
			return fmt.Errorf("found %v", found)
		}
		return nil
	})
	for _, a := range ips(nodeTwo, nodeTwo6) {
		n := *nodes["n2"]
		n.Addrs = []netip.Addr{a}
		k := calc.New()
		k.Update(&model.Cluster{Nodes: map[string]*model.Node{"n1": nodes["n1"], "n2": &n},
			Local: model.Local{Node: "n1", Subnets: prefixes("172.31.1.0/24", "fd00:172:31:1::/64"), Neighbours: found}}, model.AllDirty())
		if !slices.ContainsFunc(k.Refused(), func(r calc.Refusal) bool { return r.Node == "n2" && r.Field == "status.linkAddress" }) {
			t.Errorf("by %s: the forged link address counts: %+v", a, k.Refused())
		}
	}
}

func ips(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}
