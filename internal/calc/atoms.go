package calc

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// atom is one question about a peer whose answer some rule in use depends on: is it picked by this
// selector, is it in one of these CIDRs, does it call this port by this name. It is true of the addresses of
// the pods that it picks, and of those in cidrs but not in except.
type atom struct {
	text   string
	index  int32 // by text, once sealed
	pods   *model.Selector
	expr   *selector.Selector
	cidrs  []netip.Prefix
	except []netip.Prefix
	named  *portName // with number
	number numbered
}

// literal is an atom, or that it is not true.
type literal struct {
	atom *atom
	not  bool
}

// clause is true where one of its literals is; an empty one never is.
type clause []literal

func (l clause) trueOf(c *class) bool {
	return slices.ContainsFunc(l, func(x literal) bool { return (c != nil && c.has(x.atom)) != x.not })
}

// atoms interns the atoms of the node.
type atoms struct {
	c      *cluster
	byText map[string]*atom
	// What the atoms' addresses come from beside pods: changes of these change them.
	depends dependencies
}

func newAtoms(c *cluster) *atoms {
	return &atoms{c: c, byText: map[string]*atom{},
		depends: dependencies{services: map[model.Name]bool{}, slices: map[model.Name]bool{}}}
}

// others returns what must hold of the other end of a rule; no clauses: everybody.
func (x *atoms) others(r *model.Rule) []clause {
	var out []clause
	if len(r.Peers) > 0 {
		any := clause{}
		for i := range r.Peers {
			if a := x.peer(&r.Peers[i]); a != nil {
				any = append(any, literal{atom: a})
			}
		}
		out = append(out, any)
	}
	e := r.Other
	if e == nil {
		return out
	}
	if e.InNets {
		in := clause{}
		if a := x.nets(e.Nets, nil); a != nil {
			in = append(in, literal{atom: a})
		}
		out = append(out, in)
	}
	if a := x.nets(e.NotNets, nil); a != nil {
		out = append(out, clause{{a, true}})
	}
	if e.Selector != "" {
		out = append(out, clause{{atom: x.expression(e.Selector)}})
	}
	if e.NotSelector != "" {
		out = append(out, clause{{x.expression(e.NotSelector), true}})
	}
	if e.Service != (model.Name{}) {
		out = append(out, clause{{atom: x.service(e.Service)}})
	}
	return out
}

// peer returns the atom of a rule's peer, nil for one that no carried address can be.
func (x *atoms) peer(p *model.Peer) *atom {
	switch {
	case p.Pods != nil:
		return x.intern(&atom{text: selectorText(p.Pods), pods: p.Pods})
	case p.Nodes != nil:
		return x.nodesWith(p.Nodes)
	}
	return x.nets([]netip.Prefix{p.CIDR}, p.Except)
}

// nets returns the atom of the addresses in CIDRs, nil when none of them is carried.
func (x *atoms) nets(in, except []netip.Prefix) *atom {
	a := &atom{cidrs: x.carried(in), except: x.carried(except)}
	if len(a.cidrs) == 0 {
		return nil
	}
	var text strings.Builder
	text.WriteString("cidr")
	for _, p := range a.cidrs {
		text.WriteString(" " + p.String())
	}
	for _, p := range a.except {
		text.WriteString(" except " + p.String())
	}
	a.text = text.String()
	return x.intern(a)
}

// carried returns the prefixes that go into tables, masked, sorted, each once.
func (x *atoms) carried(all []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if x.c.carriedPrefix(p) {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// hosts returns addresses as prefixes.
func (x *atoms) hosts(all []netip.Addr) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(all))
	for _, a := range all {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return x.carried(out)
}

// expression returns the atom of the pods and network sets that an expression picks.
func (x *atoms) expression(text string) *atom {
	a := &atom{text: "all of " + text}
	if have, ok := x.byText[a.text]; ok {
		return have
	}
	a.expr, a.cidrs = parseExpression(text), x.setsWith(parseExpression(text))
	return x.intern(a)
}

// setsWith returns the addresses of the network sets that an expression picks.
func (x *atoms) setsWith(expr *selector.Selector) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range x.c.NetworkSets {
		if expr.MatchesFunc(setLabels(x.c, s)) {
			all = append(all, s.Nets...)
		}
	}
	return x.carried(all)
}

// nodesWith returns the atom of the addresses of nodes with these labels.
func (x *atoms) nodesWith(sel *model.LabelSelector) *atom {
	x.depends.nodes = true
	var text strings.Builder
	text.WriteString("nodes with ")
	writeLabelSelector(&text, sel)
	var all []netip.Addr
	for _, n := range x.c.Nodes {
		if labelsMatch(sel, n.Labels) {
			all = append(all, n.Addrs...)
		}
	}
	return x.intern(&atom{text: text.String(), cidrs: x.hosts(all)})
}

// service returns the atom of the addresses of a Service's endpoints.
func (x *atoms) service(name model.Name) *atom {
	x.depends.services[name] = true
	var all []netip.Addr
	for _, sl := range x.c.Slices {
		if sl.Service == name {
			x.depends.slices[sl.Name] = true
			for i := range sl.Endpoints {
				all = append(all, sl.Endpoints[i].Addrs...)
			}
		}
	}
	return x.intern(&atom{text: "endpoints of " + name.String(), cidrs: x.hosts(all)})
}

// servicePorts makes the atoms of a Service's endpoints by their ports.
func (x *atoms) servicePorts(n portName) {
	x.depends.services[n.service] = true
	at := map[numbered][]netip.Addr{}
	for _, sl := range x.c.Slices {
		if sl.Service != n.service {
			continue
		}
		x.depends.slices[sl.Name] = true
		for _, p := range sl.Ports {
			if n.proto != model.ProtocolAny && n.proto != p.Protocol {
				continue
			}
			for i := range sl.Endpoints {
				k := numbered{p.Protocol, p.Port}
				at[k] = append(at[k], sl.Endpoints[i].Addrs...)
			}
		}
	}
	for number, addrs := range at {
		x.port(n, number).cidrs = x.hosts(addrs)
	}
}

// port returns the atom of pods that call a port by a name.
func (x *atoms) port(n portName, number numbered) *atom {
	return x.intern(&atom{text: namedText(n, number), named: &n, number: number})
}

func namedText(n portName, number numbered) string {
	return n.text() + " = " + portText(number.port, number.proto)
}

func (x *atoms) intern(a *atom) *atom {
	if have, ok := x.byText[a.text]; ok {
		return have
	}
	x.byText[a.text] = a
	return a
}

// sorted returns the atoms by text, which numbers them.
func (x *atoms) sorted() []*atom {
	out := make([]*atom, 0, len(x.byText))
	for _, a := range x.byText {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *atom) int { return strings.Compare(a.text, b.text) })
	for i, a := range out {
		a.index = int32(i)
	}
	return out
}
