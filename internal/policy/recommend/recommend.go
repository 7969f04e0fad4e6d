// SPDX-License-Identifier: Apache-2.0

// Package recommend makes policies for a namespace of the flows that were recorded: they allow what
// was seen and nothing else, in as few and as readable rules as that takes, with comments on what
// the records leave open. Flows that policy denied are not allowed. It reads no cluster and no
// records.
package recommend

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/policy/past"
)

// Options say what is wanted.
type Options struct {
	Namespace string
	Calico    bool // NetworkPolicies of projectcalico.org/v3
	Staged    bool // StagedNetworkPolicies of it: in force nowhere
}

// Set are the policies for a namespace.
type Set struct {
	Options
	// Unsure is what the records leave open, a line each, in addition to what is said at rules.
	Unsure []string
	// Flows are how many it is made of, seen from First to Last.
	Flows       uint64
	First, Last time.Time

	policies []*policy
}

// policy is for the pods of a family; without one it isolates every pod of the namespace.
type policy struct {
	name  string
	of    *family
	rules [2][]*rule // by direction
	notes []string
}

// The directions, as indices.
const (
	ingress = iota
	egress
)

// rule allows some peers some ports.
type rule struct {
	peers []*peer
	ports []port
}

// port is one port; of ICMP type * 256 + code; 0 of protocols without.
type port struct {
	proto model.Protocol
	port  uint16
}

// peer is another end, with how often it was seen.
type peer struct {
	family  *family
	net     netip.Prefix   // where family is nil
	except  []netip.Prefix // of net
	comment string
	count   uint64
	order   string
}

// mostAddresses is how many addresses outside of the cluster a rule names.
const mostAddresses = 20

// flow is a pair of ends with a port.
type flow struct {
	from, to past.End
	port
}

// seen is what records say of a flow.
type seen struct {
	egress, ingress, denied bool
	host                    bool
	service                 string
	count                   uint64
	first, last             time.Time
}

// Make returns policies for what was seen in a namespace.
func Make(c *model.Cluster, questions []*past.Question, o Options) *Set {
	m := &maker{c: c, set: &Set{Options: o}, nodes: map[netip.Addr]string{}, of: map[*family]*policy{}, to: map[target]*reached{}}
	for _, n := range c.Nodes {
		for _, a := range n.Addrs {
			m.nodes[a] = n.Name
		}
	}
	in := func(e past.End) bool { return e.Pod != nil && e.Pod.Name.Namespace == o.Namespace }
	questions = slices.DeleteFunc(slices.Clone(questions), func(q *past.Question) bool { return !in(q.From) && !in(q.To) })
	namespaces := map[string]bool{o.Namespace: true}
	for _, q := range questions {
		for _, e := range []past.End{q.From, q.To} {
			if e.Pod != nil {
				namespaces[e.Pod.Name.Namespace] = true
			}
		}
	}
	m.families = newFamilies(c, questions, namespaces)
	flows := m.collect(questions)
	for _, f := range slices.SortedFunc(maps.Keys(flows), compareFlows) {
		m.sum(flows[f])
		if in(f.from) {
			m.allow(egress, f.from, f.to, f.port, flows[f])
		}
		if in(f.to) && !m.ownNode(f) {
			m.allow(ingress, f.to, f.from, f.port, flows[f])
		}
	}
	m.finish()
	return m.set
}

func compareFlows(a, b flow) int {
	return cmp.Or(a.from.Addr.Compare(b.from.Addr), a.to.Addr.Compare(b.to.Addr), cmp.Compare(a.proto, b.proto), cmp.Compare(a.port.port, b.port.port))
}

// maker makes a set.
type maker struct {
	c        *model.Cluster
	set      *Set
	nodes    map[netip.Addr]string // by their addresses
	families *families
	of       map[*family]*policy
	to       map[target]*reached
}

// target is a peer of a family in a direction.
type target struct {
	of   *family
	dir  int
	with *family
	addr netip.Addr // where with is nil
}

// reached is what was seen with a peer.
type reached struct {
	ports   map[port]bool
	count   uint64
	service string
	host    bool
}

