// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"slices"
)

// prefixes finds the prefixes that contain an address by one map look-up for each length in use.
type prefixes[V any] struct {
	values  map[netip.Prefix]V
	lengths [2][]int // in use for IPv4, IPv6; longest first
}

func newPrefixes[V any]() *prefixes[V] { return &prefixes[V]{values: map[netip.Prefix]V{}} }

// set stores v for a prefix, masked.
func (p *prefixes[V]) set(prefix netip.Prefix, v V) {
	prefix = prefix.Masked()
	p.values[prefix] = v
	l := &p.lengths[family(prefix.Addr())]
	if i, found := slices.BinarySearchFunc(*l, prefix.Bits(), func(have, want int) int { return want - have }); !found {
		*l = slices.Insert(*l, i, prefix.Bits())
	}
}

// lookup returns the value of the longest prefix that contains a.
func (p *prefixes[V]) lookup(a netip.Addr) (v V, ok bool) {
	p.containing(netip.PrefixFrom(a, a.BitLen()), func(_ netip.Prefix, found V) bool {
		v, ok = found, true
		return false
	})
	return v, ok
}

// containing calls f for every stored prefix that contains prefix (itself included), longest first,
// until f returns false.
func (p *prefixes[V]) containing(prefix netip.Prefix, f func(netip.Prefix, V) bool) {
	for _, bits := range p.lengths[family(prefix.Addr())] {
		if bits > prefix.Bits() {
			continue
		}
		q, err := prefix.Addr().Prefix(bits)
		if err != nil {
			continue
		}
		if v, ok := p.values[q]; ok && !f(q, v) {
			return
		}
	}
}
