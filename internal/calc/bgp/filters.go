// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// filters says what is let through to and from the peers of out: the rules of all BGPFilters that
// the peer's object names, one after the other. One that is not there has no rules.
func (x *sessions) filters(out *nodestate.BGP) {
	for _, f := range x.c.BGPFilters {
		for _, rules := range [][]model.BGPRule{f.Export4, f.Import4, f.Export6, f.Import6} {
			out.Priorities = out.Priorities || slices.ContainsFunc(rules, func(r model.BGPRule) bool { return r.Priority != 0 || r.SetPriority != 0 })
		}
	}
	at := map[string]int{} // by what the rules depend on
	for _, p := range out.Peers {
		by := x.by[p.Addr]
		if by == nil || len(by.Filters) == 0 {
			continue
		}
		own := out.ASN
		if p.LocalASN != 0 {
			own = p.LocalASN
		}
		f := nodestate.BGPFilter{}
		kind := "iBGP"
		if own != p.ASN {
			kind, f.FrontASN = "eBGP", own
		}
		key := fmt.Sprint(strings.Join(by.Filters, "\n"), p.Addr.Is4(), f.FrontASN)
		if i, there := at[key]; there {
			out.Filters[i].Peers = append(out.Filters[i].Peers, p.Addr)
			continue
		}
		for _, name := range by.Filters {
			b := x.c.BGPFilters[name]
			switch {
			case b == nil:
				out.MissingFilters = append(out.MissingFilters, fmt.Sprintf("%s of BGPPeer %s", name, by.Name))
			case p.Addr.Is4():
				f.Export, f.Import = append(f.Export, ofKind(b.Export4, kind)...), append(f.Import, ofKind(b.Import4, kind)...)
			default:
				f.Export, f.Import = append(f.Export, ofKind(b.Export6, kind)...), append(f.Import, ofKind(b.Import6, kind)...)
			}
		}
		f.Peers = append(f.Peers, p.Addr)
		at[key] = len(out.Filters)
		out.Filters = append(out.Filters, f)
	}
	slices.Sort(out.MissingFilters)
	out.MissingFilters = slices.Compact(out.MissingFilters)
}

// ofKind are the rules for peers of a kind, eBGP or iBGP.
func ofKind(rules []model.BGPRule, kind string) []model.BGPRule {
	return slices.DeleteFunc(slices.Clone(rules), func(r model.BGPRule) bool { return r.PeerType != "" && r.PeerType != kind })
}
