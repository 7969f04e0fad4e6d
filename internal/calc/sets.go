package calc

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// sets are the policy sets of the node: the lists of policies that bind its endpoints. Endpoints with
// one list share a set, unless the list names ports that they have at different numbers.
type sets struct {
	c        *cluster
	subjects *subjects
	compiled [directions]map[*model.Policy]*bound
	byKey    map[string]*set
	users    map[*set][]netip.Addr
	atoms    *atoms
	named    map[portName]bool // port names that egress rules ask for
}

func newSets(c *cluster) *sets {
	return &sets{
		c: c, subjects: indexSubjects(c), byKey: map[string]*set{}, users: map[*set][]netip.Addr{},
		compiled: [directions]map[*model.Policy]*bound{{}, {}},
		atoms:    newAtoms(c), named: map[portName]bool{},
	}
}

// bound is one direction of a policy that binds a local endpoint.
type bound struct {
	serial int // in this computation
	policy *model.Policy
	rules  []rule
	names  []portName // of ports that the endpoint itself must have (ingress)
	text   string
}

// rule is a rule of a policy with its peers as atoms.
type rule struct {
	action    model.Action
	everybody bool
	peers     []*atom
	ports     []model.PortRange // empty = every one
	name      nodestate.Rule
	text      string
}

// portName is what a rule calls a port. Protocol ProtocolAny asks for the name only.
type portName struct {
	proto model.Protocol
	name  string
}

// set is a list of policies in one direction, with the rules as they are for its endpoints.
type set struct {
	dir   direction
	of    []*bound
	tiers [][]setRule
	text  string
	deny  nodestate.Rule // where nothing matches

	id     nodestate.SetID
	denyID nodestate.RuleID
}

// setRule is a rule with the ports it has for the endpoints of the set, and its number.
type setRule struct {
	*rule
	ports    []model.PortRange // names are left in egress only: they are the peer's
	anyPorts bool
	id       nodestate.RuleID
}

// bind finds or makes the sets of an endpoint's address.
func (s *sets) bind(a netip.Addr, ep *model.LocalEndpoint) {
	policies, known := s.subjects.of(s.c, ep.Pod)
	for dir := range directions {
		var list []*bound
		for _, p := range policies {
			if dir == ingress && p.AppliesIngress || dir == egress && p.AppliesEgress {
				list = append(list, s.compile(p, dir))
			}
		}
		if len(list) > 0 {
			t := s.find(dir, list, s.c.Pods[ep.Pod], known)
			s.users[t] = append(s.users[t], a)
		}
	}
}

// find returns the set of a list. For a pod that is not known the rules are left out, so that it is
// isolated and nothing is allowed until it is.
func (s *sets) find(dir direction, list []*bound, pod *model.Pod, known bool) *set {
	var key strings.Builder
	key.WriteString(dir.String())
	if !known {
		key.WriteString(" unknown")
	}
	for _, b := range list {
		key.WriteByte(' ')
		key.WriteString(strconv.Itoa(b.serial))
		for _, n := range b.names {
			key.WriteByte('=')
			key.WriteString(numbersText(ownPorts(pod, n)))
		}
	}
	t, ok := s.byKey[key.String()]
	if !ok {
		t = newSet(dir, list, pod, known)
		s.byKey[key.String()] = t
	}
	return t
}

func newSet(dir direction, list []*bound, pod *model.Pod, known bool) *set {
	t := &set{dir: dir, of: list}
	var text, names strings.Builder
	text.WriteString(dir.String() + "\n")
	for i, b := range list {
		if i == 0 || b.policy.Tier != list[i-1].policy.Tier {
			t.tiers = append(t.tiers, nil)
		}
		if i > 0 {
			names.WriteByte(',')
		}
		names.WriteString(b.policy.Name.String())
		text.WriteString(b.text)
		if !known {
			text.WriteString("not known\n")
			continue
		}
		tier := &t.tiers[len(t.tiers)-1]
		for j := range b.rules {
			r := &b.rules[j]
			sr := setRule{rule: r, ports: r.ports, anyPorts: len(r.ports) == 0}
			if dir == ingress {
				sr.ports = resolvePorts(r.ports, pod)
			}
			*tier = append(*tier, sr)
		}
		for _, n := range b.names {
			text.WriteString(n.text() + " = " + numbersText(ownPorts(pod, n)) + "\n")
		}
	}
	t.text = text.String()
	t.deny = nodestate.Rule{Kind: "default-deny", Name: names.String(), Detail: dir.String()}
	return t
}

