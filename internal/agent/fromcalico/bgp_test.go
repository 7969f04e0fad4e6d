// SPDX-License-Identifier: Apache-2.0

package fromcalico

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
)

// TestSessions: of a node with Weir and one with BIRD, which goes by addresses as text, one begins.
func TestSessions(t *testing.T) {
	var n Node
	for _, a := range []string{"192.0.2.9", "192.0.2.10", "192.0.2.11", "192.0.2.100"} {
		for _, b := range []string{"192.0.2.9", "192.0.2.10", "192.0.2.11", "192.0.2.100"} {
			if a == b {
				continue
			}
			own, other := netip.MustParseAddr(a), netip.MustParseAddr(b)
			s := &nodestate.BGP{Peers: []nodestate.BGPPeer{{Addr: other, Source: own, Passive: own.Less(other)}}}
			passive := n.Sessions(s).Peers[0].Passive
			if bird := a > b; passive && bird {
				t.Errorf("%s with Weir and %s with BIRD wait for each other", a, b)
			}
			if passive != (own.Less(other) && a < b) {
				t.Errorf("%s to %s: passive %v", a, b, passive)
			}
			if s.Peers[0].Passive != own.Less(other) {
				t.Error("what was given is changed")
			}
		}
	}
	if n.Sessions(nil) != nil || (*Node)(nil).Sessions(&nodestate.BGP{ASN: 1}).ASN != 1 {
		t.Error("a node without sessions, and one of its own")
	}
}
