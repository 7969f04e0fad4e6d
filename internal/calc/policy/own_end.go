// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"

	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// holds reports whether a rule is about an address of a pod of ours, as far as its own end says.
func (s *sets) holds(m *model.Rule, pod *model.Pod, a netip.Addr) bool {
	if m.IPVersion != 0 && (m.IPVersion == 4) != a.Is4() {
		return false
	}
	if len(m.Ports) > 0 && onlyICMPOf(m.Ports, !a.Is4()) {
		return false
	}
	e := m.Own
	if e == nil {
		return true
	}
	if e.InNets && !model.Within(s.atoms.Carried(e.Nets), a) || model.Within(s.atoms.Carried(e.NotNets), a) || e.Service != (model.Name{}) {
		return false
	}
	return (e.Selector == "" || s.picks(e.Selector, pod, a)) && (e.NotSelector == "" || !s.picks(e.NotSelector, pod, a))
}

// onlyICMPOf reports whether all of the ports are messages of the ICMP that is not this family's.
func onlyICMPOf(ports []model.PortRange, six bool) bool {
	foreign := model.ProtocolICMPv6
	if six {
		foreign = model.ProtocolICMP
	}
	for _, p := range ports {
		if p.Protocol != foreign {
			return false
		}
	}
	return true
}

// picks reports whether an expression is true of an address of a pod of ours: by the pod, or by a
// network set.
func (s *sets) picks(text string, pod *model.Pod, a netip.Addr) bool {
	o, ok := s.own[text]
	if !ok {
		expr := peer.ParseExpression(text)
		o = ownExpression{expr, s.atoms.SetsWith(expr)}
		s.own[text] = o
	}
	return pod != nil && o.expr.MatchesFunc(peer.PodLabels(s.c, pod)) || model.Within(o.nets, a)
}

// ownExpression is an expression about the own end of rules.
type ownExpression struct {
	expr *selector.Selector
	nets []netip.Prefix
}