// compile prepares one direction of a policy, once.
func (s *sets) compile(p *model.Policy, dir direction) *bound {
	if b, ok := s.compiled[dir][p]; ok {
		return b
	}
	b := &bound{serial: len(s.compiled[dir]), policy: p}
	s.compiled[dir][p] = b
	rules := p.Ingress
	if dir == egress {
		rules = p.Egress
	}
	var text strings.Builder
	text.WriteString("policy " + p.Kind + " " + strconv.Quote(p.Name.String()) + " tier " + strconv.Quote(p.Tier) + "\n")
	for i := range rules {
		if p.Invalid != "" && rules[i].Action != model.Deny {
			continue // what cannot be enforced exactly allows nothing
		}
		r := s.compileRule(p, dir, i, &rules[i])
		text.WriteString(r.text)
		b.rules = append(b.rules, r)
		for _, pr := range r.ports {
			if pr.Named == "" {
				continue
			}
			n := portName{pr.Protocol, pr.Named}
			if dir == egress {
				s.named[n] = true
			} else if !slices.Contains(b.names, n) {
				b.names = append(b.names, n)
			}
		}
	}
	b.text = text.String()
	return b
}

func (s *sets) compileRule(p *model.Policy, dir direction, index int, m *model.Rule) rule {
	r := rule{action: m.Action, everybody: len(m.Peers) == 0, ports: m.Ports,
		name: nodestate.Rule{Kind: p.Kind, Name: p.Name.String(), Detail: dir.String() + "[" + strconv.Itoa(index) + "]"}}
	var text strings.Builder
	text.WriteString(r.name.Detail + " " + [...]string{"allow", "deny", "pass"}[m.Action])
	if r.everybody {
		text.WriteString(" everybody")
	}
	for i := range m.Peers {
		if a := s.atoms.peer(&m.Peers[i]); a != nil {
			r.peers = append(r.peers, a)
			text.WriteString("\n  " + a.text)
		}
	}
	for _, pr := range m.Ports {
		text.WriteString("\n  " + portRangeText(pr))
	}
	text.WriteByte('\n')
	r.text = text.String()
	return r
}

// number gives sets and rules their numbers, and the endpoints their isolation.
func (s *sets) number(out *policyTables) {
	var setTexts, ruleTexts []string
	names := map[string]nodestate.Rule{}
	note := func(r nodestate.Rule) {
		t := ruleText(r)
		if _, ok := names[t]; !ok {
			names[t] = r
			ruleTexts = append(ruleTexts, t)
		}
	}
	for _, t := range s.byKey {
		setTexts = append(setTexts, t.text)
		note(t.deny)
		for _, tier := range t.tiers {
			for i := range tier {
				note(tier[i].name)
			}
		}
	}
	setIDs := assign(digest64[nodestate.SetID], setTexts)
	ruleIDs := assign(digestPolicyRule[nodestate.RuleID], ruleTexts)
	for text, id := range ruleIDs {
		out.rules[id] = names[text]
	}
	for _, t := range s.byKey {
		t.id, t.denyID = setIDs[t.text], ruleIDs[ruleText(t.deny)]
		for _, tier := range t.tiers {
			for i := range tier {
				tier[i].id = ruleIDs[ruleText(tier[i].name)]
			}
		}
		isolated := out.ingress
		if t.dir == egress {
			isolated = out.egress
		}
		for _, a := range s.users[t] {
			isolated[a] = nodestate.Isolation{Set: t.id, Rule: t.denyID}
		}
	}
}
