// SPDX-License-Identifier: Apache-2.0

package model

import "net/netip"

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
