// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Source names what a service port comes from: a Service, or a pod of this node with host ports.
type Source struct {
	HostPorts bool
	Name      model.Name
}

// port is one service port in one address family: what it answers on and what is behind it.
type port struct {
	src       Source
	text      string               // names its rule, unique
	id        nodestate.Frontend   // its canonical frontend, and the key of its backends
	frontends []nodestate.Frontend // that it asks for, id among them; sorted, without repetition
	value     nodestate.Service    // without the rule's number; of the frontends that are not external
	external  nodestate.Service    // the same of those that are
	internal  []nodestate.Frontend // the cluster IPs', and host ports
	asked     []nodestate.Frontend // those of spec.externalIPs
	limited   []nodestate.Frontend // those that are for the source ranges alone
	ranges    []netip.Prefix       // sorted
	rule      nodestate.Rule
	// created and uid say how old its Service is.
	created int64
	uid     string
	// reserved: nothing is to be sent here, the agent listens here itself for health.
	reserved bool
	health   nodestate.HealthCheck
	backends []nodestate.Backend
	// hostBackend says that one of them is one of this node's own addresses.
	hostBackend bool
	// relief says that the policy is Local, that no backend here is ready, and that others are, on
	// other nodes.
	relief bool
}

// Services keeps the ports of all services and the tables made from them.
type Services struct {
	ports     map[Source][]*port
	hosts     map[Source]struct{}            // the pods among the sources of ports
	claims    map[nodestate.Frontend][]*port // who wants a frontend
	slices    map[model.Name][]model.Name    // the EndpointSlices of a Service, sorted
	owners    map[model.Name]model.Name      // the Service of an EndpointSlice
	Touched   map[Source]struct{}            // those that the last update computed again
	nameless  addrIndex                      // the endpoints that name no node
	stale     staleEndpoints
	answers   func(model.Name, netip.Addr) bool // does this node answer neighbours for a Service's address?
	Ids       *table.Ids[nodestate.RuleID]
	env       serviceEnv
	protected *protected
	apiSlice  *model.EndpointSlice // see APIServersOf
	machine   machine
	pods      podAddrs
	endpoints addrIndex                                              // ports by the addresses of their endpoints
	holders   map[netip.Addr]map[model.Name]struct{}                 // the Services that ask for an address
	requested map[model.Name]requestedAddrs                          // the same the other way round
	narrow    map[nodestate.Frontend]map[nodestate.Frontend]struct{} // frontends at nodes' addresses, by that on all of them
	checks    map[Source]*port                                       // the ports of health checks
	refusals  map[Source][]nodestate.Refusal                         // what was refused while a source's ports were made
	lost      map[Source]map[nodestate.Frontend]string               // frontends that are others'
	refused   table.Table[nodestate.Object, []nodestate.Refusal]
	frontends table.Table[nodestate.Frontend, nodestate.Service]
	backends  table.Table[nodestate.Frontend, []nodestate.Backend]
	ranges    table.Table[nodestate.Frontend, []netip.Prefix]
	health    table.Table[model.Name, nodestate.HealthCheck]
	rules     *table.Table[nodestate.RuleID, nodestate.Rule] // of the state: those of policy are in it too
	Quota     serviceQuota
	announce  *announcements
	found     []candidate // room for those of the next port
}

func New(rules *table.Table[nodestate.RuleID, nodestate.Rule]) *Services {
	s := &Services{
		ports: map[Source][]*port{}, hosts: map[Source]struct{}{}, claims: map[nodestate.Frontend][]*port{},
		slices: map[model.Name][]model.Name{}, owners: map[model.Name]model.Name{},
		nameless:  newAddrIndex(),
		stale:     newStaleEndpoints(),
		protected: &protected{}, pods: newPodAddrs(), endpoints: newAddrIndex(),
		holders: map[netip.Addr]map[model.Name]struct{}{}, requested: map[model.Name]requestedAddrs{},
		narrow: map[nodestate.Frontend]map[nodestate.Frontend]struct{}{}, checks: map[Source]*port{},
		refusals: map[Source][]nodestate.Refusal{}, lost: map[Source]map[nodestate.Frontend]string{},
		refused:   table.New[nodestate.Object](slices.Equal[[]nodestate.Refusal]),
		Ids:       table.NewIDs(table.DigestServiceRule[nodestate.RuleID]),
		frontends: table.New[nodestate.Frontend](func(a, b nodestate.Service) bool { return a == b }),
		backends:  table.New[nodestate.Frontend](slices.Equal[[]nodestate.Backend]),
		health:    table.New[model.Name](func(a, b nodestate.HealthCheck) bool { return a == b }),
		ranges:    table.New[nodestate.Frontend](slices.Equal[[]netip.Prefix]),
		rules:     rules,
		announce:  newAnnouncements(),
	}
	s.answers = s.announce.answers
	return s
}

