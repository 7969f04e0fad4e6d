// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// candidate is an endpoint of a service port with what is known of it.
type candidate struct {
	addr  netip.Addr
	port  uint16
	here  bool // on this node
	zone  bool // meant for this node's zone
	node  bool // meant for this node
	hints hints
	ready bool // or published although it is not; false: serves while it terminates
	named bool // the node that it is on is known
	ended bool // see own
}

// maxFound is how many candidates there is room kept for from one Service to the next.
const maxFound = 1 << 10

// hints says which kinds of hints an endpoint has.
type hints struct{ zones, nodes bool }

// choose returns the backends of a service port in one family that are not gone, and says which of
// them new flows choose by KEP-1669: in the whole cluster, and on this node, the ready endpoints
// (all of them, when the Service publishes those that are not ready); where there are none, those
// that still serve while they terminate. Hints (trafficDistribution) cut the ready ones of the
// whole cluster down. Sorted, each once. relief: see port.
func (s *Services) choose(c *cluster.View, svc *model.Service, sp *model.ServicePort, fam int) (out []nodestate.Backend, relief bool) {
	all := s.candidates(c, svc, sp, fam)
	meant := meantFor(all)
	if svc.Maglev { // all nodes must have the same list
		meant = func(*candidate) bool { return true }
	}
	var ready, readyHere bool
	for _, e := range all {
		ready = ready || e.ready
		readyHere = readyHere || e.ready && e.here
	}
	relief = svc.ExternalLocal && !svc.Maglev && ready && !readyHere
	out = slices.Grow(out, len(all))
	for i := range all {
		e := &all[i]
		b := nodestate.Backend{Addr: e.addr, Port: e.port, Local: e.here && e.ready == readyHere, Spare: e.ready != ready || e.ready && !meant(e)}
		relief = relief && (b.Spare || e.named) // what is on no node would not see the client's address
		out = append(out, b)
	}
	return out, relief
}

// meantFor says which ready endpoints this node is to use: those meant for it, where all ready
// endpoints say for which nodes they are and one says for this; else those meant for its zone, by
// the same rule; else all.
func meantFor(all []candidate) func(*candidate) bool {
	var node, zone, ready bool
	every := hints{true, true}
	for i := range all {
		e := &all[i]
		if !e.ready {
			continue
		}
		ready = true
		every.nodes, every.zones = every.nodes && e.hints.nodes, every.zones && e.hints.zones
		node, zone = node || e.node, zone || e.zone
	}
	switch {
	case ready && every.nodes && node:
		return func(e *candidate) bool { return e.node }
	case ready && every.zones && zone:
		return func(e *candidate) bool { return e.zone }
	}
	return func(*candidate) bool { return true }
}

// candidates returns the endpoints of a service port in one family that are not gone, sorted, each
// once: while slices are rewritten an endpoint may be in two, and what either says for it counts.
// Those that have ended on this node are left out when there are others (but not of a Service whose
// list must be the same on all nodes). The next call overwrites them.
func (s *Services) candidates(c *cluster.View, svc *model.Service, sp *model.ServicePort, fam int) []candidate {
	all := s.found[:0]
	for _, name := range s.slices[svc.Name] {
		sl := c.Slices[name]
		if sl == nil || !cluster.IsAuthoritative(c.Cluster, sl) {
			continue
		}
		for _, ep := range sl.Ports {
			if ep.Name == sp.Name && ep.Protocol == sp.Protocol && ep.Port != 0 {
				all = s.appendCandidates(all, c, sl, ep.Protocol, candidate{port: ep.Port, ready: svc.PublishNotReady}, fam)
			}
		}
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.port, b.port)) })
	if s.found = all; cap(all) > maxFound {
		s.found = nil
	}
	out := all[:0]
	for _, e := range all {
		if n := len(out) - 1; n >= 0 && out[n].addr == e.addr && out[n].port == e.port {
			o := &out[n]
			o.here, o.ready, o.node, o.zone = o.here || e.here, o.ready || e.ready, o.node || e.node, o.zone || e.zone
			o.named, o.ended = o.named || e.named, o.ended || e.ended
			o.hints = hints{o.hints.zones || e.hints.zones, o.hints.nodes || e.hints.nodes}
			continue
		}
		out = append(out, e)
	}
	if !svc.Maglev && slices.ContainsFunc(out, func(e candidate) bool { return !e.ended }) {
		out = slices.DeleteFunc(out, func(e candidate) bool { return e.ended })
	}
	return out
}

// appendCandidates appends a slice's endpoints; like has the port, and ready when all are
// published.
func (s *Services) appendCandidates(out []candidate, c *cluster.View, sl *model.EndpointSlice, proto model.Protocol, like candidate, fam int) []candidate {
	for i := range sl.Endpoints {
		e := &sl.Endpoints[i]
		v := like
		v.ready = v.ready || e.Ready
		if !v.ready && !(e.Serving && e.Terminating) {
			continue
		}
		v.hints = hints{zones: len(e.ForZones()) > 0, nodes: len(e.ForNodes()) > 0}
		v.zone = s.env.zone != "" && slices.Contains(e.ForZones(), s.env.zone)
		v.node = slices.Contains(e.ForNodes(), c.Local.Node)
		for _, a := range e.Addrs {
			if a.IsValid() && c.Carried(a) && cluster.Family(a) == fam {
				if why := s.rejectEndpoint(sl, a, v.port, proto); why != "" {
					s.refuse(Source{Name: sl.Service}, "endpoints", netip.AddrPortFrom(a, v.port).String()+"/"+proto.String(), why+"; it is left out", actionBackend)
					continue
				}
				v.addr, v.here = a, isLocal(c, e, a)
				v.named, v.ended = v.here || e.Node != "", v.here && s.stale.isStale(a)
				out = append(out, v)
			}
		}
	}
	return out
}

