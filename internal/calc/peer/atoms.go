// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// Atoms interns the atoms of the node, and keeps them from one computation to the next.
type Atoms struct {
	// Networks is how many CIDRs the atoms that the round used are made of.
	Networks int

	c      *cluster.View
	dirty  *model.Dirty
	byText map[string]*Atom
	next   int32
	round  uint64
	used   int // atoms that the round used
	// What the atoms' addresses come from alongside pods: changes of these change them.
	depends dependencies

	// What this computation changed.
	added []*Atom
	moved []formerly // the contents of others

	slices map[model.Name][]*model.EndpointSlice // of the Services asked for; nil = not looked for yet

	setDomains bool // some network set has domain names
}

// formerly is an atom with the CIDRs that it had.
type formerly struct {
	*Atom
	cidrs []netip.Prefix
}

// NewAtoms returns an Atoms without any.
func NewAtoms() *Atoms { return &Atoms{byText: map[string]*Atom{}} }

// Begin starts a computation.
func (x *Atoms) Begin(c *cluster.View, dirty *model.Dirty) {
	x.c, x.dirty, x.slices, x.setDomains = c, dirty, nil, SetsHaveDomains(c)
	x.round++
	x.used, x.Networks = 0, 0
	x.added, x.moved = nil, nil
	x.depends = dependencies{nodes: hostsByNode(c), services: map[model.Name]bool{}, slices: map[model.Name]bool{}}
}

// End forgets, and returns, the atoms that the computation did not use.
func (x *Atoms) End() (gone []*Atom) {
	if x.used == len(x.byText) {
		return nil
	}
	for text, a := range x.byText {
		if a.round != x.round {
			gone = append(gone, a)
			delete(x.byText, text)
		}
	}
	return gone
}

// use notes that a computation uses an atom, brings its addresses up to date, and returns the one
// that represents all of its text.
func (x *Atoms) use(a *Atom) *Atom {
	have, known := x.byText[a.Text]
	if known {
		a = have
	} else {
		a.Index = x.next
		x.next++
		a.Classes = map[*Class]struct{}{}
		x.byText[a.Text] = a
		x.added = append(x.added, a)
	}
	if a.round == x.round {
		return a
	}
	a.round = x.round
	x.used++
	x.updateAddrs(a, known)
	x.Networks += a.Networks()
	return a
}

// Restart begins the computation again for what may be less: see settle.
func (x *Atoms) Restart() {
	x.round++
	x.used, x.Networks = 0, 0
}

// Settle forgets what was used before the computation began again, and not since.
func (x *Atoms) Settle() {
	x.added = slices.DeleteFunc(x.added, func(a *Atom) bool {
		if a.round == x.round {
			return false
		}
		delete(x.byText, a.Text)
		return true
	})
	x.moved = slices.DeleteFunc(x.moved, func(m formerly) bool {
		if m.round == x.round {
			return false
		}
		m.Atom.CIDRs = m.cidrs
		return true
	})
}

// Keep begins a computation that makes and changes no atoms.
func (x *Atoms) Keep() { x.added, x.moved = nil, nil }

// Affected reports whether a change concerns what atoms depend on alongside pods.
func (x *Atoms) Affected(c *cluster.View, dirty *model.Dirty) bool {
	return x.depends.affected(c, dirty)
}

// Again is use for an atom that an earlier computation used.
func (x *Atoms) Again(a *Atom) *Atom {
	switch a.round {
	case x.round:
	case x.round - 1: // it is the one that represents its text
		a.round = x.round
		x.used++
		x.updateAddrs(a, true)
		x.Networks += a.Networks()
	default:
		return x.use(a)
	}
	return a
}

// updateAddrs brings the addresses of an atom up to date.
func (x *Atoms) updateAddrs(a *Atom, known bool) {
	if a.domains != nil && (!known || x.dirty.Has(model.KindNetworkSets|model.KindNamespaces)) {
		a.Domains = x.domainsWith(a.domains)
	}
	cidrs, made := x.contents(a, !known)
	if made && !slices.Equal(cidrs, a.CIDRs) {
		if known {
			x.moved = append(x.moved, formerly{a, a.CIDRs})
		}
		a.CIDRs = cidrs
	}
}

