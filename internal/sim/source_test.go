// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// TestSourcesOfTheStack: what the stack sends to a pod came in where its source may. Only here does
// a pod's node lie behind an interface that is no uplink.
func TestSourcesOfTheStack(t *testing.T) {
	const uplink, host, tunnel, bridge, vpn = 2, 3, 4, 6, 7
	near, far := netip.MustParseAddr("172.31.1.2"), netip.MustParseAddr("172.31.2.2")
	s := handmade()
	s.Addrs[podB] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 11}
	s.Addrs[netip.MustParseAddr("10.0.9.9")] = nodestate.Addr{Kind: nodestate.AddrPod, Node: far}
	s.Routes[netip.MustParsePrefix("10.0.0.0/16")] = nodestate.Route{Pool: true}
	s.Routes[netip.MustParsePrefix("10.0.1.0/24")] = nodestate.Route{Pool: true, Node: near}
	s.Routes[netip.MustParsePrefix("10.0.2.0/24")] = nodestate.Route{Pool: true, Node: far}
	n := New(s, Options{HostIfIndex: host, TunnelIfIndex: tunnel, Uplinks: map[int]packet.MAC{uplink: {}},
		FIB: func(dst netip.Addr) (Hop, bool) {
			if dst == far {
				return Hop{IfIndex: vpn}, true
			}
			return Hop{IfIndex: uplink}, true
		}})
	enters := func(src string, entered int, taken bool) {
		t.Helper()
		p := packet.MustParse("udp " + src + ":1 > 10.0.0.2:2")
		r := n.Receive(In{Hook: ToWorkload, IfIndex: 11, Packet: p, Entered: entered})
		if taken != (r.Action == Pass) || !taken && r.Reason != reason.Spoofed {
			t.Errorf("%s by if%d: %s", src, entered, r)
		}
	}
	for _, src := range []string{"10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.9.9", "10.0.77.1", "172.31.1.1", "9.9.9.9"} {
		for _, in := range []int{0, uplink, host, tunnel} {
			enters(src, in, true)
		}
	}
	// The flows that are open now keep nobody else's packets.
	enters("10.0.0.1", 10, true)
	for _, src := range []string{"10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.9.9", "10.0.0.77", "10.0.77.1"} {
		enters(src, bridge, false)
	}
	enters("10.0.1.1", vpn, false)
	enters("10.0.2.1", vpn, true)
	enters("10.0.9.9", vpn, true)
	enters("172.31.1.1", bridge, true)
	enters("9.9.9.9", bridge, true)
}