// UpdateAll brings the tables of Services in next up to date, with what this node answers for on
// its links: keys gets those that differ.
func (s *Services) UpdateAll(c *cluster.View, dirty *model.Dirty, next *nodestate.State, keys *nodestate.Keys) {
	s.update(c, dirty)
	if s.announce.update(c, dirty, s) {
		announced, watched := s.announce.tables()
		table.StoreMap(&next.Announced, announced, keys, nodestate.TableAnnounced)
		table.StoreMap(&next.Watched, watched, keys, nodestate.TableAnnounced)
	}
	s.reconsider(s.announce.concerned)
	table.Store(&s.frontends, &next.Frontends, keys, nodestate.TableServices)
	table.Store(&s.backends, &next.Backends, keys, nodestate.TableServices)
	table.Store(&s.health, &next.HealthChecks, keys, nodestate.TableServices)
	table.Store(&s.refused, &next.Refused, keys, nodestate.TableServices)
	table.Store(&s.ranges, &next.SourceRanges, keys, nodestate.TableServices)
}

// Overdrawn names the namespaces whose Services and host ports are refused something.
func (s *Services) Overdrawn() []nodestate.Overdrawn { return s.Quota.overdrawn }

// update brings the tables up to date.
func (s *Services) update(c *cluster.View, dirty *model.Dirty) {
	all := *dirty
	if around := serviceEnvOf(c); !around.equal(s.env) {
		s.env = around
		all.Add(model.KindServices | model.KindPods)
	}
	affected := map[nodestate.Frontend]struct{}{}
	servers := s.apiSlice
	more := s.updateProtected(c, &all, affected)
	sources := s.dirtySources(c, &all)
	if servers != s.apiSlice { // whether others of APIService count may be another answer, too
		sources[Source{Name: cluster.APIService}] = struct{}{}
	}
	for _, a := range more {
		for name := range s.holders[a] {
			sources[Source{Name: name}] = struct{}{}
		}
		for _, name := range s.endpoints.of([]netip.Addr{a}) {
			sources[Source{Name: s.owners[name]}] = struct{}{}
		}
	}
	for _, a := range s.updateRequested(c, sources) {
		for name := range s.holders[a] {
			sources[Source{Name: name}] = struct{}{}
		}
	}
	for _, src := range s.Quota.update(c, s, sources) {
		sources[src] = struct{}{}
	}
	s.Touched = sources
	var gone, come []*port
	for src := range sources {
		delete(s.refusals, src)
		have, want := s.ports[src], build(c, s, src)
		for _, p := range have {
			s.withdraw(p, affected)
		}
		if !src.HostPorts {
			s.updateHealth(c, src.Name, affected)
		}
		for _, p := range want {
			s.claim(p, affected)
		}
		if !slices.EqualFunc(have, want, func(a, b *port) bool { return a.text == b.text }) {
			gone, come = append(gone, have...), append(come, want...)
		}
		if len(want) == 0 {
			delete(s.ports, src)
			delete(s.hosts, src)
		} else {
			s.ports[src] = want
			if src.HostPorts {
				s.hosts[src] = struct{}{}
			}
		}
	}
	s.renumber(gone, come, affected)
	s.resolve(affected)
	s.report(sources)
}

// updateRequested keeps which addresses the Services among sources ask for, and returns those about
// which that is new.
func (s *Services) updateRequested(c *cluster.View, sources map[Source]struct{}) (moved []netip.Addr) {
	for src := range sources {
		if !src.HostPorts {
			moved = append(moved, s.recordRequested(src.Name, c.Services[src.Name])...)
		}
	}
	return moved
}