// collect sums questions by flows that policy allowed; what cannot be one is noted.
func (m *maker) collect(questions []*past.Question) map[flow]*seen {
	all := map[flow]*seen{}
	left := map[string]uint64{}
	for _, q := range questions {
		why := q.Lacking
		for _, e := range []past.End{q.From, q.To} {
			if e.Pod == nil && m.nodes[e.Addr] == "" && m.inPool(e.Addr) {
				why = cmp.Or(why, "the pod that had an address")
			}
		}
		if why != "" {
			left[why] += q.Count()
			continue
		}
		if q.From.Addr == q.To.Addr {
			continue // no policy is asked
		}
		f := flow{q.From, q.To, port{q.Protocol, q.Port}}
		s := all[f]
		if s == nil {
			s = &seen{first: q.First, last: q.Last}
			all[f] = s
		}
		s.egress, s.ingress = s.egress || q.Egress == past.Allowed, s.ingress || q.Ingress == past.Allowed
		s.denied = s.denied || q.Egress == past.Denied || q.Ingress == past.Denied
		s.host, s.service = s.host || q.FromHost, cmp.Or(s.service, q.Service)
		if s.count = max(s.count, q.Count()); q.First.Before(s.first) {
			s.first = q.First
		}
		if q.Last.After(s.last) {
			s.last = q.Last
		}
	}
	for _, why := range slices.Sorted(maps.Keys(left)) {
		m.unsure("%d flows are not allowed, for want of %s", left[why], why)
	}
	denied := 0
	for f, s := range all {
		allowed := s.ingress || s.egress && (f.to.Pod == nil || !s.denied)
		if !allowed {
			delete(all, f)
			if s.denied {
				denied++
			}
		}
	}
	if denied > 0 {
		m.unsure("%d pairs of ends and ports were denied when they were recorded, and are not allowed", denied)
	}
	return all
}

// sum counts a flow that is allowed.
func (m *maker) sum(s *seen) {
	set := m.set
	if set.Flows == 0 || s.first.Before(set.First) {
		set.First = s.first
	}
	if s.last.After(set.Last) {
		set.Last = s.last
	}
	set.Flows += s.count
}

func (m *maker) unsure(format string, args ...any) {
	m.set.Unsure = append(m.set.Unsure, fmt.Sprintf(format, args...))
}

func (m *maker) inPool(a netip.Addr) bool {
	for _, p := range m.c.Pools {
		if p.Workload && p.CIDR.Contains(a) {
			return true
		}
	}
	return false
}

// ownNode reports whether the source is the destination's own node, which no policy holds up.
func (m *maker) ownNode(f flow) bool {
	return f.from.Pod == nil && m.nodes[f.from.Addr] != "" && m.nodes[f.from.Addr] == f.to.Pod.Node
}

// allow notes that a pod's family exchanged something with a peer.
func (m *maker) allow(dir int, own, other past.End, p port, s *seen) {
	t := target{of: m.families.find(own.Pod), dir: dir}
	if other.Pod != nil {
		t.with = m.families.find(other.Pod)
	} else {
		t.addr = other.Addr
	}
	if m.of[t.of] == nil {
		m.of[t.of] = &policy{of: t.of}
	}
	if m.inexpressible(p) {
		who := other.Addr.String()
		if t.with != nil {
			who = t.with.namespace + "/" + t.with.name()
		}
		note := fmt.Sprintf("%s with %s was seen, which a NetworkPolicy cannot allow by itself: use --calico", p.text(), who)
		if of := m.of[t.of]; !slices.Contains(of.notes, note) {
			of.notes = append(of.notes, note)
		}
		return
	}
	r := m.to[t]
	if r == nil {
		r = &reached{ports: map[port]bool{}}
		m.to[t] = r
	}
	r.ports[p] = true
	r.count += s.count
	r.service, r.host = cmp.Or(r.service, s.service), r.host || s.host
}

// inexpressible: NetworkPolicies of networking.k8s.io allow ports of three protocols.
func (m *maker) inexpressible(p port) bool {
	return !m.set.Calico && p.proto != model.ProtocolTCP && p.proto != model.ProtocolUDP && p.proto != model.ProtocolSCTP
}

func (p port) text() string {
	switch p.proto {
	case model.ProtocolICMP, model.ProtocolICMPv6:
		return fmt.Sprintf("%s %d/%d", p.proto, p.port>>8, p.port&0xff)
	case model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP:
		return fmt.Sprintf("%s %d", p.proto, p.port)
	}
	return p.proto.String()
}

// finish makes rules of what was noted, and names policies.
func (m *maker) finish() {
	for _, f := range m.families.of[m.set.Namespace] {
		if m.of[f] == nil {
			m.unsure("no flow of %s was seen: it gets and sends nothing", f.name())
			continue
		}
		m.set.policies = append(m.set.policies, m.of[f])
	}
	for _, p := range m.set.policies {
		for dir := range p.rules {
			p.rules[dir] = m.rules(p.of, dir)
		}
	}
	m.names()
	m.existing()
}

