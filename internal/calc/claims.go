package calc

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Frontends are claimed by service ports, and one of the claims holds. A cluster IP holds against
// everything else, so that no Service can take another's traffic by naming its address as an external
// IP; then come Services, the smallest name first; then host ports. A port whose own cluster IP is
// held by another has no other frontend either: its id would lead to the other's backends.

// claim enters a port's claims; affected collects the frontends to be resolved again.
func (s *services) claim(p *port, affected map[nodestate.Frontend]struct{}) {
	for _, f := range p.frontends {
		s.claims[f] = append(s.claims[f], p)
		affected[f] = struct{}{}
	}
}

// withdraw takes a port's claims back.
func (s *services) withdraw(p *port, affected map[nodestate.Frontend]struct{}) {
	for _, f := range p.frontends {
		affected[f] = struct{}{}
		of := s.claims[f]
		if len(of) == 1 {
			delete(s.claims, f)
			continue
		}
		// The list may be shared with nothing: it never leaves s.
		s.claims[f] = slices.DeleteFunc(of, func(q *port) bool { return q == p })
	}
}

// resolve writes the affected frontends, and those that hang on them, into the tables.
func (s *services) resolve(affected map[nodestate.Frontend]struct{}) {
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
	for f := range affected {
		p := s.holder(f)
		if p == nil {
			s.frontends.Delete(f)
			s.backends.Delete(f)
			s.ranges.Delete(f)
			continue
		}
		v := s.valueAt(p, f)
		v.HostBackend = p.hostBackend
		v.Rule = s.ids.byText[p.text]
		if model.Within(s.around.excluded, f.Addr) {
			s.frontends.Delete(f) // its other frontends may stay, and are named by this one
		} else {
			s.frontends.set(f, v)
		}
		if p.id == f && len(p.backends) > 0 {
			s.backends.set(f, p.backends)
		} else {
			s.backends.Delete(f)
		}
		if p.id == f && len(p.ranges) > 0 {
			s.ranges.set(f, p.ranges)
		} else {
			s.ranges.Delete(f)
		}
	}
}

// holder returns the port that holds a frontend, nil when none does.
func (s *services) holder(f nodestate.Frontend) *port {
	var best *port
	for _, p := range s.claims[f] {
		if p.id != f && s.canonicalHolder(p.id) != p {
			continue
		}
		if best == nil || compareClaims(f, p, best) < 0 {
			best = p
		}
	}
	return best
}

// canonicalHolder returns the port that holds f as its canonical frontend.
func (s *services) canonicalHolder(f nodestate.Frontend) *port {
	var best *port
	for _, p := range s.claims[f] {
		if p.id == f && (best == nil || compareClaims(f, p, best) < 0) {
			best = p
		}
	}
	return best
}

func compareClaims(f nodestate.Frontend, a, b *port) int {
	rank := func(p *port) int {
		switch {
		case p.src.hostPorts:
			return 2
		case p.id != f:
			return 1
		}
		return 0
	}
	return cmp.Or(rank(a)-rank(b), compareNames(a.src.name, b.src.name), strings.Compare(a.text, b.text))
}

func compareNames(a, b model.Name) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

func compareFrontends(a, b nodestate.Frontend) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
}
