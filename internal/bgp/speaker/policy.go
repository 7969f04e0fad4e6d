// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Names of GoBGP's policies.
const (
	policyExport = "weir-export"
	policyImport = "weir-import"
)

// mark is a large community, with the number of a rule at the end, that a route has between two
// statements of that rule and nowhere else. AS 4294967295 is nobody's (RFC 7300).
const mark = "4294967295:4294967295:"

// policies are GoBGP's statements, and the sets that they name.
type policies struct {
	sets       []*api.DefinedSet
	statements []*api.Statement
	marked     bool
	rules      int
}

var (
	accept = api.RouteAction_ROUTE_ACTION_ACCEPT
	reject = api.RouteAction_ROUTE_ACTION_REJECT
)

// set adds one, and returns a condition that what it is about is in it.
func (p *policies) set(of *api.DefinedSet) *api.MatchSet {
	of.Name = fmt.Sprintf("weir-set-%d", len(p.sets))
	p.sets = append(p.sets, of)
	return &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: of.Name}
}

// unsaid is the local preference of a route that has none.
const unsaid = 100

// preference is the local preference of a priority.
func preference(priority uint32) *api.LocalPrefAction {
	return &api.LocalPrefAction{Value: model.MaxBGPPriority - priority}
}

func (p *policies) peers(list []netip.Addr) *api.MatchSet {
	s := &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR}
	for _, a := range list {
		s.List = append(s.List, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return p.set(s)
}

func (p *policies) prefixes(list []netip.Prefix, low, high func(netip.Prefix) uint8) *api.MatchSet {
	s := &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX}
	for _, one := range list {
		s.Prefixes = append(s.Prefixes, &api.Prefix{IpPrefix: one.String(), MaskLengthMin: uint32(low(one)), MaskLengthMax: uint32(high(one))})
	}
	return p.set(s)
}

func (p *policies) add(name string, c *api.Conditions, a *api.Actions) {
	p.statements = append(p.statements, &api.Statement{Name: fmt.Sprintf("weir-%d-%s", len(p.statements), name), Conditions: c, Actions: a})
}

// newPolicies returns those of a node: which paths are loops, which priorities and next hops routes
// have, what the filters of a peer say, then that the sessions hand on the node's own paths, and of
// others those within some prefixes: what a router outside has told one node is no concern of the
// others.
func newPolicies(want *nodestate.BGP) (all *policies, export, imports []*api.Statement) {
	p := &policies{}
	p.loops(loopsOf(want))
	if want.Priorities {
		p.add("priority", &api.Conditions{LocalPrefEq: &api.LocalPrefEq{Value: unsaid}}, &api.Actions{LocalPref: preference(model.DefaultBGPPriority)})
	}
	for _, f := range want.Filters {
		p.filter(f, f.Import, 0)
	}
	imports, p.statements = p.unmarked(), nil
	for i := range imports {
		imports[i].Name = "import-" + imports[i].Name
	}
	own := &api.LocalPrefAction{Value: unsaid}
	if want.Priorities {
		own = preference(model.DefaultBGPPriority)
	}
	p.add("priority", &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}, &api.Actions{LocalPref: own})
	for _, of := range []struct {
		peers  []netip.Addr
		action *api.NexthopAction
	}{{want.Self, &api.NexthopAction{Self: true}}, {want.Unchanged, &api.NexthopAction{Unchanged: true}}} {
		if len(of.peers) > 0 {
			p.add("next-hop", &api.Conditions{NeighborSet: p.peers(of.peers)}, &api.Actions{Nexthop: of.action})
		}
	}
	for _, f := range want.Filters {
		p.filter(f, f.Export, f.FrontASN)
	}
	p.add("own", &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}, &api.Actions{RouteAction: accept})
	p.within("pass", want.Pass, nil)
	var inner []netip.Addr
	for _, peer := range want.Peers {
		if own := cmp.Or(peer.LocalASN, want.ASN); own == peer.ASN {
			inner = append(inner, peer.Addr)
		}
	}
	if len(inner) > 0 && len(want.Reflect) > 0 {
		p.within("reflect", want.Reflect, p.peers(inner))
	}
	return p, p.unmarked(), imports
}

// within adds that what is within prefixes is accepted, to some peers; nil = to all.
func (p *policies) within(name string, list []netip.Prefix, to *api.MatchSet) {
	for _, four := range []bool{true, false} {
		of := slices.DeleteFunc(slices.Clone(list), func(one netip.Prefix) bool { return one.Addr().Is4() != four })
		if len(of) == 0 {
			continue
		}
		in := p.prefixes(of, func(one netip.Prefix) uint8 { return uint8(one.Bits()) }, func(one netip.Prefix) uint8 { return uint8(one.Addr().BitLen()) })
		p.add(name, &api.Conditions{PrefixSet: in, NeighborSet: to}, &api.Actions{RouteAction: accept})
	}
}

