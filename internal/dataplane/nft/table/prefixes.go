// SPDX-License-Identifier: Apache-2.0

package table

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Prefixes are some, of one family.
type Prefixes []netip.Prefix

// Add appends a prefix.
func (p *Prefixes) Add(one netip.Prefix) { *p = append(*p, one.Masked()) }

// Disjoint returns those that no other holds, sorted: interval sets take no others.
func (p Prefixes) Disjoint() Prefixes {
	all := slices.Clone(p)
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	out := all[:0]
	for _, one := range all {
		if n := len(out); n > 0 && out[n-1].Contains(one.Addr()) {
			continue
		}
		out = append(out, one)
	}
	return out
}

// PrefixText is a prefix as nft prints it: a single address without its length.
func PrefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// MACText is a MAC address as nft prints it.
func MACText(m [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// ValuedPrefix is a prefix with a value.
type ValuedPrefix struct {
	Prefix netip.Prefix
	Value  string
}

// ValuedPrefixes are some, of one family.
type ValuedPrefixes []ValuedPrefix

// Disjoint returns prefixes that do not overlap and give every address what the longest of these
// gives it.
func (v ValuedPrefixes) Disjoint() ValuedPrefixes {
	all := slices.Clone(v)
	slices.SortFunc(all, func(a, b ValuedPrefix) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	var out ValuedPrefixes
	for i := 0; i < len(all); {
		i = all.cover(i, all[i], &out)
	}
	return out
}

// cover writes what p, whose prefix all[i] has or holds, is without the longer ones in it, and
// these. It returns the index of the first that is not in p.
func (v ValuedPrefixes) cover(i int, p ValuedPrefix, out *ValuedPrefixes) int {
	for i < len(v) && v[i].Prefix == p.Prefix { // itself
		p.Value = v[i].Value
		i++
	}
	if i == len(v) || !p.Prefix.Contains(v[i].Prefix.Addr()) {
		*out = append(*out, p)
		return i
	}
	for _, half := range halves(p.Prefix) {
		i = v.cover(i, ValuedPrefix{half, p.Value}, out)
	}
	return i
}

// halves are the two prefixes that are one bit longer.
func halves(p netip.Prefix) [2]netip.Prefix {
	low := p.Addr()
	b := low.AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	high, _ := netip.AddrFromSlice(b)
	return [2]netip.Prefix{netip.PrefixFrom(low, p.Bits()+1), netip.PrefixFrom(high, p.Bits()+1)}
}

// Holds reports whether one of disjoint prefixes holds an address, with another value than none.
func (v ValuedPrefixes) Holds(a netip.Addr, none string) bool {
	i, found := slices.BinarySearchFunc(v, a, func(p ValuedPrefix, a netip.Addr) int { return p.Prefix.Addr().Compare(a) })
	if !found {
		i--
	}
	return i >= 0 && i < len(v) && v[i].Prefix.Contains(a) && v[i].Value != none
}

// DisjointOf are the prefixes of a family, without those that others hold.
func DisjointOf(f Family, all []netip.Prefix) Prefixes {
	var out Prefixes
	for _, p := range all {
		if f.Has(p.Addr()) {
			out.Add(p)
		}
	}
	return out.Disjoint()
}
