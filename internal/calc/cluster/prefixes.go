// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"slices"
)

// Prefixes finds the prefixes that contain an address by one map look-up for each length in use.
type Prefixes[V any] struct {
	Values  map[netip.Prefix]V
	lengths [2][]int // in use for IPv4, IPv6; longest first
}

func NewPrefixes[V any]() *Prefixes[V] { return &Prefixes[V]{Values: map[netip.Prefix]V{}} }

// Set stores v for a prefix, masked.
func (p *Prefixes[V]) Set(prefix netip.Prefix, v V) {
	prefix = prefix.Masked()
	p.Values[prefix] = v
	l := &p.lengths[Family(prefix.Addr())]
	if i, found := slices.BinarySearchFunc(*l, prefix.Bits(), func(have, want int) int { return want - have }); !found {
		*l = slices.Insert(*l, i, prefix.Bits())
	}
}

// Lookup returns the value of the longest prefix that contains a.
func (p *Prefixes[V]) Lookup(a netip.Addr) (v V, ok bool) {
	p.Containing(netip.PrefixFrom(a, a.BitLen()), func(_ netip.Prefix, found V) bool {
		v, ok = found, true
		return false
	})
	return v, ok
}

// Containing calls f for every stored prefix that contains prefix (itself included), longest first,
// until f returns false.
func (p *Prefixes[V]) Containing(prefix netip.Prefix, f func(netip.Prefix, V) bool) {
	for _, bits := range p.lengths[Family(prefix.Addr())] {
		if bits > prefix.Bits() {
			continue
		}
		q, err := prefix.Addr().Prefix(bits)
		if err != nil {
			continue
		}
		if v, ok := p.Values[q]; ok && !f(q, v) {
			return
		}
	}
}
