// SPDX-License-Identifier: Apache-2.0

package model

import (
	"iter"
	"net/netip"
	"slices"
)

// What says from which addresses that are not its own a pod may send.
const (
	// AnnotationSources of a pod is what it asks for: a JSON list of CIDRs.
	AnnotationSources = "cni.projectcalico.org/allowedSourcePrefixes"
	// AnnotationSourceGrants of a namespace is what its pods may ask for: a JSON list of CIDRs.
	// Without it they may ask for nothing.
	AnnotationSourceGrants = "weir.dev/allowed-source-prefixes"
)

// MostSources is how many prefixes a pod may ask for, and a namespace grant.
const MostSources = 64

// Grants reports whether the pods of the namespace may ask for a prefix of sources.
func (n *Namespace) Grants(p netip.Prefix) bool {
	if n == nil {
		return false
	}
	for _, g := range n.SourceGrants {
		if g.Bits() <= p.Bits() && g.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

// What says under which other addresses a pod is reached.
const (
	// AnnotationFloating of a pod is what it asks for: a JSON list of addresses.
	AnnotationFloating = "cni.projectcalico.org/floatingIPs"
	// AnnotationFloatingGrants of a namespace is what its pods may ask for: a JSON list of CIDRs.
	// Without it they may ask for nothing.
	AnnotationFloatingGrants = "weir.dev/floating-ips"
)

// MostFloating is how many floating addresses a pod may ask for.
const MostFloating = 16

// GrantsFloating reports whether the pods of the namespace may ask for a floating address.
func (n *Namespace) GrantsFloating(a netip.Addr) bool {
	return n != nil && slices.ContainsFunc(n.FloatingGrants, func(g netip.Prefix) bool { return g.Contains(a) })
}

// Floating returns the floating addresses that the pod of a name asks for.
func (t *PodTable) Floating(name Name) []netip.Addr {
	r, ok := t.Ref(name)
	if !ok || !r.at().hasExtra {
		return nil
	}
	return t.extra[r.row].floating
}

// FloatingPods yields the pods that ask for floating addresses.
func (t *PodTable) FloatingPods() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		if t == nil {
			return
		}
		for row, extra := range t.extra {
			if len(extra.floating) > 0 && !yield(PodRef{t, row}.Pod()) {
				return
			}
		}
	}
}

// PerNode are the networks of which Amazon's egress-cni gives pods addresses, on each node the same
// ones.
var PerNode = []netip.Prefix{netip.MustParsePrefix("169.254.172.0/22"), netip.MustParsePrefix("fd00::ac:0/118")}

// IsPerNode reports whether an address is a pod's on its own node alone.
func IsPerNode(a netip.Addr) bool {
	return slices.ContainsFunc(PerNode, func(p netip.Prefix) bool { return p.Contains(a) })
}