// dirtySources says which services to compute again, and keeps the index of slices.
func (s *Services) dirtySources(c *cluster.View, dirty *model.Dirty) map[Source]struct{} {
	out := map[Source]struct{}{}
	switch {
	case dirty.Has(model.KindSlices):
		clear(s.slices)
		clear(s.owners)
		s.nameless.clear()
		s.stale.byAddr.clear()
		s.endpoints.clear()
		for name := range c.Slices {
			s.indexSlice(c, name)
		}
	default:
		for name := range dirty.Slices {
			out[Source{Name: s.owners[name]}] = struct{}{}
			s.indexSlice(c, name)
			out[Source{Name: s.owners[name]}] = struct{}{}
		}
	}
	if dirty.Has(model.KindSlices | model.KindServices) {
		for name := range c.Services {
			out[Source{Name: name}] = struct{}{}
		}
		for src := range s.ports {
			if !src.HostPorts {
				out[src] = struct{}{}
			}
		}
		for src := range s.refusals { // a Service that is gone may have had no ports
			if !src.HostPorts {
				out[src] = struct{}{}
			}
		}
		for src := range s.checks {
			out[src] = struct{}{}
		}
		for name := range s.requested {
			out[Source{Name: name}] = struct{}{}
		}
	}
	for name := range dirty.Services {
		out[Source{Name: name}] = struct{}{}
	}
	var moved []netip.Addr
	if dirty.Has(model.KindLocal) {
		moved = s.stale.local.update(c.Local.Endpoints)
	}
	for _, name := range append(s.nameless.of(moved), s.stale.update(c, dirty, moved)...) {
		out[Source{Name: s.owners[name]}] = struct{}{}
	}
	for name := range dirty.Pods {
		out[Source{HostPorts: true, Name: name}] = struct{}{}
	}
	if dirty.Has(model.KindPods | model.KindLocal) {
		for _, ep := range c.Local.Endpoints {
			out[Source{HostPorts: true, Name: ep.Pod}] = struct{}{}
		}
		for src := range s.hosts {
			out[src] = struct{}{}
		}
		for src := range s.Quota.Refused {
			if src.HostPorts {
				out[src] = struct{}{}
			}
		}
		for src := range s.refusals {
			if src.HostPorts {
				out[src] = struct{}{}
			}
		}
	}
	return out
}

// indexSlice brings the index up to date with one slice, which may be gone.
func (s *Services) indexSlice(c *cluster.View, name model.Name) {
	if owner, ok := s.owners[name]; ok {
		of := s.slices[owner]
		if i, found := slices.BinarySearchFunc(of, name, table.CompareNames); found {
			of = slices.Delete(of, i, i+1)
		}
		if len(of) == 0 {
			delete(s.slices, owner)
		} else {
			s.slices[owner] = of
		}
		delete(s.owners, name)
	}
	sl := c.Slices[name]
	if sl != nil && (sl.NotCarried || sl.Service == (model.Name{})) {
		sl = nil
	}
	s.stale.byAddr.put(name, sl, func(e *model.ServiceEndpoint) bool { return e.Node == c.Local.Node })
	s.endpoints.put(name, sl, func(*model.ServiceEndpoint) bool { return true })
	s.nameless.put(name, sl, func(e *model.ServiceEndpoint) bool { return e.Node == "" })
	if sl == nil {
		return
	}
	of := s.slices[sl.Service]
	if i, found := slices.BinarySearchFunc(of, name, table.CompareNames); !found {
		s.slices[sl.Service] = slices.Insert(of, i, name)
	}
	s.owners[name] = sl.Service
}

// reconsider looks again at the frontends of Services that this node may answer for, or may not any
// more.
func (s *Services) reconsider(names map[model.Name]struct{}) {
	affected := map[nodestate.Frontend]struct{}{}
	for name := range names {
		for _, p := range s.ports[Source{Name: name}] {
			if p.relief {
				for _, f := range p.frontends {
					affected[f] = struct{}{}
				}
			}
		}
	}
	s.resolve(affected)
}

// renumber keeps the rules of service ports.
func (s *Services) renumber(gone, come []*port, affected map[nodestate.Frontend]struct{}) {
	var remove, add []string
	for _, p := range gone {
		remove = append(remove, p.text)
		s.rules.Delete(s.Ids.ByText[p.text])
	}
	for _, p := range come {
		add = append(add, p.text)
	}
	others := map[string]bool{}
	for _, text := range s.Ids.Update(remove, add) {
		others[text] = true
	}
	if len(others) > 0 { // rare: digests collide
		s.renumberOthers(others, affected)
	}
	for _, p := range come {
		s.rules.Put(s.Ids.ByText[p.text], p.rule)
	}
}

// renumberOthers writes the rules anew whose numbers changed because of other rules. Which numbers
// they had is not known any more, so all of services' are looked at.
func (s *Services) renumberOthers(moved map[string]bool, affected map[nodestate.Frontend]struct{}) {
	stale := map[nodestate.RuleID]bool{}
	for id := range s.rules.All() {
		stale[id] = id&table.PolicyRuleBit == 0
	}
	for _, of := range s.ports {
		for _, p := range of {
			id := s.Ids.ByText[p.text]
			stale[id] = false
			s.rules.Put(id, p.rule)
			if moved[p.text] {
				for _, f := range p.frontends {
					affected[f] = struct{}{}
				}
			}
		}
	}
	for id, is := range stale {
		if is {
			s.rules.Delete(id)
		}
	}
}

