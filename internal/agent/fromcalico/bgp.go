// SPDX-License-Identifier: Apache-2.0

package fromcalico

import (
	"slices"

	"github.com/weir-net/weir/internal/nodestate"
)

// Sessions are those of a node beside others with Calico. Of two nodes with Calico the one begins
// whose address is behind the other's as text, with Weir as a number. So that one of the two begins
// whatever they have, a node waits for the other only where both rules say so.
func (n *Node) Sessions(s *nodestate.BGP) *nodestate.BGP {
	if n == nil || s == nil {
		return s
	}
	out := *s
	out.Peers = slices.Clone(s.Peers)
	for i := range out.Peers {
		p := &out.Peers[i]
		p.Passive = p.Passive && p.Source.String() < p.Addr.String()
	}
	return &out
}
