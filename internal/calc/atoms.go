// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// atom is one question about a peer whose answer some rule in use depends on: is it picked by this
// selector, is it in one of these CIDRs, does it call this port by this name. It is true of the
// addresses of the pods that it picks, and of those in cidrs but not in except.
type atom struct {
	text   string // says what it asks: equal texts are one atom
	index  int32  // its number for as long as it is in use
	pods   *model.Selector
	expr   *selector.Selector
	cidrs  []netip.Prefix
	except []netip.Prefix
	named  *port.Name // with number
	number port.Number

	digest string // see name

	parts []*atom // it is true where one of these is; they are of no other atom and not interned
	whole *atom   // of a part: the atom

	// What cidrs are made from, where that may change.
	nodes   *model.LabelSelector // the addresses of nodes with these labels
	service model.Name           // those of the endpoints of a Service
	round   uint64               // the computation that used it last
	classes map[*class]struct{}  // in which it is true
}

// maxAtomName is how long the text of an atom may be in those of classes.
const maxAtomName = 256

// name is an atom's text, or what is short and made of it: a tenant's few lists of thousands of
// networks or labels may make thousands of classes.
func (a *atom) name() string {
	if len(a.text) > maxAtomName && a.digest == "" {
		sum := sha256.Sum256([]byte(a.text))
		a.digest = "digest " + hex.EncodeToString(sum[:])
	}
	return cmp.Or(a.digest, a.text)
}

// picksPods reports whether the atom asks about pods.
func (a *atom) picksPods() bool {
	return a.pods != nil || a.expr != nil || a.named != nil || slices.ContainsFunc(a.parts, (*atom).picksPods)
}

// asksNamespaces and asksAccounts report whether the answer may depend on the labels of namespaces,
// or of service accounts.
func (a *atom) asksNamespaces() bool {
	return a.pods != nil && a.pods.Namespace == "" && a.pods.Namespaces != nil && len(a.pods.Namespaces.Requirements) > 0 ||
		a.expr != nil && looksAt(a.expr, model.PrefixNamespace) || slices.ContainsFunc(a.parts, (*atom).asksNamespaces)
}

func (a *atom) asksAccounts() bool { return a.expr != nil && looksAt(a.expr, model.PrefixAccount) }