// build returns the ports of a source as the cluster has them now, none when it is gone.
func build(c *cluster.View, s *Services, src Source) []*port {
	if src.HostPorts {
		if s.Quota.Refused[src] {
			return nil
		}
		return s.removeProtectedHostPorts(hostPorts(c, src))
	}
	svc := c.Services[src.Name]
	if svc != nil && s.Quota.Refused[src] {
		svc = nil
	}
	if svc == nil {
		return nil
	}
	external, balanced := s.addresses(svc, func(field, value, message, action string) { s.refuse(src, field, value, message, action) })
	if len(external) > 0 && s.protected.external == nil {
		s.warnOpenExternalIPs(src, external)
	}
	var out []*port
	seen := map[string]bool{}
	for fam := range 2 {
		ips := c.CarriedOf(svc.ClusterIPs, fam)
		if len(ips) == 0 {
			continue
		}
		lb, asked := c.CarriedOf(balanced, fam), c.CarriedOf(external, fam)
		for i := range svc.Ports {
			p := servicePort(src, svc, &svc.Ports[i], ips, asked, lb)
			if svc.Restricted {
				p.restrict(s.env.sourceRanges(c, svc, lb, fam), lb)
			}
			if seen[p.text] {
				continue
			}
			seen[p.text] = true
			if !s.removeProtected(p, svc) {
				continue
			}
			p.backends, p.relief = s.choose(c, svc, &svc.Ports[i], fam)
			p.hostBackend = s.env.onHost(p.backends)
			out = append(out, p)
		}
	}
	return out
}

// servicePort describes one port by its cluster IPs and its other addresses of one family.
func servicePort(src Source, svc *model.Service, sp *model.ServicePort, ips, asked, lb []netip.Addr) *port {
	detail := "port " + sp.Name
	if sp.Name == "" {
		detail = "port " + table.PortText(sp.Port, sp.Protocol)
	}
	p := &port{src: src, created: svc.Created, uid: svc.UID, id: nodestate.Frontend{Addr: ips[0], Port: sp.Port, Proto: sp.Protocol},
		rule: nodestate.Rule{Kind: "Service", Name: svc.Name.String(), Detail: detail}}
	if !ips[0].Is4() {
		p.rule.Detail += " IPv6"
	}
	p.text = table.RuleText(p.rule)
	p.value = nodestate.Service{ID: p.id, Affinity: svc.Affinity, LocalPolicy: svc.InternalLocal}
	p.external = nodestate.Service{ID: p.id, Affinity: svc.Affinity, External: true, LocalPolicy: svc.ExternalLocal,
		Mode: svc.ExternalMode}
	if svc.Maglev { // any node leads to the same backend, wherever it is
		p.external.Maglev, p.external.LocalPolicy = true, false
		p.value.Maglev = !svc.InternalLocal // outside, a cluster IP may be routed to any node
	}
	for _, ip := range ips {
		p.internal = append(p.internal, nodestate.Frontend{Addr: ip, Port: sp.Port, Proto: sp.Protocol})
	}
	p.frontends = slices.Clone(p.internal)
	for _, ip := range asked {
		if f := (nodestate.Frontend{Addr: ip, Port: sp.Port, Proto: sp.Protocol}); !slices.Contains(lb, ip) {
			p.asked = append(p.asked, f)
		}
	}
	for _, ip := range slices.Concat(asked, lb) {
		p.frontends = append(p.frontends, nodestate.Frontend{Addr: ip, Port: sp.Port, Proto: sp.Protocol})
	}
	if sp.NodePort != 0 {
		p.frontends = append(p.frontends, nodestate.Frontend{Addr: cluster.Unspecified(ips[0]), Port: sp.NodePort, Proto: sp.Protocol})
	}
	slices.SortFunc(p.frontends, CompareFrontends)
	p.frontends = slices.Compact(p.frontends)
	return p
}

// valueAt is what is at one of a port's frontends. An address that is both its cluster IP and
// an external one is a cluster IP. At one that this node answers neighbours for, where policy Local
// leaves it no ready endpoint, new connections go to the ready ones of other nodes: whoever asked
// the address has no other node to turn to.
func (s *Services) valueAt(p *port, f nodestate.Frontend) nodestate.Service {
	if slices.Contains(p.internal, f) {
		return p.value
	}
	v := p.external
	v.Restricted = slices.Contains(p.limited, f)
	v.LocalPolicy = v.LocalPolicy && !(p.relief && s.answers(p.src.Name, f.Addr))
	return v
}
