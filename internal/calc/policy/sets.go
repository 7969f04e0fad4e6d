// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// sets are the policy sets of the node: the lists of policies that bind its endpoints. Endpoints
// with one list share a set, unless the list names ports that they have at different numbers.
type sets struct {
	c        *cluster.View
	before   *tables // with what was compiled before
	compiled [directions]map[*model.Policy]*bound
	byKey    map[string]*set
	users    map[*set][]netip.Addr
	hosts    map[*set][]hostUser          // of host endpoints
	owners   map[*set]map[string]struct{} // the namespaces of users
	domains  map[*set][]*nameSet          // of sets of egress that have domain names
	atoms    *peer.Atoms
	named    map[port.Name]bool // what ports of the other end rules ask for
	own      map[string]ownExpression
	former   [directions]map[model.PolicyID]*bound // before.compiled, by the policies' names; made when asked for

	staged *subject.Index // the policies that there would be with the staged ones in force; nil where there are none
	pairs  []pair
	// hostPairs are the same of host endpoints.
	hostPairs []hostPair
	cutOff    bool                // a set in force was refused
	withheld  map[policySide]bool // by their networks
	unfit     []nodestate.Rule    // names those
}

func newSets(c *cluster.View, p *tables) *sets {
	return &sets{
		c: c, before: p, byKey: map[string]*set{}, users: map[*set][]netip.Addr{}, hosts: map[*set][]hostUser{}, owners: map[*set]map[string]struct{}{}, domains: map[*set][]*nameSet{},
		compiled: [directions]map[*model.Policy]*bound{{}, {}},
		atoms:    p.atoms, named: map[port.Name]bool{}, own: map[string]ownExpression{},
	}
}

// bound is one direction of a policy that binds a local endpoint.
type bound struct {
	serial int
	policy *model.Policy
	rules  []*rule
	names  []port.Name // of ports that the endpoint itself must have
	asked  []port.Name // of ports that the other end may have
	byAddr bool        // which rules hold depends on the endpoint's address
	text   string      // of its rules; made when asked for
}

// rule is a rule of a policy with its peers as atoms.
type rule struct {
	of     *model.Rule
	index  int           // in its policy
	others []peer.Clause // all of them must hold; none = everybody
	name   nodestate.Rule
	text   string // all that it says; empty: two rules are not compared by it
	bound  bool   // of a bound, which gets it its number
	base   *rule  // that it is a stricter version of
	id     nodestate.RuleID

	everywhere *setRule // as it is in all sets, once one asked, if it is so
}

// set is a list of policies in one direction, with the rules as they are for its endpoints.
type set struct {
	dir    direction
	of     []*bound
	tiers  []setTier
	name   string           // says whose rules these are in which order, and for whom; but not what the rules say
	ends   []end            // rules that verdicts may name and that are not of a policy's bound; made when asked for
	text   string           // says all of it, where it is made
	deny   nodestate.Rule   // where nothing matches
	six    bool             // ICMP is that of IPv6, where it matters
	protos []model.Protocol // set.protocols, once asked for
	passed nodestate.Rule   // of what every tier passes on; zero = fallThrough
	denied bool             // passed denies
	alone  bool             // evaluates each packet by itself: what is passed on is tracked

	failsafe *set // of a host endpoint: takes its place when it does not fit
	vital    bool // has the failsafe ports, and no policies

	byAtom    map[*peer.Atom][]rulePlace // set.index, once asked for
	unindexed []rulePlace

	names   *setNames // nil until asked for
	ofNames *set      // the set whose names this one is of: it binds no endpoint

	id               nodestate.SetID
	denyID, passedID nodestate.RuleID
	refused          nodestate.Rule // includes deny's place when the set is too large
	refusedID        nodestate.RuleID
	refusedSet       nodestate.SetID // that nothing is under
	refusedName      string          // of it
	refusedText      string          // of refused
	tooLarge         bool
	closed           bool // one of its policies is held back
}

// setRule is a rule with the ports it has for the endpoints of the set. Sets share it; only adopt
// changes it, to what is equal, which those that compare two by their addresses rely on.
type setRule struct {
	*rule
	dst, src port.Match
	on       bool // it allows by handing on to what is tracked
}

// in returns a rule for endpoints that have the ports of a pod: the same one for all, where it does
// not ask for theirs by name.
func (r *rule) in(dir direction, pod *model.Pod) *setRule {
	if r.everywhere != nil {
		return r.everywhere
	}
	out := &setRule{rule: r, dst: port.NewMatch(r.of.Ports, r.of.NotPorts), src: port.NewMatch(r.of.SourcePorts, r.of.NotSourcePorts)}
	own := &out.dst
	if dir == egress {
		own = &out.src
	}
	if own.Named() {
		own.Resolve(pod)
	} else {
		r.everywhere = out
	}
	return out
}