// contents returns the CIDRs of an atom that are made from objects, when these may have changed or
// all is to be made; and notes which they are.
func (x *Atoms) contents(a *Atom, all bool) (cidrs []netip.Prefix, made bool) {
	switch {
	case a.expr != nil && (all || x.dirty.Has(model.KindNetworkSets|model.KindHostEndpoints|model.KindNamespaces) || x.dirty.Has(model.KindNodes) && hostsByNode(x.c)):
		return x.SetsWith(a.expr), true
	case a.nodes != nil:
		x.depends.nodes = true
		if all || x.dirty.Has(model.KindNodes) {
			return x.nodesWith(a.nodes), true
		}
	case a.service != (model.Name{}):
		return x.endpoints(a.service, func(*model.EndpointSlice) bool { return true }), true
	case a.named != nil && a.named.Service != (model.Name{}):
		return x.endpoints(a.named.Service, func(sl *model.EndpointSlice) bool {
			return slices.ContainsFunc(sl.Ports, func(p model.EndpointPort) bool { return port.Number{Proto: p.Protocol, Port: p.Port} == a.number })
		}), true
	}
	return nil, false
}

// Others returns what must hold of the other end of a rule; no clauses: everybody. Of a rule that
// names may allow, an expression is also about the domain names of the network sets that it picks.
func (x *Atoms) Others(r *model.Rule, named bool) []Clause {
	var out []Clause
	if len(r.Peers) > 0 {
		out = append(out, x.peers(r))
	}
	e := r.Other
	if e == nil {
		return out
	}
	if e.InNets {
		in := Clause{}
		if a := x.nets(e.Nets, nil); a != nil {
			in = append(in, Literal{Atom: a})
		}
		out = append(out, in)
	}
	if a := x.nets(e.NotNets, nil); a != nil {
		out = append(out, Clause{{a, true}})
	}
	if e.Selector != "" {
		of := Clause{{Atom: x.expression(e.Selector)}}
		if named && x.setDomains {
			of = append(of, Literal{Atom: x.domains(e.Selector)})
		}
		out = append(out, of)
	}
	if e.NotSelector != "" {
		out = append(out, Clause{{x.expression(e.NotSelector), true}})
	}
	if e.Service != (model.Name{}) {
		out = append(out, Clause{{Atom: x.use(&Atom{Text: "endpoints of " + e.Service.String(), service: e.Service})}})
	}
	return out
}

// newPeer returns an atom of a rule's peer, not interned, nil for one that no carried address can
// be.
func (x *Atoms) newPeer(p *model.Peer) *Atom {
	switch {
	case p.Pods != nil:
		return &Atom{Text: SelectorText(p.Pods), pods: p.Pods}
	case p.Nodes != nil:
		var text strings.Builder
		text.WriteString("nodes with ")
		writeLabelSelector(&text, p.Nodes)
		return &Atom{Text: text.String(), nodes: p.Nodes}
	case len(p.Domains) > 0:
		return &Atom{Text: "domains " + strings.Join(p.Domains, " "), Domains: p.Domains}
	}
	return x.newNets([]netip.Prefix{p.CIDR}, p.Except)
}

// nets returns the atom of the addresses in CIDRs, nil when none of them is carried.
func (x *Atoms) nets(in, except []netip.Prefix) *Atom {
	if a := x.newNets(in, except); a != nil {
		return x.use(a)
	}
	return nil
}

// newNets is nets, not interned.
func (x *Atoms) newNets(in, except []netip.Prefix) *Atom {
	a := &Atom{CIDRs: x.Carried(in), Except: x.Carried(except)}
	if len(a.CIDRs) == 0 {
		return nil
	}
	var text strings.Builder
	text.WriteString("cidr")
	for _, p := range a.CIDRs {
		text.WriteString(" " + p.String())
	}
	for _, p := range a.Except {
		text.WriteString(" except " + p.String())
	}
	a.Text = text.String()
	return a
}

