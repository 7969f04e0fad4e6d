// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"

	"github.com/weir-net/weir/internal/nodestate"
)

// allOwnASN is a number of occurrences of the node's own AS number in a path that no path exceeds.
const allOwnASN = 255

// loop says which paths are loops: with the node's own AS number more often than is allowed (RFC
// 4271, section 9.1.2).
type loop struct {
	own     uint32
	allowed uint8
}

// loopsOf are those of the sessions, each with the peers of which it holds; nil = of all.
func loopsOf(want *nodestate.BGP) map[loop][]netip.Addr {
	out := map[loop][]netip.Addr{}
	for _, p := range want.Peers {
		l := loop{own: cmp.Or(p.LocalASN, want.ASN), allowed: p.AllowedAS}
		out[l] = append(out[l], p.Addr)
	}
	if len(out) == 1 {
		for l := range out {
			out[l] = nil
		}
	}
	return out
}

// loops adds that paths are rejected that are loops. GoBGP, which can do that by itself, passes
// over such a path, and goes on with the one before that the peer has taken back by sending this
// one; what is rejected here takes its place.
func (p *policies) loops(of map[loop][]netip.Addr) {
	for _, l := range slices.SortedFunc(maps.Keys(of), func(a, b loop) int { return cmp.Or(cmp.Compare(a.own, b.own), cmp.Compare(a.allowed, b.allowed)) }) {
		c := &api.Conditions{AsPathSet: p.set(&api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_AS_PATH,
			List: []string{fmt.Sprintf(`(\b%d\b.*){%d}`, l.own, int(l.allowed)+1)}})}
		if of[l] != nil {
			c.NeighborSet = p.peers(of[l])
		}
		p.add("loop", c, &api.Actions{RouteAction: reject})
	}
}