// adopt makes a rule that of a policy which says the same: the former policy is not kept for it.
func (r *rule) adopt(of *model.Rule) {
	r.of = of
	if r.everywhere != nil {
		r.everywhere.dst, r.everywhere.src = port.NewMatch(of.Ports, of.NotPorts), port.NewMatch(of.SourcePorts, of.NotSourcePorts)
	}
}

// bind finds or makes the sets of an endpoint's address.
func (s *sets) bind(a netip.Addr, ep *model.LocalEndpoint) {
	policies, known := s.before.subjects.OfPod(s.c, ep.Pod, s.c.Pods.Get(ep.Pod))
	for dir := range directions {
		if t := s.setOf(dir, policies, known, ep.Pod, a); t != nil {
			s.users[t] = append(s.users[t], a)
			if s.owners[t] == nil {
				s.owners[t] = map[string]struct{}{}
			}
			s.owners[t][ep.Pod.Namespace] = struct{}{}
			if dir == egress && known {
				s.bindNames(t)
			}
		}
	}
	s.bindStaged(a, ep, policies, known)
}

// setOf finds or makes the set of the policies that bind an address in a direction; nil when none
// does.
func (s *sets) setOf(dir direction, policies []*model.Policy, known bool, pod model.Name, a netip.Addr) *set {
	var binding []*model.Policy
	for _, p := range policies {
		if dir == ingress && p.AppliesIngress || dir == egress && p.AppliesEgress {
			binding = append(binding, p)
		}
	}
	switch {
	case len(binding) == 0:
		return nil
	case s.withholds(dir, binding):
		return s.closedSet(dir, binding)
	}
	list := make([]*bound, 0, len(binding))
	for _, p := range binding {
		list = append(list, s.compile(p, dir))
	}
	return s.find(dir, list, s.c.Pods.Get(pod), known, a)
}

// find returns the set of a list. For a pod that is not known the rules are left out, so that it is
// isolated and nothing is allowed until it is.
func (s *sets) find(dir direction, list []*bound, pod *model.Pod, known bool, a netip.Addr) *set {
	var key strings.Builder
	key.WriteString(dir.String())
	if !known {
		key.WriteString(" unknown")
	}
	held := make([]string, len(list))
	for i, b := range list {
		key.WriteByte(' ')
		key.WriteString(strconv.Itoa(b.serial))
		for _, n := range b.names {
			key.WriteByte('=')
			key.WriteString(port.NumbersText(port.OfPod(pod, n)))
		}
		if b.byAddr {
			held[i] = s.held(b, pod, a)
			key.WriteString(" holds " + held[i])
		}
	}
	t, ok := s.byKey[key.String()]
	if !ok {
		if s.before.sets != nil { // what was made of the same policies is the same
			t = s.before.sets.byKey[key.String()]
		}
		if t == nil {
			t = s.newSet(dir, list, pod, known, held)
		}
		s.byKey[key.String()] = t
	}
	return t
}

// held says which of a policy's rules are about an address: the family, and a 1 or a 0 for each
// rule.
func (s *sets) held(b *bound, pod *model.Pod, a netip.Addr) string {
	out := []byte("4:")
	if !a.Is4() {
		out[0] = '6'
	}
	for i := range b.rules {
		if s.holds(b.rules[i].of, pod, a) {
			out = append(out, '1')
		} else {
			out = append(out, '0')
		}
	}
	return string(out)
}

func (s *sets) newSet(dir direction, list []*bound, pod *model.Pod, known bool, held []string) *set {
	t := &set{dir: dir, of: list}
	var name, names strings.Builder
	name.WriteString(dir.String() + "\n")
	for i, b := range list {
		if i == 0 || b.policy.Tier != list[i-1].policy.Tier {
			t.tiers = append(t.tiers, newTier(s.c, dir, list[i:]))
		}
		if i > 0 {
			names.WriteByte(',')
		}
		names.WriteString(nameIn(b.policy))
		name.WriteString(b.policy.Kind + " " + strconv.Quote(b.policy.Name.String()) + "\n")
		if !known {
			name.WriteString("not known\n")
			continue
		}
		t.add(b, pod, held[i])
		if b.byAddr {
			name.WriteString("holds " + held[i] + "\n")
		}
		for _, n := range b.names {
			name.WriteString(n.Text() + " = " + port.NumbersText(port.OfPod(pod, n)) + "\n")
		}
	}
	if !known {
		t.tiers = nil
	}
	t.name = name.String()
	t.deny = nodestate.Rule{Kind: "default-deny", Name: names.String(), Detail: dir.String()}
	if i := slices.IndexFunc(t.tiers, func(x setTier) bool { return !x.pass }); i >= 0 {
		t.deny = t.tiers[i].deny
	}
	t.refused = nodestate.Rule{Kind: "policy-too-large", Name: names.String(), Detail: dir.String()}
	return t
}

