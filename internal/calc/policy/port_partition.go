// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/model"
)

// cell is a span of destination ports with one verdict or, where sources is not nil, with verdicts
// by source port.
type cell struct {
	segment
	sources []segment // of all source ports, in their order; equal ones of one protocol are the same list
}

// cells returns the verdicts on all ports of a protocol. ok is false when it takes more than most
// steps of work, or too many source ports are distinguished.
//
// Source ports for which the same rules match have the same verdicts on all destination ports: they
// are one column, whatever number of ranges they are in. Destination ports on which all columns
// agree have one list of sources.
func (s *set) cells(about [][]*setRule, c *peer.Class, proto model.Protocol, most int) (out []cell, ok bool) {
	cuts, of, starts, ok := sourceColumns(about, c, proto, most)
	if !ok {
		return nil, false
	}
	columns := make([][]segment, len(starts))
	var edges []uint16
	for i, from := range starts {
		columns[i] = s.segments(about, c, proto, from)
		for _, x := range columns[i] {
			edges = append(edges, x.First)
		}
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	if len(edges)*len(columns) > maxCellWork {
		return nil, false
	}
	at := make([]int, len(columns)) // in each column, the segment that holds the edge
	out = make([]cell, 0, len(edges))
	rows := newRows(cuts, of)
	for n, first := range edges {
		last := uint16(65535)
		if n+1 < len(edges) {
			last = edges[n+1] - 1
		}
		for i := range columns {
			for columns[i][at[i]].Last < first {
				at[i]++
			}
			rows.verdicts[i] = columns[i][at[i]].verdict
		}
		x := cell{segment: segment{port.Span{First: first, Last: last}, rows.verdicts[0]}}
		if x.sources, ok = rows.sources(most); !ok {
			return nil, false
		}
		if x.sources != nil {
			x.verdict = verdict{}
		}
		if n := len(out); n > 0 && out[n-1].verdict == x.verdict && sameSources(out[n-1].sources, x.sources) {
			out[n-1].Last = last
			continue
		}
		out = append(out, x)
	}
	return out, true
}

// sameSources reports whether two cells of one protocol have one list.
func sameSources(a, b []segment) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// rows makes the lists of sources of cells, of each that there is one.
type rows struct {
	cuts     []uint16 // where the ranges of source ports begin
	of       []int    // the column of each
	verdicts []verdict
	known    map[string][]segment // nil while there are none
	total    int
}

func newRows(cuts []uint16, of []int) *rows {
	r := &rows{cuts: cuts, of: of}
	columns := 0
	for _, x := range of {
		columns = max(columns, x+1)
	}
	r.verdicts = make([]verdict, columns)
	return r
}

// sources returns the list of the verdicts of all columns, nil where they agree. ok is false when
// the lists have more than most segments together.
func (r *rows) sources(most int) (list []segment, ok bool) {
	if !slices.ContainsFunc(r.verdicts, func(v verdict) bool { return v != r.verdicts[0] }) {
		return nil, true
	}
	key := verdictsKey(r.verdicts)
	if list, known := r.known[key]; known {
		return list, true
	}
	for i, from := range r.cuts {
		to := uint16(65535)
		if i+1 < len(r.cuts) {
			to = r.cuts[i+1] - 1
		}
		list = append(list, segment{port.Span{First: from, Last: to}, r.verdicts[r.of[i]]})
	}
	list = join(list)
	if r.known == nil {
		r.known = map[string][]segment{}
	}
	r.known[key] = list
	r.total += len(list)
	return list, r.total <= most
}

// verdictsKey is the same for equal lists alone.
func verdictsKey(all []verdict) string {
	key := make([]byte, 0, 5*len(all))
	for _, v := range all {
		flags := byte(0)
		for i, is := range [...]bool{v.allow, v.log, v.on} {
			if is {
				flags |= 1 << i
			}
		}
		key = append(key, byte(v.rule), byte(v.rule>>8), byte(v.rule>>16), byte(v.rule>>24), flags)
	}
	return string(key)
}

// sourceColumns returns where the ranges of source ports begin that rules distinguish for a class,
// of each the number of its column, and of each column one source port. ok is false where there are
// too many.
func sourceColumns(about [][]*setRule, c *peer.Class, proto model.Protocol, most int) (cuts []uint16, of []int, starts []uint16, ok bool) {
	var conditions [][]port.Span
	cuts = []uint16{0}
	for _, rules := range about {
		for _, r := range rules {
			if !r.src.Conditional() {
				continue
			}
			spans := r.src.Spans(c, proto)
			conditions = append(conditions, spans)
			for _, x := range spans {
				cuts = append(cuts, x.First)
				if x.Last < 65535 {
					cuts = append(cuts, x.Last+1)
				}
			}
			if len(cuts) > most {
				return nil, nil, nil, false
			}
		}
	}
	if len(conditions) == 0 {
		return cuts, []int{0}, cuts, true
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	if len(cuts)*len(conditions) > maxCellWork {
		return nil, nil, nil, false
	}
	of = make([]int, len(cuts))
	known := map[string]int{}
	at := make([]int, len(conditions)) // the first span of each that does not end before the cut
	key := make([]byte, (len(conditions)+7)/8)
	for i, from := range cuts {
		clear(key)
		for j, spans := range conditions {
			for at[j] < len(spans) && spans[at[j]].Last < from {
				at[j]++
			}
			if at[j] < len(spans) && spans[at[j]].First <= from {
				key[j/8] |= 1 << (j % 8)
			}
		}
		n, have := known[string(key)]
		if !have {
			n = len(starts)
			known[string(key)] = n
			starts = append(starts, from)
		}
		of[i] = n
	}
	return cuts, of, starts, len(starts) <= maxSourceColumns
}