// trueOf reports whether an atom about pods is true of a pod.
func (a *atom) trueOf(c *cluster.View, pod *model.Pod) bool {
	switch {
	case a.pods != nil:
		return selects(c, a.pods, pod)
	case a.expr != nil:
		return a.expr.MatchesFunc(podLabels(c, pod))
	case a.named != nil:
		return slices.Contains(port.OfPod(pod, *a.named), a.number)
	}
	return slices.ContainsFunc(a.parts, func(p *atom) bool { return p.trueOf(c, pod) })
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

// atoms interns the atoms of the node, and keeps them from one computation to the next.
type atoms struct {
	c      *cluster.View
	dirty  *model.Dirty
	byText map[string]*atom
	next   int32
	round  uint64
	used   int // atoms that the round used
	// networks are those of the atoms that the round used.
	networks int
	// What the atoms' addresses come from alongside pods: changes of these change them.
	depends dependencies

	// What this computation changed.
	added []*atom
	moved []formerly // the contents of others

	slices map[model.Name][]*model.EndpointSlice // of the Services asked for; nil = not looked for yet
}

// formerly is an atom with the CIDRs that it had.
type formerly struct {
	*atom
	cidrs []netip.Prefix
}

func newAtoms() *atoms { return &atoms{byText: map[string]*atom{}} }

// begin starts a computation.
func (x *atoms) begin(c *cluster.View, dirty *model.Dirty) {
	x.c, x.dirty, x.slices = c, dirty, nil
	x.round++
	x.used, x.networks = 0, 0
	x.added, x.moved = nil, nil
	x.depends = dependencies{nodes: hostsByNode(c), services: map[model.Name]bool{}, slices: map[model.Name]bool{}}
}

// end forgets, and returns, the atoms that the computation did not use.
func (x *atoms) end() (gone []*atom) {
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
// that stands for all of its text.
func (x *atoms) use(a *atom) *atom {
	have, known := x.byText[a.text]
	if known {
		a = have
	} else {
		a.index = x.next
		x.next++
		a.classes = map[*class]struct{}{}
		x.byText[a.text] = a
		x.added = append(x.added, a)
	}
	if a.round == x.round {
		return a
	}
	a.round = x.round
	x.used++
	x.updateAddrs(a, known)
	x.networks += a.networks()
	return a
}

// restart begins the computation again for what may be less: see settle.
func (x *atoms) restart() {
	x.round++
	x.used, x.networks = 0, 0
}

// settle forgets what was used before the computation began again, and not since.
func (x *atoms) settle() {
	x.added = slices.DeleteFunc(x.added, func(a *atom) bool {
		if a.round == x.round {
			return false
		}
		delete(x.byText, a.text)
		return true
	})
	x.moved = slices.DeleteFunc(x.moved, func(m formerly) bool {
		if m.round == x.round {
			return false
		}
		m.atom.cidrs = m.cidrs
		return true
	})
}

// again is use for an atom that an earlier computation used.
func (x *atoms) again(a *atom) *atom {
	switch a.round {
	case x.round:
	case x.round - 1: // it is the one that stands for its text
		a.round = x.round
		x.used++
		x.updateAddrs(a, true)
		x.networks += a.networks()
	default:
		return x.use(a)
	}
	return a
}

// updateAddrs brings the addresses of an atom up to date.
func (x *atoms) updateAddrs(a *atom, known bool) {
	cidrs, made := x.contents(a, !known)
	if made && !slices.Equal(cidrs, a.cidrs) {
		if known {
			x.moved = append(x.moved, formerly{a, a.cidrs})
		}
		a.cidrs = cidrs
	}
}

// contents returns the CIDRs of an atom that are made from objects, when these may have changed or
// all is to be made; and notes which they are.
func (x *atoms) contents(a *atom, all bool) (cidrs []netip.Prefix, made bool) {
	switch {
	case a.expr != nil && (all || x.dirty.Has(model.KindNetworkSets|model.KindHostEndpoints|model.KindNamespaces) || x.dirty.Has(model.KindNodes) && hostsByNode(x.c)):
		return x.setsWith(a.expr), true
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

// others returns what must hold of the other end of a rule; no clauses: everybody.
func (x *atoms) others(r *model.Rule) []clause {
	var out []clause
	if len(r.Peers) > 0 {
		out = append(out, x.peers(r))
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
		out = append(out, clause{{atom: x.use(&atom{text: "endpoints of " + e.Service.String(), service: e.Service})}})
	}
	return out
}

// newPeer returns an atom of a rule's peer, not interned, nil for one that no carried address can
// be.
func (x *atoms) newPeer(p *model.Peer) *atom {
	switch {
	case p.Pods != nil:
		return &atom{text: selectorText(p.Pods), pods: p.Pods}
	case p.Nodes != nil:
		var text strings.Builder
		text.WriteString("nodes with ")
		writeLabelSelector(&text, p.Nodes)
		return &atom{text: text.String(), nodes: p.Nodes}
	}
	return x.newNets([]netip.Prefix{p.CIDR}, p.Except)
}

// nets returns the atom of the addresses in CIDRs, nil when none of them is carried.
func (x *atoms) nets(in, except []netip.Prefix) *atom {
	if a := x.newNets(in, except); a != nil {
		return x.use(a)
	}
	return nil
}

// newNets is nets, not interned.
func (x *atoms) newNets(in, except []netip.Prefix) *atom {
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
	return a
}

// carried returns the prefixes that go into tables, masked, sorted, each once.
func (x *atoms) carried(all []netip.Prefix) []netip.Prefix {
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
		return x.use(have)
	}
	a.expr = parseExpression(text)
	return x.use(a)
}

// setsWith returns the addresses of the network sets and the host endpoints that an expression
// picks.
func (x *atoms) setsWith(expr *selector.Selector) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range x.c.NetworkSets {
		if expr.MatchesFunc(setLabels(x.c, s)) {
			all = append(all, s.Nets...)
		}
	}
	for _, h := range x.c.HostEndpoints {
		if expr.MatchesFunc(hostLabels(h)) {
			all = append(all, x.hosts(h.AddrsIn(x.c.Cluster))...)
		}
	}
	return x.carried(all)
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
func (x *atoms) nodesWith(sel *model.LabelSelector) []netip.Prefix {
	var all []netip.Addr
	for _, n := range x.c.Nodes {
		if labelsMatch(sel, n.Labels) {
			all = append(all, n.Addrs...)
		}
	}
	return x.hosts(all)
}

// endpoints returns the addresses in those slices of a Service that count.
func (x *atoms) endpoints(service model.Name, counts func(*model.EndpointSlice) bool) []netip.Prefix {
	var all []netip.Addr
	for _, sl := range x.slicesOf(service) {
		if counts(sl) {
			for i := range sl.Endpoints {
				all = append(all, sl.Endpoints[i].Addrs...)
			}
		}
	}
	return x.hosts(all)
}

// slicesOf returns the slices of a Service, and notes that policy depends on them.
func (x *atoms) slicesOf(service model.Name) []*model.EndpointSlice {
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

// ports makes the atoms of those that call a port by a name, or that are a Service's endpoints at
// one.
func (x *atoms) ports(n port.Name, pods *podIndex) {
	if n.Service == (model.Name{}) {
		for number := range pods.numbersOf(n) {
			x.port(n, number)
		}
		return
	}
	for _, sl := range x.slicesOf(n.Service) {
		for _, p := range sl.Ports {
			if n.Proto == model.ProtocolAny || n.Proto == p.Protocol {
				x.port(n, port.Number{Proto: p.Protocol, Port: p.Port})
			}
		}
	}
}

// port returns the atom of those that call a port by a name.
func (x *atoms) port(n port.Name, number port.Number) *atom {
	return x.use(&atom{text: namedText(n, number), named: &n, number: number})
}

func namedText(n port.Name, number port.Number) string {
	return n.Text() + " = " + table.PortText(number.Port, number.Proto)
}