// unmarked returns the statements, before which marks are taken away that somebody else made.
func (p *policies) unmarked() []*api.Statement {
	out := p.statements
	if p.marked {
		clear := &api.Statement{Name: "weir-unmark", Actions: &api.Actions{LargeCommunity: &api.CommunityAction{Type: api.CommunityAction_TYPE_REMOVE, Communities: []string{"^" + mark}}}}
		out = append([]*api.Statement{clear}, out...)
	}
	p.marked = false
	return out
}

// filter adds statements for rules of a filter; front is the AS number that is in front of every
// path already, 0 = none.
func (p *policies) filter(f nodestate.BGPFilter, rules []model.BGPRule, front uint32) {
	if len(rules) == 0 {
		return
	}
	to := p.peers(f.Peers)
	for _, r := range rules {
		p.rule(r, to, front)
	}
}

// rule adds the statements of one. A route whose path gets different AS numbers passes several: the
// first one marks it, since what its conditions are about is changed by them.
func (p *policies) rule(r model.BGPRule, to *api.MatchSet, front uint32) {
	p.rules++
	base := func() *api.Conditions { return &api.Conditions{NeighborSet: to} }
	first := base()
	if r.CIDR.IsValid() {
		first.PrefixSet = p.prefixes([]netip.Prefix{r.CIDR}, func(netip.Prefix) uint8 { return r.MinBits }, func(netip.Prefix) uint8 { return r.MaxBits })
		if r.Not {
			first.PrefixSet.Type = api.MatchSet_TYPE_INVERT
		}
	}
	if r.Community != "" {
		s := p.set(&api.DefinedSet{DefinedType: communityType(r.Community), List: []string{"^" + r.Community + "$"}})
		if s.Type = api.MatchSet_TYPE_ANY; isLarge(r.Community) {
			first.LargeCommunitySet = s
		} else {
			first.CommunitySet = s
		}
	}
	if len(r.ASPath) > 0 {
		path := r.ASPath
		if front != 0 {
			path = append([]uint32{front}, path...)
		}
		words := strings.Trim(fmt.Sprint(path), "[]")
		first.AsPathSet = p.set(&api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_AS_PATH, List: []string{"^" + words + "( .*)?$"}})
	}
	if r.Priority != 0 {
		first.LocalPrefEq = &api.LocalPrefEq{Value: preference(r.Priority).Value}
	}
	conditions := []*api.Conditions{first}
	if r.Remote { // either of those that are not the node's own
		first.RouteType = api.Conditions_ROUTE_TYPE_INTERNAL
		second := base()
		second.PrefixSet, second.CommunitySet, second.LargeCommunitySet, second.AsPathSet = first.PrefixSet, first.CommunitySet, first.LargeCommunitySet, first.AsPathSet
		second.LocalPrefEq = first.LocalPrefEq
		second.RouteType = api.Conditions_ROUTE_TYPE_EXTERNAL
		conditions = append(conditions, second)
	}
	actions := &api.Actions{RouteAction: reject}
	if r.Accept {
		actions.RouteAction = accept
	}
	for _, c := range r.Add {
		into := &actions.Community
		if isLarge(c) {
			into = &actions.LargeCommunity
		}
		if *into == nil {
			*into = &api.CommunityAction{Type: api.CommunityAction_TYPE_ADD}
		}
		(*into).Communities = append((*into).Communities, c)
	}
	if r.SetPriority != 0 {
		actions.LocalPref = preference(r.SetPriority)
	}
	steps := prepends(r.Prepend, front)
	name := fmt.Sprintf("rule-%d", p.rules)
	if len(steps) <= 1 {
		if len(steps) == 1 {
			actions.AsPrepend = steps[0]
		}
		for _, c := range conditions {
			p.add(name, c, actions)
		}
		return
	}
	p.marked = true
	own := fmt.Sprintf("%s%d", mark, p.rules)
	if actions.LargeCommunity == nil {
		actions.LargeCommunity = &api.CommunityAction{Type: api.CommunityAction_TYPE_ADD}
	}
	actions.LargeCommunity.Communities = append(actions.LargeCommunity.Communities, own)
	actions.RouteAction = api.RouteAction_ROUTE_ACTION_UNSPECIFIED
	for _, c := range conditions {
		p.add(name, c, actions)
	}
	is := p.set(&api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_LARGE_COMMUNITY, List: []string{"^" + own + "$"}})
	for i, step := range steps {
		a := &api.Actions{AsPrepend: step}
		if i == len(steps)-1 {
			a.RouteAction = accept
			a.LargeCommunity = &api.CommunityAction{Type: api.CommunityAction_TYPE_REMOVE, Communities: []string{"^" + own + "$"}}
		}
		c := base()
		c.LargeCommunitySet = is
		p.add(name, c, a)
	}
}

