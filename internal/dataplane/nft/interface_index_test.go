// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestUplinkByIndex: on a real kernel the interface with the node's address is known by its index,
// as long as it may be; when the address moves to another one, or to one that has to be asked
// about, the rules follow.
func TestUplinkByIndex(t *testing.T) {
	nettest.Run(t, func(string) error {
		index := map[string]int{}
		for name, peer := range map[string]string{"eth0": "eth1", "cali1": "far1"} {
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer}); err != nil {
				return err
			}
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			index[name] = l.Attrs().Index
		}
		d, err := New(Options{Logger: slog.New(slog.DiscardHandler), NoMachine: true})
		if err != nil {
			return err
		}
		s := small()
		pod := s.Addrs[addr("10.244.1.2")]
		pod.IfIndex = index["cali1"]
		s.Addrs[addr("10.244.1.2")] = pod
		if err := moveAddress("", "far1", "192.0.2.1"); err != nil { // another one that packets leave by
			return err
		}
		was := ""
		for _, at := range []string{"eth0", "eth1", "lo", "cali1", ""} {
			if err := moveAddress(was, at, "172.30.0.8"); err != nil {
				return err
			}
			was = at
			d.tables[table.Family{}].refreshed = time.Time{} // it is long ago
			if err := d.Apply(context.Background(), s, nodestate.All()); err != nil {
				return err
			}
			from, err := listed("from-network")
			if err != nil {
				return err
			}
			to, err := listed(chains.ForwardedOpen)
			if err != nil {
				return err
			}
			for _, name := range []string{"eth0", "eth1", "lo", "cali1"} {
				want := name == at && strings.HasPrefix(at, "eth")
				if got := strings.Contains(from, fmt.Sprintf(`iif %q`, name)); got != want {
					t.Errorf("address at %q: packets from %s go on unasked: %t\n%s", at, name, got, from)
				}
				if got := strings.Contains(to, fmt.Sprintf(`oif %q accept`, name)); got != want {
					t.Errorf("address at %q: open flows to %s go on first: %t\n%s", at, name, got, to)
				}
			}
			if !strings.Contains(to, `oif { "cali1", "far1" } accept`) && !strings.Contains(to, `oif { "far1", "cali1" } accept`) {
				t.Errorf("address at %q: open flows to the pod and to another interface do not go on:\n%s", at, to)
			}
		}
		return nil
	})
}

// moveAddress takes an address from one interface to another; "" is none.
func moveAddress(from, to, a string) error {
	of := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(a).To4(), Mask: net.CIDRMask(24, 32)}}
	if from != "" {
		l, err := netlink.LinkByName(from)
		if err != nil {
			return err
		}
		if err := netlink.AddrDel(l, of); err != nil {
			return err
		}
	}
	if to == "" {
		return nil
	}
	l, err := netlink.LinkByName(to)
	if err != nil {
		return err
	}
	return netlink.AddrAdd(l, of)
}

func listed(chain string) (string, error) {
	out, err := exec.Command("nft", "list", "chain", "ip", "weir", chain).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return string(out), nil
}

// TestSenders: each address of the node leads to the chain that asks by which interface it comes; a
// name that is none of nft's is known by its index alone; and more pods than one rule names are
// matched by their names.
func TestSenders(t *testing.T) {
	s := small()
	s.Addrs[addr("10.244.1.4")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali*", IfIndex: 7}
	s.Addrs[addr("10.244.1.5")] = nodestate.Addr{Kind: nodestate.AddrEndpoint}
	table := chains.Render(s, false)
	odd := chains.SenderChain("cali*")
	for a, chain := range map[string]string{"172.30.0.8": chains.OwnSourceChain, "10.244.1.2": "from-pod-cali1", "10.244.1.4": odd, "10.244.1.5": chains.OwnSourceChain} {
		if got := table.Elements[expr.MapSenders][a]; got != "goto "+chain {
			t.Errorf("what comes from %s meets %q, want %s", a, got, chain)
		}
	}
	for chain, want := range map[string]string{"from-pod-cali1": `iifname "cali1" meta l4proto tcp accept; iifname "cali1" goto pod-tunnels; goto own-source`,
		odd: "iif 7 meta l4proto tcp accept; iif 7 goto pod-tunnels; goto own-source"} {
		if got := strings.Join(table.Chains[chain].Rules, "; "); got != want {
			t.Errorf("%s: %s, want %s", chain, got, want)
		}
	}
	if strings.ContainsAny(odd, "*") {
		t.Errorf("chain %s is no name of nft's", odd)
	}
	if got := table.Chains[chains.ForwardedOpen].Rules; len(got) != 2 || got[0] != "oif { 7 } accept" {
		t.Errorf("open flows go on by %q", got)
	}
	for i := range chains.MaxIndexes {
		s.Addrs[addr(fmt.Sprintf("10.245.%d.%d", i/250, 1+i%250))] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: fmt.Sprint("cali", 10+i), IfIndex: 100 + i}
	}
	if _, there := chains.Render(s, false).Chains[chains.ForwardedOpen]; there {
		t.Error("a rule names more pods than it may")
	}
}

// TestPodIsFew: a pod that comes is few operations, among however many.
func TestPodIsFew(t *testing.T) {
	s := small()
	for i := range 200 {
		s.Addrs[addr(fmt.Sprintf("10.245.0.%d", 1+i))] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: fmt.Sprint("cali", 10+i), IfIndex: 100 + i}
	}
	d, _ := fakeDriver(t)
	apply(t, d, s)
	more := *s
	more.Addrs = maps.Clone(s.Addrs)
	more.Addrs[addr("10.245.1.1")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali1000", IfIndex: 1000}
	before := d.Status().Writes
	apply(t, d, &more)
	if n := d.Status().Writes - before; n > 24 {
		t.Errorf("a pod that comes is %d operations", n)
	}
}