// updateHealth brings what load balancers learn of a Service up to date.
func (s *Services) updateHealth(c *cluster.View, name model.Name, affected map[nodestate.Frontend]struct{}) {
	src, svc := Source{Name: name}, c.Services[name]
	if p := s.checks[src]; p != nil {
		s.withdraw(p, affected)
		delete(s.checks, src)
	}
	s.health.Delete(name)
	if svc == nil || svc.HealthPort == 0 {
		return
	}
	p := &port{src: src, text: table.RuleText(nodestate.Rule{Kind: "Service", Name: name.String(), Detail: "healthCheckNodePort"}), created: svc.Created, uid: svc.UID,
		reserved: true, rule: nodestate.Rule{Kind: "Service", Name: name.String()},
		health: nodestate.HealthCheck{Port: svc.HealthPort, Local: readyHere(c, s.slices[name], svc)}}
	for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		p.frontends = append(p.frontends, nodestate.Frontend{Addr: all, Port: svc.HealthPort, Proto: model.ProtocolTCP})
	}
	p.id = p.frontends[0]
	if why := s.protected.reservedFor(p.id, ""); why != "" {
		s.refuse(src, "spec.healthCheckNodePort", strconv.Itoa(int(svc.HealthPort)), "nodes need this port: "+why+"; it is not answered", actionPort)
		return
	}
	s.checks[src] = p
	s.claim(p, affected)
}

// readyHere counts the ready endpoints of a Service on this node, in the family that has more: a
// pod of two families is one. Those that terminate do not count, so that load balancers turn away
// from them.
func readyHere(c *cluster.View, names []model.Name, svc *model.Service) int {
	var found [2]map[netip.Addr]bool
	for _, name := range names {
		sl := c.Slices[name]
		if sl == nil {
			continue
		}
		for i := range sl.Endpoints {
			e := &sl.Endpoints[i]
			for _, a := range e.Addrs {
				if !a.IsValid() || !c.Carried(a) || !e.Ready && !svc.PublishNotReady || !isLocal(c, e, a) {
					continue
				}
				if found[cluster.Family(a)] == nil {
					found[cluster.Family(a)] = map[netip.Addr]bool{}
				}
				found[cluster.Family(a)][a] = true
			}
		}
	}
	return max(len(found[0]), len(found[1]))
}

// isLocal reports whether an endpoint is on this node. One that names no node, as those of the API
// server and those written by hand, is where its address is.
func isLocal(c *cluster.View, e *model.ServiceEndpoint, a netip.Addr) bool {
	if e.Node != "" {
		return e.Node == c.Local.Node
	}
	return c.Local.Endpoints[a] != nil || slices.Contains(c.Local.HostAddrs, a)
}

// hostPorts returns the host ports of a pod that runs here.
func hostPorts(c *cluster.View, src Source) []*port {
	pod := c.Pods.Get(src.Name)
	if pod == nil || pod.HostNetwork || pod.Finished || pod.Node != c.Local.Node || !HasHostPort(pod) {
		return nil
	}
	var own []netip.Addr
	for a, ep := range c.Local.Endpoints {
		if ep.Pod == src.Name {
			own = append(own, a)
		}
	}
	slices.SortFunc(own, netip.Addr.Compare)
	var out []*port
	seen := map[string]bool{}
	for i := range pod.Ports {
		pp := &pod.Ports[i]
		if pp.HostPort == 0 {
			continue
		}
		for fam := range 2 {
			p := hostPort(src, pp, c.CarriedOf(own, fam))
			if p != nil && !seen[p.text] {
				seen[p.text] = true
				out = append(out, p)
			}
		}
	}
	return out
}

// HasHostPort reports whether a pod asks for a port of its node.
func HasHostPort(pod *model.Pod) bool {
	return slices.ContainsFunc(pod.Ports, func(p model.PodPort) bool { return p.HostPort != 0 })
}

// hostPort describes one host port with the pod's addresses of one family.
func hostPort(src Source, pp *model.PodPort, own []netip.Addr) *port {
	if len(own) == 0 {
		return nil
	}
	at := pp.HostIP
	switch {
	case !at.IsValid() || at.IsUnspecified() && at.Is4() == own[0].Is4():
		at = cluster.Unspecified(own[0])
	case cluster.Family(at) != cluster.Family(own[0]):
		return nil
	}
	id := nodestate.Frontend{Addr: at, Port: pp.HostPort, Proto: pp.Protocol}
	detail := "port " + table.PortText(pp.HostPort, pp.Protocol)
	if !at.IsUnspecified() || !at.Is4() {
		detail += " on " + at.String()
	}
	p := &port{src: src, uid: src.Name.String(), id: id, frontends: []nodestate.Frontend{id}, internal: []nodestate.Frontend{id},
		value: nodestate.Service{ID: id, LocalOnly: true},
		rule:  nodestate.Rule{Kind: "HostPort", Name: src.Name.String(), Detail: detail}}
	p.text = table.RuleText(p.rule)
	for _, a := range own {
		p.backends = append(p.backends, nodestate.Backend{Addr: a, Port: pp.Port, Local: true})
	}
	return p
}