// prepends are what puts numbers in front of a path, in this order. Where the node's own number is
// in front already, it is so afterwards, too: a peer may refuse a path that begins otherwise.
func prepends(numbers []uint32, front uint32) []*api.AsPrependAction {
	if len(numbers) == 0 {
		return nil
	}
	if front != 0 {
		// What is there takes the place of the last one if it is the same.
		if last := len(numbers) - 1; numbers[last] == front {
			numbers = numbers[:last]
		}
		numbers = append([]uint32{front}, numbers...)
	}
	var out []*api.AsPrependAction
	for _, n := range slices.Backward(numbers) {
		if k := len(out); k > 0 && out[k-1].Asn == n {
			out[k-1].Repeat++
			continue
		}
		out = append(out, &api.AsPrependAction{Asn: n, Repeat: 1})
	}
	return out
}

func isLarge(community string) bool { return strings.Count(community, ":") == 2 }

func communityType(community string) api.DefinedType {
	if isLarge(community) {
		return api.DefinedType_DEFINED_TYPE_LARGE_COMMUNITY
	}
	return api.DefinedType_DEFINED_TYPE_COMMUNITY
}

// samePolicy reports whether the same routes are let through, and sent in the same way.
func samePolicy(have, want *nodestate.BGP) bool {
	return slices.Equal(have.Pass, want.Pass) && reflect.DeepEqual(have.Filters, want.Filters) && sameReflected(have, want) && have.Priorities == want.Priorities && reflect.DeepEqual(loopsOf(have), loopsOf(want)) &&
		slices.Equal(have.Self, want.Self) && slices.Equal(have.Unchanged, want.Unchanged)
}

// sameReflected reports whether the same is handed on within the AS, to the same peers.
func sameReflected(have, want *nodestate.BGP) bool {
	if !slices.Equal(have.Reflect, want.Reflect) {
		return false
	}
	same := func(a, b nodestate.BGPPeer) bool {
		return a.Addr == b.Addr && a.ASN == b.ASN && a.LocalASN == b.LocalASN
	}
	return len(want.Reflect) == 0 || have.ASN == want.ASN && slices.EqualFunc(have.Peers, want.Peers, same)
}

// setPolicy puts the policies in force, for what the sessions have sent and got already, too. No
// session ends by that.
func (s *Speaker) setPolicy(ctx context.Context, want *nodestate.BGP) error {
	all, export, imports := newPolicies(want)
	req := &api.SetPoliciesRequest{DefinedSets: all.sets, Policies: []*api.Policy{{Name: policyExport, Statements: export}, {Name: policyImport, Statements: imports}}}
	if err := s.server.SetPolicies(ctx, req); err != nil {
		return err
	}
	// Setting policies keeps what they are assigned to, but at first there is nothing to keep.
	for _, of := range []struct {
		policy    string
		direction api.PolicyDirection
		otherwise api.RouteAction
	}{{policyExport, api.PolicyDirection_POLICY_DIRECTION_EXPORT, reject}, {policyImport, api.PolicyDirection_POLICY_DIRECTION_IMPORT, accept}} {
		err := s.server.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{Name: "global",
			Direction: of.direction, Policies: []*api.Policy{{Name: of.policy}}, DefaultAction: of.otherwise}})
		if err != nil {
			return err
		}
	}
	filtered := map[netip.Addr]bool{}
	for _, list := range [][]nodestate.BGPFilter{s.have.Filters, want.Filters} {
		for _, f := range list {
			for _, a := range f.Peers {
				filtered[a] = true
			}
		}
	}
	for a := range s.sessions {
		direction := api.ResetPeerRequest_DIRECTION_OUT
		if filtered[a] || s.have.Priorities != want.Priorities {
			direction = api.ResetPeerRequest_DIRECTION_BOTH
		}
		if err := s.server.ResetPeer(ctx, &api.ResetPeerRequest{Address: a.String(), Soft: true, Direction: direction}); err != nil {
			return err
		}
	}
	return nil
}
