// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// labelsMatch reports whether labels meet every requirement of sel; nil picks everything.
func labelsMatch(sel *model.LabelSelector, labels map[string]string) bool {
	if sel == nil {
		return true
	}
	for i := range sel.Requirements {
		if !requirementMet(&sel.Requirements[i], labels) {
			return false
		}
	}
	return true
}

func requirementMet(r *model.Requirement, labels map[string]string) bool {
	v, has := labels[r.Key]
	switch r.Op {
	case model.In:
		return has && slices.Contains(r.Values, v)
	case model.NotIn:
		return !has || !slices.Contains(r.Values, v)
	case model.Exists:
		return has
	case model.DoesNotExist:
		return !has
	}
	return false
}

// SelectorText is the canonical text of a selector: equal texts pick the same pods.
func SelectorText(s *model.Selector) string {
	var b strings.Builder
	b.WriteString("pods ")
	switch {
	case s.Namespace != "":
		b.WriteString("in " + strconv.Quote(s.Namespace))
	case s.Namespaces == nil:
		b.WriteString("in any")
	default:
		b.WriteString("in ")
		writeLabelSelector(&b, s.Namespaces)
	}
	b.WriteString(" with ")
	writeLabelSelector(&b, s.Pods)
	return b.String()
}

func writeLabelSelector(b *strings.Builder, s *model.LabelSelector) {
	b.WriteByte('{')
	if s != nil {
		for i := range s.Requirements {
			r := &s.Requirements[i]
			if i > 0 {
				b.WriteString("; ")
			}
			b.WriteString(strconv.Quote(r.Key) + " " + string(r.Op))
			for _, v := range r.Values {
				b.WriteString(" " + strconv.Quote(v))
			}
		}
	}
	b.WriteByte('}')
}

// NamespaceMatches reports whether a namespace is picked. One that is not known (yet) has no labels
// that could be looked at, so it is picked only where labels do not matter.
func NamespaceMatches(c *cluster.View, sel *model.LabelSelector, name string) bool {
	if sel == nil || len(sel.Requirements) == 0 {
		return true
	}
	ns := c.Namespaces[name]
	return ns != nil && labelsMatch(sel, ns.Labels)
}

// Selects reports whether a selector picks a pod.
func Selects(c *cluster.View, sel *model.Selector, p *model.Pod) bool {
	if sel.Namespace != "" {
		if sel.Namespace != p.Name.Namespace {
			return false
		}
	} else if !NamespaceMatches(c, sel.Namespaces, p.Name.Namespace) {
		return false
	}
	return labelsMatch(sel.Pods, p.Labels)
}
