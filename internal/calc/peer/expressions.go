// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

// ParseExpression reads an expression that was read before; one that cannot be picks nothing.
func ParseExpression(text string) *selector.Selector {
	s, err := selector.Parse(text)
	if err != nil {
		return selector.Not(selector.And())
	}
	return s
}

// Labels looks up the labels by which expressions see something.
type Labels = func(key string) (value string, ok bool)

// PodLabels are a pod's labels to expressions: what names it, its own, and those of its namespace
// and its service account below their prefixes.
func PodLabels(c *cluster.View, p *model.Pod) Labels {
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

// SetLabels are a network set's: its own and, in a namespace, those of the namespace.
func SetLabels(c *cluster.View, s *model.NetworkSet) Labels {
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
func namespaceLabel(c *cluster.View, name, key string) (string, bool) {
	own, is := strings.CutPrefix(key, model.PrefixNamespace)
	if !is {
		return "", false
	}
	return labelOfNamespace(c, name, own)
}

// NamespaceLabels are a namespace's to expressions about namespaces: its name, and its own.
func NamespaceLabels(c *cluster.View, name string) Labels {
	return func(key string) (string, bool) { return labelOfNamespace(c, name, key) }
}

func labelOfNamespace(c *cluster.View, name, key string) (string, bool) {
	ns := c.Namespaces[name]
	if ns == nil {
		return "", false
	}
	if key == model.LabelName {
		return name, true
	}
	v, ok := ns.Labels[key]
	return v, ok
}

// LooksAt reports whether an expression looks at labels below a prefix: those of namespaces or of
// service accounts.
func LooksAt(s *selector.Selector, prefix string) bool {
	return slices.ContainsFunc(s.Labels(), func(l string) bool { return strings.HasPrefix(l, prefix) })
}

// HostLabels are a host endpoint's to expressions: its own.
func HostLabels(h *model.HostEndpoint) Labels {
	return func(key string) (string, bool) { return ownLabel(h.Labels, key) }
}