// add puts a policy's rules into the last tier.
func (t *set) add(b *bound, pod *model.Pod, held string) {
	tier := &t.tiers[len(t.tiers)-1]
	family, holds, _ := strings.Cut(held, ":")
	t.six = t.six || family == "6"
	tier.rules = slices.Grow(tier.rules, len(b.rules))
	for j, r := range b.rules {
		if b.byAddr && holds[j] != '1' {
			continue
		}
		tier.rules = append(tier.rules, r.in(t.dir, pod))
	}
}

// number gives sets and rules their numbers, and the endpoints their isolation.
func (s *sets) number(out *tables) {
	names := make(map[string]struct{}, 2*len(s.byKey))
	ends, refusals := map[string]nodestate.Rule{}, map[string]nodestate.Rule{}
	for _, t := range s.byKey {
		t.findEnds()
		names[t.name], names[t.refusedName] = struct{}{}, struct{}{}
		for _, e := range t.ends {
			ends[e.text] = e.rule
		}
		refusals[t.refusedText] = t.refused
	}
	setIDs := out.ruleIDs.setIDs(names)
	out.ruleIDs.update(s.compiled, ends, refusals)
	ruleIDs := out.ruleIDs.ids.ByText
	for _, t := range s.byKey {
		t.id, t.refusedSet, t.refusedID = setIDs[t.name], setIDs[t.refusedName], ruleIDs[t.refusedText]
		for _, e := range t.ends {
			*e.id = ruleIDs[e.text]
		}
		for i := range t.tiers {
			for j := range t.tiers[i].rules {
				if r := t.tiers[i].rules[j].rule; r.base != nil {
					r.id = r.base.id
				}
			}
		}
		s.isolate(t, nodestate.Isolation{Set: t.id, Rule: t.denyID}, out)
	}
}

// end is a rule of a set with the place of its number.
type end struct {
	rule nodestate.Rule
	text string
	id   *nodestate.RuleID
}

// findEnds notes the set's ends, and the name that replaces it when it is not written because it
// is too large. That has a number of its own: what is under a number is all there before an
// endpoint has it.
func (t *set) findEnds() {
	if t.ends != nil {
		return
	}
	t.refusedName, t.refusedText = "too large\n"+t.name, table.RuleText(t.refused)
	t.eachEnd(func(r nodestate.Rule, id *nodestate.RuleID) { t.ends = append(t.ends, end{r, table.RuleText(r), id}) })
}

// inForce reports whether a set binds an endpoint: otherwise staged policies alone make it.
func (s *sets) inForce(t *set) bool {
	if t.ofNames != nil {
		return s.inForce(t.ofNames)
	}
	return t.vital || len(s.users[t]) > 0 || len(s.hosts[t]) > 0
}

// isolate gives a set's endpoints their isolation.
func (s *sets) isolate(t *set, to nodestate.Isolation, out *tables) {
	isolated := out.ingress
	if t.dir == egress {
		isolated = out.egress
	}
	for _, a := range s.users[t] {
		isolated[a] = to
	}
	if t.failsafe != nil && to.Set == t.refusedSet && !t.failsafe.tooLarge {
		to = nodestate.Isolation{Set: t.failsafe.id, Rule: t.failsafe.denyID}
	}
	for _, u := range s.hosts[t] {
		u.isolate(t.dir, to, out.hosts)
	}
}

// eachEnd calls f for every rule that verdicts may name and that is not of a policy's bound, and
// the place of its number.
func (t *set) eachEnd(f func(nodestate.Rule, *nodestate.RuleID)) {
	f(t.deny, &t.denyID)
	passed := t.passed
	if passed.Kind == "" {
		passed = fallThrough(t.dir)
	}
	f(passed, &t.passedID)
	for i := range t.tiers {
		f(t.tiers[i].deny, &t.tiers[i].denyID)
		for j := range t.tiers[i].rules {
			if r := t.tiers[i].rules[j].rule; !r.bound {
				f(r.name, &r.id)
			}
		}
	}
}
