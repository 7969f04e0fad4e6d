// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
)

// two pods of IPv6, of which fd00::2 admits TCP to port 80 only.
func handmade6() *nodestate.State {
	s := nodestate.New()
	own := netip.MustParseAddr("fd01::1")
	s.Settings = nodestate.Settings{Node6: own, IPv6: true, Timeouts: handmade().Settings.Timeouts, Tunnel: handmade().Settings.Tunnel}
	s.Settings.Timeouts.Fragment = s.Settings.Timeouts.UDP
	s.Addrs[own] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true}
	s.Addrs[netip.MustParseAddr("fd00::1")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 10}
	s.Addrs[netip.MustParseAddr("fd00::2")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 11, Ingress: nodestate.Isolation{Set: 5, Rule: 50}}
	s.Policy.Set(nodestate.PolicyKey{Set: 5, Head: true}, nodestate.PolicyValue{Rule: 51, Lens: 1 << 16, Protos: 1})
	s.Policy.Set(nodestate.PolicyKey{Set: 5, Proto: 6, Port: 80, Len: 16}, nodestate.PolicyValue{Rule: 52, Allow: true})
	return s
}

// Whatever is between the headers of a packet, what is behind it is evaluated, or it is
// dropped.
func TestExtensionHeadersHideNothing(t *testing.T) {
	const (
		dest = " ext=60:0x010400000000"
		from = "[fd00::1]:1 > [fd00::2]:"
	)
	for _, c := range []struct{ packet, want string }{
		{"tcp " + from + "80 S", "local if11 rule=52"},
		{"tcp " + from + "22 S", "drop POLICY_INGRESS rule=51"},
		{"tcp " + from + "80 S ext=0:0x050200000000 ext=43:0x020000000000 ext=44 ipid=3" + dest, "local if11 rule=52"},
		{"tcp " + from + "22 S ext=0:0x050200000000 ext=43:0x020000000000 ext=44 ipid=3" + dest, "drop POLICY_INGRESS rule=51"},
		{"tcp " + from + "80 S" + strings.Repeat(dest, 6), "local if11 rule=52"},
		{"tcp " + from + "80 S" + strings.Repeat(dest, 7), "drop MALFORMED"},
		{"tcp " + from + "80 S ext=60:0x" + strings.Repeat("00", 454), "local if11 rule=52"},
		{"tcp " + from + "80 S ext=60:0x" + strings.Repeat("00", 462), "drop MALFORMED"},
		{"tcp " + from + "80 S ext=43:0x000000000000", "drop MALFORMED"}, // type 0
		{"tcp " + from + "80 S ext=43:0x040100000000", "drop MALFORMED"}, // a segment left
		{"ip fd00::1 > fd00::2 proto=44 ext=44 data=0x0600000000000000", "drop MALFORMED"},
		{"ip fd00::1 > fd00::2 proto=60 data=0x0601010400000000", "drop MALFORMED"}, // cut
		{"ip fd00::1 > fd00::2 proto=51 data=0x0604000000000000", "drop POLICY_INGRESS rule=51"},
		{"ip fd00::1 > fd00::2 proto=50 data=0x0604000000000000", "drop POLICY_INGRESS rule=51"},
		{"ip fd00::1 > fd00::2 proto=253 data=0x00", "drop POLICY_INGRESS rule=51"},
		{"ip fd00::1 > fd00::2 proto=6 data=0x00010050", "drop MALFORMED"},
		// Fragments: the first has the whole chain, or nothing goes on.
		{"ip fd00::1 > fd00::2 proto=60 ipid=1 ext=44 frag=0+ data=0x0601010400000000", "drop FRAGMENT_BAD"},
		{"ip fd00::1 > fd00::2 proto=6 ipid=1 frag=0+ data=0x0001005000000000", "drop FRAGMENT_BAD"},
		{"ip fd00::1 > fd00::2 proto=6 ipid=1 ext=44" + dest + " frag=0+ data=0x000100500000000000000000500200000000000000000000", "local if11 rule=52"},
		{"ip fd00::1 > fd00::2 proto=6 ipid=2 ext=44" + dest + " frag=0+ data=0x000100160000000000000000500200000000000000000000", "drop POLICY_INGRESS rule=51"},
		{"ip fd00::1 > fd00::2 proto=60 ipid=1 frag=24 data=0x00010016", "drop FRAGMENT_BAD"}, // overlaps
		{"ip fd00::1 > fd00::2 proto=17 ipid=1 frag=32 data=0x00010016", "local if11 rule=52"},
		{"ip fd00::1 > fd00::2 proto=6 ipid=2 frag=32 data=0x00010016", "keep"},
		// Of neighbour discovery, what cannot leave the link.
		{"ip fd00::1 > fe80::1 proto=58 ttl=255 data=0x8800000000000000", "pass"},
		{"ip :: > ff02::1:ff00:1 proto=58 ttl=255 data=0x8700000000000000", "pass"},
		{"ip fd00::1 > ff02::1:ff00:1 proto=58 ttl=254 data=0x8700000000000000", "drop NO_ROUTE"},
		{"ip fe80::1 > ff02::1 proto=58 ttl=255 data=0x8600000000000000", "drop NO_ROUTE"},
		{"ip fd00::1 > fd00::2 proto=58 ttl=255 data=0x8700000000000000", "drop POLICY_INGRESS rule=51"},
		{"ip fd00::1 > fe80::1 proto=58 ttl=255 ipid=1 ext=44 frag=0+ data=0x8800000000000000", "drop NO_ROUTE"},
		// An error that nobody asked for.
		{"icmp fd00::1 > fd00::2 error type=1 code=4 [udp [fd00::2]:9 > [fd00::1]:9]", "drop ERROR_NO_FLOW"},
		{"icmp fd00::1 > fd00::2 error type=1 code=4 [udp [fd00::2]:9 > [fd00::1]:9 ext=43:0x000000000000]", "drop MALFORMED"},
	} {
		n := New(handmade6(), Options{})
		if strings.Contains(c.packet, "frag=24") || strings.Contains(c.packet, "frag=32") { // after its first
			n.Receive(In{Hook: FromWorkload, IfIndex: 10, Packet: packet.MustParse(
				"ip fd00::1 > fd00::2 proto=6 ipid=1 ext=44" + dest + " frag=0+ data=0x000100500000000000000000500200000000000000000000")})
		}
		if got := n.Receive(In{Hook: FromWorkload, IfIndex: 10, Packet: packet.MustParse(c.packet)}).String(); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.packet, got, c.want)
		}
	}
}

