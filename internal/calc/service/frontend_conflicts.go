// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Frontends are claimed by service ports, and one of the claims holds. A cluster IP holds against
// everything else, so that no Service can take another's traffic by naming its address as an
// external IP; then come Services, the oldest first; then host ports. A port whose own cluster IP
// is held by another has no other frontend either: its id would lead to the other's backends. At a
// node's address an external IP comes after what answers on all of the node's addresses: an older
// Service's node port, and older pods' ports on it. A health check's port is claimed as a node port
// is, so that nobody takes it, and has no frontend.

// claim enters a port's claims; affected collects the frontends to be resolved again.
func (s *Services) claim(p *port, affected map[nodestate.Frontend]struct{}) {
	for _, f := range p.frontends {
		s.claims[f] = append(s.claims[f], p)
		affected[f] = struct{}{}
		if all := onAllAddresses(f); all != f && s.protected.isNode(f.Addr) {
			if s.narrow[all] == nil {
				s.narrow[all] = map[nodestate.Frontend]struct{}{}
			}
			s.narrow[all][f] = struct{}{}
		}
	}
}

// onAllAddresses is the frontend on all addresses of a node that a frontend on one of them competes
// with.
func onAllAddresses(f nodestate.Frontend) nodestate.Frontend {
	f.Addr = cluster.Unspecified(f.Addr)
	return f
}

// withdraw takes a port's claims back.
func (s *Services) withdraw(p *port, affected map[nodestate.Frontend]struct{}) {
	for _, f := range p.frontends {
		affected[f] = struct{}{}
		s.lose(p.src, f, nil)
		of := s.claims[f]
		if len(of) == 1 {
			delete(s.claims, f)
			all := onAllAddresses(f)
			if delete(s.narrow[all], f); len(s.narrow[all]) == 0 {
				delete(s.narrow, all)
			}
			continue
		}
		// The list may be shared with nothing: it never leaves s.
		s.claims[f] = slices.DeleteFunc(of, func(q *port) bool { return q == p })
	}
}

// resolve writes the affected frontends, and those that hang on them, into the tables.
func (s *Services) resolve(affected map[nodestate.Frontend]struct{}) {
	var more []nodestate.Frontend
	for f := range affected {
		for _, p := range s.claims[f] {
			if p.id == f {
				more = append(more, p.frontends...)
			}
		}
	}
	for _, f := range more {
		affected[f] = struct{}{}
	}
	more = more[:0]
	for f := range affected {
		for narrow := range s.narrow[f] {
			more = append(more, narrow)
		}
	}
	for _, f := range more {
		affected[f] = struct{}{}
	}
	concerned := map[Source]struct{}{}
	for f := range affected {
		p := s.holder(f)
		s.noteLosers(f, p, concerned)
		if p == nil || p.reserved {
			s.frontends.Delete(f)
			s.backends.Delete(f)
			s.ranges.Delete(f)
			continue
		}
		v := s.valueAt(p, f)
		v.HostBackend = p.hostBackend
		v.Rule = s.Ids.ByText[p.text]
		if model.Within(s.env.excluded, f.Addr) {
			s.frontends.Delete(f) // its other frontends may stay, and are named by this one
		} else {
			s.frontends.Put(f, v)
		}
		if p.id == f && len(p.backends) > 0 {
			s.backends.Put(f, p.backends)
		} else {
			s.backends.Delete(f)
		}
		if p.id == f && len(p.ranges) > 0 {
			s.ranges.Put(f, p.ranges)
		} else {
			s.ranges.Delete(f)
		}
	}
	s.report(concerned)
}

// noteLosers keeps who does not get a frontend, and brings the health checks up to date that are
// claimed there.
func (s *Services) noteLosers(f nodestate.Frontend, holder *port, concerned map[Source]struct{}) {
	for _, p := range s.claims[f] {
		concerned[p.src] = struct{}{}
		by := holder
		if p == holder {
			by = nil
		} else if holder == nil || holder.src == p.src {
			by = s.before(p, f)
		}
		s.lose(p.src, f, by)
		switch {
		case !p.reserved || p.id != f:
		case p == holder:
			s.health.Put(p.src.Name, p.health)
		default:
			s.health.Delete(p.src.Name)
		}
	}
}

// holder returns the port that holds a frontend, nil when none does.
func (s *Services) holder(f nodestate.Frontend) *port {
	var best *port
	for _, p := range s.claims[f] {
		if p.id != f && s.canonicalHolder(p.id) != p || s.before(p, f) != nil {
			continue
		}
		if best == nil || compareClaims(f, p, best) < 0 {
			best = p
		}
	}
	return best
}

// before returns who comes before an external IP at a node's address because it answers on all of
// the node's addresses, nil when nobody does.
func (s *Services) before(p *port, f nodestate.Frontend) *port {
	if p.src.HostPorts || f.Addr.IsUnspecified() || !s.protected.isNode(f.Addr) || slices.Contains(p.internal, f) {
		return nil
	}
	if slices.Contains(p.asked, f) {
		if node := s.protected.nodes[f.Addr]; s.pods.onNode(node, f, p) {
			return &port{rule: nodestate.Rule{Kind: "a pod on node", Name: node}}
		}
	}
	var oldest *port
	for _, q := range s.claims[onAllAddresses(f)] {
		if q.src != p.src && !q.src.HostPorts && compareAge(q, p) < 0 && (q.reserved || s.canonicalHolder(q.id) == q) {
			if oldest == nil || compareAge(q, oldest) < 0 {
				oldest = q
			}
		}
	}
	return oldest
}

// canonicalHolder returns the port that holds f as its canonical frontend.
func (s *Services) canonicalHolder(f nodestate.Frontend) *port {
	var best *port
	for _, p := range s.claims[f] {
		if p.id == f && (best == nil || compareClaims(f, p, best) < 0) {
			best = p
		}
	}
	return best
}

// compareClaims says which of two ports gets the frontend f, the lesser one: one that asks for f
// itself, then one for which f is one of several forms, then a pod's host port, and last what is
// only reserved; of those alike the older object's.
func compareClaims(f nodestate.Frontend, a, b *port) int {
	rank := func(p *port) int {
		switch {
		case p.reserved:
			return 3
		case p.src.HostPorts:
			return 2
		case p.id != f:
			return 1
		}
		return 0
	}
	return cmp.Or(rank(a)-rank(b), compareAge(a, b))
}

// compareAge says which of two ports' objects is the older one, and orders those of one age.
func compareAge(a, b *port) int {
	return cmp.Or(cmp.Compare(a.created, b.created), strings.Compare(a.uid, b.uid), table.CompareNames(a.src.Name, b.src.Name), strings.Compare(a.text, b.text))
}

func CompareFrontends(a, b nodestate.Frontend) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
}
