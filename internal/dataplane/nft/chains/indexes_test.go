// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// TestIndexes: which interfaces are known by which index; none where a name of one is a number,
// which nft would take for that name.
func TestIndexes(t *testing.T) {
	addr := netip.MustParseAddr
	s := nodestate.New()
	s.Settings.InterfacePrefix = "cali"
	s.Addrs[addr("10.244.1.4")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali7", IfIndex: 7}
	addressed := map[int]bool{1: false, 2: true, 3: false, 7: false, 9: false}
	var links []netlink.Link
	for name, index := range map[string]int{"eth0": 2, "eth1": 3, hostnet.TunnelDevice: 4, hostnet.HostDevice: 5, hostnet.HostPeer: 6, "cali7": 7, "eth2": 8, "br0": 9} {
		links = append(links, &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}})
	}
	links = append(links, &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1, Flags: net.FlagLoopback}})
	at := indexesOf(s, links, addressed)
	if want := (Indexes{uplink: 2, tunnel: 4, host: 5, others: "3, 9, "}); at != want {
		t.Errorf("%+v, want %+v", at, want)
	}
	for f, want := range map[table.Family]string{{}: "{ 3, 9, 7 }", {Six: true}: "{ 3, 9 }"} {
		if got := onwardInterfaces(f, s, at); got != want {
			t.Errorf("%v: open flows go on by %q, want %q", f, got, want)
		}
	}
	for _, name := range []string{"100", "0x64", "007"} {
		at := indexesOf(s, append(links, &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name, Index: 10}}), addressed)
		if want := (Indexes{named: true}); at != want {
			t.Errorf("an interface %s: %+v, want %+v", name, at, want)
		}
		if got := onwardInterfaces((table.Family{}), s, at); got != "" {
			t.Errorf("an interface %s: open flows go on by %q", name, got)
		}
		rendered := table.New(table.Family{}.NFT())
		addSender(table.Family{}, rendered, addr("10.244.1.4"), s.Addrs[addr("10.244.1.4")], at)
		if got := strings.Join(rendered.Chains["from-pod-cali7"].Rules, "; "); got != `iifname "cali7" meta l4proto tcp accept; iifname "cali7" goto pod-tunnels; goto own-source` {
			t.Errorf("an interface %s: who sends is matched by %s", name, got)
		}
	}
}