// rules makes the rules of one direction: peers with the same ports are in one.
func (m *maker) rules(of *family, dir int) []*rule {
	byPorts := map[string]*rule{}
	for t, r := range m.to {
		if t.of != of || t.dir != dir {
			continue
		}
		ports := slices.SortedFunc(maps.Keys(r.ports), func(a, b port) int { return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.port, b.port)) })
		key := fmt.Sprint(ports)
		to := byPorts[key]
		if to == nil {
			to = &rule{ports: ports}
			byPorts[key] = to
		}
		to.peers = append(to.peers, m.peer(t, r))
	}
	out := slices.Collect(maps.Values(byPorts))
	for _, r := range out {
		slices.SortFunc(r.peers, func(a, b *peer) int {
			if a.family == nil && b.family == nil {
				return a.net.Addr().Compare(b.net.Addr())
			}
			return strings.Compare(a.order, b.order)
		})
		m.summarize(r)
	}
	slices.SortFunc(out, func(a, b *rule) int {
		return cmp.Or(strings.Compare(a.peers[0].order, b.peers[0].order), strings.Compare(fmt.Sprint(a.ports), fmt.Sprint(b.ports)))
	})
	return out
}

// peer is a peer with its comment.
func (m *maker) peer(t target, r *reached) *peer {
	times := fmt.Sprintf("seen %d times", r.count)
	if r.count <= 1 {
		times = "seen once"
	}
	if t.with != nil {
		return &peer{family: t.with, count: r.count, comment: t.with.name() + ", " + times, order: "1" + t.with.namespace + "/" + t.with.name()}
	}
	p := &peer{net: netip.PrefixFrom(t.addr, t.addr.BitLen()), count: r.count, order: "3"}
	switch node := m.nodes[t.addr]; {
	case node != "":
		p.comment, p.order = "node "+node+", or a pod in its network", "2"
	case r.host:
		p.comment = "outside, or the pod's own node"
	default:
		p.comment = "outside of the cluster"
	}
	if r.service != "" {
		p.comment += ", Service " + r.service
	}
	p.comment += ", " + times
	return p
}

// summarize replaces many addresses of the outside by the outside itself, where it is known what
// the inside is.
func (m *maker) summarize(r *rule) {
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		of := netip.MustParsePrefix(all)
		outside := func(p *peer) bool { return p.order == "3" && p.net.Addr().Is4() == of.Addr().Is4() }
		n, count := 0, uint64(0)
		for _, p := range r.peers {
			if outside(p) {
				n, count = n+1, count+p.count
			}
		}
		var inside []netip.Prefix
		for _, p := range m.c.Pools {
			if p.Workload && p.CIDR.Addr().Is4() == of.Addr().Is4() {
				inside = append(inside, p.CIDR)
			}
		}
		if n <= mostAddresses || len(inside) == 0 {
			continue
		}
		slices.SortFunc(inside, netip.Prefix.Compare)
		r.peers = slices.DeleteFunc(r.peers, outside)
		r.peers = append(r.peers, &peer{net: of, except: slices.Compact(inside), order: "3", count: count,
			comment: fmt.Sprintf("UNSURE: %d addresses outside of the cluster, seen %d times; all but pods are allowed", n, count)})
	}
}

// names gives each policy a name of its own.
func (m *maker) names() {
	taken := map[string]bool{defaultDeny: true}
	for _, p := range m.set.policies {
		base := nameOf(p.of)
		p.name = base
		for i := 2; taken[p.name]; i++ {
			p.name = fmt.Sprintf("%s-%d", base, i)
		}
		taken[p.name] = true
	}
}

// defaultDeny isolates every pod of the namespace.
const defaultDeny = "default-deny"

// nameOf makes a name for an object (RFC 1123 label).
func nameOf(f *family) string {
	name := f.name()
	if first, _, more := strings.Cut(name, ","); more {
		name = first
	}
	if _, after, ok := strings.Cut(name, " "); ok {
		name = after
	}
	name = strings.Trim(strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			return c
		case c >= 'A' && c <= 'Z':
			return c - 'A' + 'a'
		}
		return '-'
	}, name), "-")
	name = strings.Trim(name[:min(len(name), 50)], "-")
	return cmp.Or(name, "pods")
}

// existing says what policies of the namespace are there already.
func (m *maker) existing() {
	made := map[string]bool{defaultDeny: true}
	for _, p := range m.set.policies {
		made[p.name] = true
	}
	var stay, replaced []string
	for id := range m.c.Policies {
		switch {
		case id.Name.Namespace != m.set.Namespace:
		case id.Kind == m.set.kindInForce() && made[id.Name.Name] && !m.set.Staged:
			replaced = append(replaced, id.Kind+" "+id.Name.Name)
		default:
			stay = append(stay, id.Kind+" "+id.Name.Name)
		}
	}
	slices.Sort(stay)
	slices.Sort(replaced)
	if len(replaced) > 0 {
		m.unsure("policies of these names are there, and are replaced when these are applied: %s", strings.Join(replaced, ", "))
	}
	if len(stay) > 0 {
		m.unsure("other policies of the namespace stay in force, and what they allow stays allowed: %s", strings.Join(stay, ", "))
	}
}

func (o *Options) kindInForce() string {
	if o.Calico {
		return model.KindCalicoNetworkPolicy
	}
	return model.KindNetworkPolicy
}
