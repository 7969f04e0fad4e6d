package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// prefixes are some, of one family.
type prefixes []netip.Prefix

func (p *prefixes) add(one netip.Prefix) { *p = append(*p, one.Masked()) }

// disjoint returns those that no other holds, sorted: interval sets take no others.
func (p prefixes) disjoint() prefixes {
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

// prefixText is a prefix as nft prints it: a single address without its length.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func macText(m [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}
