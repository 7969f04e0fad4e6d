// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// choice is which gateways a client uses, and of these how many.
type choice struct {
	selector, namespaces string // as those of model.EgressClient
	most                 int
	preferLocal          bool
}

// annotated is the choice of a client's annotations.
func annotated(e *model.EgressClient) choice {
	return choice{selector: e.Selector, namespaces: e.Namespaces, most: nodestate.GatewaysMost}
}

// policyGroup is the gateways of one or several rules.
type policyGroup struct {
	number    nodestate.GatewayGroup
	four, six bool // a rule is about destinations of the family
	choice
}

// policyRules is what an EgressGatewayPolicy says, with its numbers.
type policyRules struct {
	id     nodestate.EgressPolicyID
	rules  map[nodestate.EgressDestination]nodestate.GatewayGroup // of the families that are carried
	groups []policyGroup
}

// policy returns what a policy says; nil = it is not there.
func (f *finder) policy(name string) *policyRules {
	out, known := f.policies[name]
	if !known {
		if p := f.c.EgressPolicies[name]; p != nil {
			out = f.numbered(p)
		}
		f.policies[name] = out
	}
	return out
}

func (f *finder) numbered(p *model.EgressPolicy) *policyRules {
	var text strings.Builder
	fmt.Fprintf(&text, "%q", p.Name)
	for _, r := range p.Rules {
		fmt.Fprintf(&text, " %s %v %s", r.CIDR, r.Direct, groupText(r))
	}
	out := &policyRules{id: table.Digest64[nodestate.EgressPolicyID](text.String()), rules: map[nodestate.EgressDestination]nodestate.GatewayGroup{}}
	for _, r := range p.Rules {
		group := nodestate.GroupDirect
		if !r.Direct {
			group = out.group(r)
		}
		if f.c.Carried(r.CIDR.Addr()) {
			out.rules[nodestate.EgressDestination{Policy: out.id, CIDR: r.CIDR}] = group
		}
	}
	return out
}

// groupText says by which gateways a rule leads.
func groupText(r model.EgressRule) string {
	return fmt.Sprintf("%q %q %d %v", r.Selector, r.Namespaces, r.Most, r.PreferLocal)
}

// group returns the number of a rule's gateways, which other rules may share.
func (p *policyRules) group(r model.EgressRule) nodestate.GatewayGroup {
	number := max(table.Digest64[nodestate.GatewayGroup](groupText(r)), nodestate.GroupFirst)
	at := slices.IndexFunc(p.groups, func(g policyGroup) bool { return g.number == number })
	if at < 0 {
		most := nodestate.GatewaysMost
		if r.Most > 0 {
			most = min(most, int(r.Most))
		}
		at = len(p.groups)
		p.groups = append(p.groups, policyGroup{number: number, choice: choice{selector: r.Selector, namespaces: r.Namespaces, most: most, preferLocal: r.PreferLocal}})
	}
	if r.CIDR.Addr().Is4() {
		p.groups[at].four = true
	} else {
		p.groups[at].six = true
	}
	return number
}

// addPolicy enters what a policy says for an address of a pod that names it; with here only where
// one of its gateways is on this node.
func (f *finder) addPolicy(name string, a netip.Addr, p *model.Pod, here bool) {
	rules := f.policy(name)
	if rules == nil {
		if !here {
			f.out.Egress.Missing = append(f.out.Egress.Missing, name)
		}
		return
	}
	found := false
	for _, g := range rules.groups {
		if a.Is4() && g.four || a.Is6() && g.six {
			found = f.add(nodestate.GatewayKey{Client: a, Group: g.number}, g.choice, p, here) || found
		}
	}
	if here && !found {
		return
	}
	e := &f.out.Egress
	if e.Policies[a] = rules.id; e.Names[rules.id] != "" {
		return
	}
	e.Names[rules.id] = name
	for to, group := range rules.rules {
		e.Rules[to] = group
	}
}