// Carried returns the prefixes that go into tables, masked, sorted, each once.
func (x *Atoms) Carried(all []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if x.c.CarriedPrefix(p) {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// hosts returns addresses as prefixes.
func (x *Atoms) hosts(all []netip.Addr) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(all))
	for _, a := range all {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return x.Carried(out)
}

// expression returns the atom of the pods and network sets that an expression picks.
func (x *Atoms) expression(text string) *Atom {
	a := &Atom{Text: "all of " + text}
	if have, ok := x.byText[a.Text]; ok {
		return x.use(have)
	}
	a.expr = ParseExpression(text)
	return x.use(a)
}

// domains returns the atom of the domain names of the network sets that an expression picks.
func (x *Atoms) domains(text string) *Atom {
	a := &Atom{Text: "domain names of all of " + text}
	if have, ok := x.byText[a.Text]; ok {
		return x.use(have)
	}
	a.domains = ParseExpression(text)
	return x.use(a)
}

// SetsHaveDomains reports whether some network set has domain names: rules are compiled otherwise
// then.
func SetsHaveDomains(c *cluster.View) bool {
	for _, s := range c.NetworkSets {
		if len(s.Domains) > 0 {
			return true
		}
	}
	return false
}

// domainsWith returns the domain names of the network sets that an expression picks, sorted.
func (x *Atoms) domainsWith(expr *selector.Selector) (out []string) {
	for _, s := range x.c.NetworkSets {
		if len(s.Domains) > 0 && expr.MatchesFunc(SetLabels(x.c, s)) {
			out = append(out, s.Domains...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// SetsWith returns the addresses of the network sets and the host endpoints that an expression
// picks.
func (x *Atoms) SetsWith(expr *selector.Selector) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range x.c.NetworkSets {
		if expr.MatchesFunc(SetLabels(x.c, s)) {
			all = append(all, s.Nets...)
		}
	}
	for _, h := range x.c.HostEndpoints {
		if expr.MatchesFunc(HostLabels(h)) {
			all = append(all, x.hosts(h.AddrsIn(x.c.Cluster))...)
		}
	}
	return x.Carried(all)
}

// hostsByNode reports whether some host endpoint is known by its node's addresses.
func hostsByNode(c *cluster.View) bool {
	for _, h := range c.HostEndpoints {
		if len(h.ExpectedIPs) == 0 && h.Interface == model.AllInterfaces {
			return true
		}
	}
	return false
}

// nodesWith returns the addresses of nodes with these labels.
func (x *Atoms) nodesWith(sel *model.LabelSelector) []netip.Prefix {
	var all []netip.Addr
	for _, n := range x.c.Nodes {
		if labelsMatch(sel, n.Labels) {
			all = append(all, n.Addrs...)
		}
	}
	return x.hosts(all)
}

// endpoints returns the addresses in those slices of a Service that count.
func (x *Atoms) endpoints(service model.Name, counts func(*model.EndpointSlice) bool) []netip.Prefix {
	var all []netip.Addr
	for _, sl := range x.SlicesOf(service) {
		if counts(sl) {
			for i := range sl.Endpoints {
				all = append(all, sl.Endpoints[i].Addrs...)
			}
		}
	}
	return x.hosts(all)
}

// SlicesOf returns the slices of a Service, and notes that policy depends on them.
func (x *Atoms) SlicesOf(service model.Name) []*model.EndpointSlice {
	if x.slices == nil {
		x.slices = map[model.Name][]*model.EndpointSlice{}
		for _, sl := range x.c.Slices {
			if cluster.IsAuthoritative(x.c.Cluster, sl) {
				x.slices[sl.Service] = append(x.slices[sl.Service], sl)
			}
		}
	}
	x.depends.services[service] = true
	for _, sl := range x.slices[service] {
		x.depends.slices[sl.Name] = true
	}
	return x.slices[service]
}

// Ports makes the atoms of those that call a port by a name, or that are a Service's endpoints at
// one.
func (x *Atoms) Ports(n port.Name, pods *PodIndex) {
	if n.Service == (model.Name{}) {
		for number := range pods.numbersOf(n) {
			x.port(n, number)
		}
		return
	}
	for _, sl := range x.SlicesOf(n.Service) {
		for _, p := range sl.Ports {
			if n.Proto == model.ProtocolAny || n.Proto == p.Protocol {
				x.port(n, port.Number{Proto: p.Protocol, Port: p.Port})
			}
		}
	}
}

// KnowsPorts reports whether there is an atom for each port that pods call by a name.
func (x *Atoms) KnowsPorts(n port.Name, pods *PodIndex) bool {
	for number := range pods.numbersOf(n) {
		if _, known := x.byText[namedText(n, number)]; !known {
			return false
		}
	}
	return true
}

// ByPort returns the atoms by the names of ports that they are about.
func (x *Atoms) ByPort() map[port.Name][]*Atom {
	out := map[port.Name][]*Atom{}
	for _, a := range x.byText {
		if a.named != nil {
			out[*a.named] = append(out[*a.named], a)
		}
	}
	return out
}

// port returns the atom of those that call a port by a name.
func (x *Atoms) port(n port.Name, number port.Number) *Atom {
	return x.use(&Atom{Text: namedText(n, number), named: &n, number: number})
}

func namedText(n port.Name, number port.Number) string {
	return n.Text() + " = " + table.PortText(number.Port, number.Proto)
}
