// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"net/netip"
	"strings"
)

// BlockName returns the name of the IPAMBlock for a CIDR: its canonical text with "-" in place of
// ".", ":" and "/", as "10-244-0-0-26". The parts of an IPv6 address are written in full (RFC 5952
// would make "::" into two dashes, and a leading one), as
// "fd00-0010-0244-0000-0000-0000-0000-0000-122".
func BlockName(cidr netip.Prefix) string {
	cidr = cidr.Masked()
	text := netip.PrefixFrom(cidr.Addr(), cidr.Bits()).String()
	if cidr.Addr().Is6() {
		text = cidr.Addr().StringExpanded() + text[strings.IndexByte(text, '/'):]
	}
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(text)
}

// String renders the problem in one line: object, field, value, what is wrong, what to do.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Object)
	if p.Field != "" {
		b.WriteString(" " + p.Field)
	}
	if p.Value != "" {
		b.WriteString(" = " + quote(p.Value))
	}
	b.WriteString(": " + p.Message)
	if p.Action != "" {
		b.WriteString("; " + p.Action)
	}
	return b.String()
}

// quote shows a value of unknown origin on one line, of bounded length.
func quote(s string) string {
	const limit = 80
	r := []rune(s)
	if len(r) > limit {
		r = append(r[:limit], '…')
	}
	for i, c := range r {
		if c < ' ' || c == 0x7f {
			r[i] = '?'
		}
	}
	return `"` + string(r) + `"`
}
