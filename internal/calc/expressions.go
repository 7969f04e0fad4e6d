// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// parseExpression reads an expression that was read before; one that cannot be picks nothing.
func parseExpression(text string) *selector.Selector {
	s, err := selector.Parse(text)
	if err != nil {
		return selector.Not(selector.And())
	}
	return s
}

// labels looks up the labels by which expressions see something.
type labels = func(key string) (value string, ok bool)

// podLabels are a pod's labels to expressions: what names it, its own, and those of its namespace
// and its service account below their prefixes.
func podLabels(c *cluster, p *model.Pod) labels {
	return func(key string) (string, bool) {
		switch key {
		case model.LabelNamespace:
			return p.Name.Namespace, true
		case model.LabelOrchestrator:
			return "k8s", true
		case model.LabelServiceAccount:
			if p.ServiceAccount != "" {
				return p.ServiceAccount, true
			}
		}
		if v, ok := ownLabel(p.Labels, key); ok {
			return v, true
		}
		if v, ok := namespaceLabel(c, p.Name.Namespace, key); ok {
			return v, true
		}
		own, is := strings.CutPrefix(key, model.PrefixAccount)
		if !is || p.ServiceAccount == "" {
			return "", false
		}
		account := c.ServiceAccounts[model.Name{Namespace: p.Name.Namespace, Name: p.ServiceAccount}]
		if account == nil {
			return "", false
		}
		if own == model.LabelName {
			return account.Name.Name, true
		}
		v, ok := account.Labels[own]
		return v, ok
	}
}

// setLabels are a network set's: its own and, in a namespace, those of the namespace.
func setLabels(c *cluster, s *model.NetworkSet) labels {
	return func(key string) (string, bool) {
		if ns := s.Name.Namespace; ns != "" {
			if key == model.LabelNamespace {
				return ns, true
			}
			if v, ok := ownLabel(s.Labels, key); ok {
				return v, true
			}
			return namespaceLabel(c, ns, key)
		}
		return ownLabel(s.Labels, key)
	}
}

// ownLabel looks up a label of an object itself. Those below the prefixes are not its own to have:
// who makes pods in a namespace is not who says what the namespace is.
func ownLabel(of map[string]string, key string) (string, bool) {
	if strings.HasPrefix(key, model.PrefixNamespace) || strings.HasPrefix(key, model.PrefixAccount) {
		return "", false
	}
	v, ok := of[key]
	return v, ok
}

// namespaceLabel looks up a label below the prefix of namespaces.
func namespaceLabel(c *cluster, name, key string) (string, bool) {
	own, is := strings.CutPrefix(key, model.PrefixNamespace)
	ns := c.Namespaces[name]
	if !is || ns == nil {
		return "", false
	}
	if own == model.LabelName {
		return name, true
	}
	v, ok := ns.Labels[own]
	return v, ok
}

// looksAt reports whether an expression looks at labels below a prefix: those of namespaces or of
// service accounts.
func looksAt(s *selector.Selector, prefix string) bool {
	return slices.ContainsFunc(s.Labels(), func(l string) bool { return strings.HasPrefix(l, prefix) })
}

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
	if e.InNets && !model.Within(s.atoms.carried(e.Nets), a) || model.Within(s.atoms.carried(e.NotNets), a) || e.Service != (model.Name{}) {
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
		expr := parseExpression(text)
		o = ownExpression{expr, s.atoms.setsWith(expr)}
		s.own[text] = o
	}
	return pod != nil && o.expr.MatchesFunc(podLabels(s.c, pod)) || model.Within(o.nets, a)
}

// ownExpression is an expression about the own end of rules.
type ownExpression struct {
	expr *selector.Selector
	nets []netip.Prefix
}
