package calc

import (
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// cell is a span of destination ports with one verdict or, where sources is not nil, with verdicts by source port.
type cell struct {
	segment
	sources []segment // of all source ports, in their order
}

// cells returns the verdicts on all ports of a protocol. ok is false when too many ranges of source ports are told apart.
func (s *set) cells(about [][]*setRule, c *class, proto model.Protocol) (out []cell, ok bool) {
	cuts := sourceCuts(about, c, proto)
	if len(cuts) > maxSourceCuts {
		return nil, false
	}
	columns := make([][]segment, len(cuts))
	var edges []uint16
	for i, from := range cuts {
		columns[i] = s.segments(about, c, proto, from)
		for _, x := range columns[i] {
			edges = append(edges, x.first)
		}
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	at := make([]int, len(cuts)) // in each column, the segment that holds the edge
	for n, first := range edges {
		last := uint16(65535)
		if n+1 < len(edges) {
			last = edges[n+1] - 1
		}
		row := make([]segment, 0, 1)
		for i, from := range cuts {
			for columns[i][at[i]].last < first {
				at[i]++
			}
			to := uint16(65535)
			if i+1 < len(cuts) {
				to = cuts[i+1] - 1
			}
			row = append(row, segment{span{from, to}, columns[i][at[i]].verdict})
		}
		x := cell{segment: segment{span{first, last}, row[0].verdict}}
		if row = join(row); len(row) > 1 {
			x.verdict, x.sources = verdict{}, row
		}
		if n := len(out); n > 0 && out[n-1].verdict == x.verdict && slices.Equal(out[n-1].sources, x.sources) {
			out[n-1].last = last
			continue
		}
		out = append(out, x)
	}
	return out, true
}

// sourceCuts returns where the ranges of source ports begin that rules tell apart for a class; 0 is always one.
func sourceCuts(about [][]*setRule, c *class, proto model.Protocol) []uint16 {
	cuts := []uint16{0}
	for _, rules := range about {
		for _, r := range rules {
			if !r.src.conditional() {
				continue
			}
			for _, x := range r.src.spans(c, proto) {
				cuts = append(cuts, x.first)
				if x.last < 65535 {
					cuts = append(cuts, x.last+1)
				}
			}
		}
	}
	slices.Sort(cuts)
	return slices.Compact(cuts)
}
