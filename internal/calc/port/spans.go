// SPDX-License-Identifier: Apache-2.0

package port

import (
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// Span is a closed interval of ports.
type Span struct{ First, Last uint16 }

// OtherProto represents every protocol that no rule names.
const OtherProto = model.ProtocolAny

// covers returns what a port range covers of a protocol. A range of ports of any protocol means
// those that have ports; only the full one means all of IP.
func covers(p model.PortRange, proto model.Protocol) (Span, bool) {
	full := p.First == 0 && p.Last == 65535
	switch {
	case p.First > p.Last:
		return Span{}, false
	case p.Protocol == model.ProtocolAny: // above the comparison with OtherProto
		hasPorts := proto == model.ProtocolTCP || proto == model.ProtocolUDP || proto == model.ProtocolSCTP
		return Span{p.First, p.Last}, full || hasPorts
	}
	return Span{p.First, p.Last}, p.Protocol == proto
}

// Merge sorts spans and joins those that touch.
func Merge(all []Span) []Span {
	slices.SortFunc(all, func(a, b Span) int { return int(a.First) - int(b.First) })
	out := all[:0]
	for _, s := range all {
		if n := len(out); n > 0 && int(s.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, s.Last)
			continue
		}
		out = append(out, s)
	}
	return out
}

// Split divides sorted disjoint spans into what lies in cut (sorted, disjoint) and what does not.
func Split(from, cut []Span) (in, out []Span) {
	for _, f := range from {
		at, done := f.First, false
		for len(cut) > 0 && cut[0].Last < at { // those after f are behind it too
			cut = cut[1:]
		}
		for _, c := range cut {
			if c.First > f.Last {
				break
			}
			if c.First > at {
				out = append(out, Span{at, c.First - 1})
			}
			in = append(in, Span{max(at, c.First), min(c.Last, f.Last)})
			if c.Last >= f.Last {
				done = true
				break
			}
			at = c.Last + 1
		}
		if !done {
			out = append(out, Span{at, f.Last})
		}
	}
	return in, out
}

// Prefix is the ports that share the first bits of Port.
type Prefix struct {
	Port uint16
	Bits uint8
}

// Prefixes returns the fewest prefixes that make up a span.
func Prefixes(s Span) []Prefix {
	var out []Prefix
	for at, end := int(s.First), int(s.Last)+1; at < end; {
		size := 1
		for bits := 16; ; bits-- {
			if bits == 0 || at%(size*2) != 0 || at+size*2 > end {
				out = append(out, Prefix{uint16(at), uint8(bits)})
				break
			}
			size *= 2
		}
		at += size
	}
	return out
}
