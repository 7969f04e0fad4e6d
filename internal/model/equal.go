// SPDX-License-Identifier: Apache-2.0

package model

import "slices"

// Equal reports whether two rules say the same in the same words.
func (r *Rule) Equal(o *Rule) bool {
	return r == o || r.Name == o.Name && r.Action == o.Action && r.IPVersion == o.IPVersion && r.NotProtocol == o.NotProtocol &&
		slices.Equal(r.Ports, o.Ports) && slices.Equal(r.NotPorts, o.NotPorts) &&
		slices.Equal(r.SourcePorts, o.SourcePorts) && slices.Equal(r.NotSourcePorts, o.NotSourcePorts) &&
		slices.EqualFunc(r.Peers, o.Peers, Peer.equal) && r.Other.equal(o.Other) && r.Own.equal(o.Own)
}

func (p Peer) equal(o Peer) bool {
	return p.CIDR == o.CIDR && slices.Equal(p.Except, o.Except) && p.Pods.equal(o.Pods) && p.Nodes.equal(o.Nodes) && slices.Equal(p.Domains, o.Domains)
}

func (e *Entity) equal(o *Entity) bool {
	if e == nil || o == nil || e == o {
		return e == o
	}
	return e.InNets == o.InNets && e.Selector == o.Selector && e.NotSelector == o.NotSelector && e.Service == o.Service &&
		slices.Equal(e.Nets, o.Nets) && slices.Equal(e.NotNets, o.NotNets)
}

func (s *Selector) equal(o *Selector) bool {
	if s == nil || o == nil || s == o {
		return s == o
	}
	return s.Namespace == o.Namespace && s.Expression == o.Expression && s.Namespaces.equal(o.Namespaces) && s.Pods.equal(o.Pods)
}

func (s *LabelSelector) equal(o *LabelSelector) bool {
	if s == nil || o == nil || s == o {
		return s == o
	}
	return slices.EqualFunc(s.Requirements, o.Requirements, func(a, b Requirement) bool {
		return a.Key == b.Key && a.Op == b.Op && slices.Equal(a.Values, b.Values)
	})
}