// What belongs to a link alone goes to no pod from outside: the kernel would forward it, one hop
// less.
func TestNothingOfALinkGoesToAPod(t *testing.T) {
	for _, hook := range []Hook{FromUplink, FromTunnel} {
		for text, want := range map[string]string{
			"ip fd00::99 > fd00::2 proto=58 ttl=255 data=0x8700000000000000": "drop NO_ROUTE",
			"ip fd00::99 > fd00::2 proto=58 ttl=255 data=0x8800000000000000": "drop NO_ROUTE",
			"ip fd00::99 > fd00::2 proto=58 ttl=255 data=0x8900000000000000": "drop NO_ROUTE", // a redirect
			"ip fd00::99 > fd00::2 proto=58 ttl=254 data=0x8700000000000000": "drop POLICY_INGRESS rule=51",
			"ip fe80::99 > fd00::2 proto=58 ttl=255 data=0x8700000000000000": "drop NO_ROUTE",
			"udp [fe80::99]:1 > [fd00::2]:80":                                "drop NO_ROUTE",
			"ip fe80::99 > fe80::1 proto=58 ttl=255 data=0x8700000000000000": "pass",
			"ip fe80::99 > ff02::1 proto=58 ttl=255 data=0x8700000000000000": "pass",
		} {
			s := handmade6()
			node := netip.MustParseAddr("fd00::ffff")
			s.Addrs[node] = nodestate.Addr{Kind: nodestate.AddrNode, Node: node}
			in := In{Hook: hook, IfIndex: 1, Source: node, VNI: s.Settings.Tunnel.VNI, Packet: packet.MustParse(text)}
			if got := New(s, Options{}).Receive(in).String(); got != want {
				t.Errorf("%s: %s\n got %s\nwant %s", hook, text, got, want)
			}
		}
	}
}
