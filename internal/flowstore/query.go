// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/table"
)

// Query says which records somebody wants. The zero value wants all.
type Query struct {
	flows.Filter
	Oldest bool // with the oldest segment and record first
}

// bounds in milliseconds: above the first, up to the second.
func (q *Query) bounds() (since, until int64) {
	since, until = math.MinInt64, math.MaxInt64
	if !q.Since.IsZero() {
		since = q.Since.UnixMilli()
	}
	if !q.Until.IsZero() {
		until = q.Until.UnixMilli()
	}
	return since, until
}

// held is a part in memory as it was when somebody asked.
type held struct {
	rows []table.Row
	table.Tables
}

// snapshot is what there is to ask, newest first. What is merged meanwhile stays until release is
// called.
func (s *Store) snapshot() (memory []held, segments []*segment, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range []*part{s.active, s.full} {
		if p != nil {
			memory = append(memory, held{rows: p.rows, Tables: p.Tables})
		}
	}
	segments = slices.Clone(s.segments)
	slices.Reverse(segments)
	for _, seg := range segments {
		seg.readers++
	}
	of := slices.Clone(segments)
	return memory, segments, func() { s.release(of) }
}

// read calls what reads a segment. One that is torn is put aside; one that was removed meanwhile
// has no more to say.
func (s *Store) read(seg *segment, read func() error) error {
	err := read()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errTorn):
		s.refuse(seg, err)
		return nil
	case errors.Is(err, fs.ErrNotExist) && !s.has(seg):
		s.mu.Lock()
		defer s.mu.Unlock()
		if seg.replaced {
			return fmt.Errorf("segment %d was merged while it was read, and removed for want of room; ask again", seg.number)
		}
		return nil
	}
	return fmt.Errorf("segment %d: %w", seg.number, err)
}

func (s *Store) has(seg *segment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.segments, seg)
}

// Each hands on the records that a query wants, until give returns false: the latest segment
// first, and of a segment the latest record first, unless the query says otherwise. The error is
// that of a disk; what can be read was given.
func (s *Store) Each(ctx context.Context, q Query, give func(*flows.Flow) bool) error {
	if err := q.Check(); err != nil {
		return err
	}
	since, until := q.bounds()
	memory, segments, release := s.snapshot()
	defer release()
	inMemory := func() (more bool) {
		for _, h := range memory {
			if !giveRows(&q, &h.Tables, h.rows, since, until, masksOf(&h.Tables, &q), give) {
				return false
			}
		}
		return true
	}
	if q.Oldest {
		slices.Reverse(memory)
		slices.Reverse(segments)
	} else if !inMemory() {
		return nil
	}
	var errs error
	for _, seg := range segments {
		if err := ctx.Err(); err != nil {
			return err
		}
		more, err := s.eachOf(seg, &q, since, until, give)
		if errs = errors.Join(errs, err); !more {
			return errs
		}
	}
	if q.Oldest {
		inMemory()
	}
	return errs
}

// eachOf is Each of one segment; false = no more are wanted.
func (s *Store) eachOf(seg *segment, q *Query, since, until int64, give func(*flows.Flow) bool) (more bool, err error) {
	if seg.Until <= since || seg.From > until || !seg.Names.mayBe(q.From) || !seg.Names.mayBe(q.To) || !seg.Names.mayBeOne(q.Namespaces) {
		return true, nil
	}
	more = true
	err = s.read(seg, func() error {
		t, err := seg.tables()
		if err != nil {
			return err
		}
		m := masksOf(t, q)
		if m.none() {
			return nil
		}
		var rows []table.Row
		if err := seg.find(t, m, since, until, true, func(r *table.Row) error { rows = append(rows, *r); return nil }); err != nil {
			return err
		}
		more = giveRows(q, t, rows, since, until, m, give)
		return nil
	})
	return more, err
}

// giveRows gives the wanted ones of rows, latest first or oldest first; false = no more are wanted.
func giveRows(q *Query, t *table.Tables, rows []table.Row, since, until int64, m *masks, give func(*flows.Flow) bool) bool {
	var at []int32
	for i := range rows {
		r := &rows[i]
		if r.End > since && r.End <= until && m.ends(r.From, r.To) && (m.whats == nil || m.whats[r.What]) {
			at = append(at, int32(i))
		}
	}
	slices.SortStableFunc(at, func(a, b int32) int {
		if q.Oldest {
			a, b = b, a
		}
		return cmp.Compare(rows[b].End, rows[a].End)
	})
	for _, i := range at {
		if f := t.Flow(&rows[i]); q.Wants(f) && !give(f) {
			return false
		}
	}
	return true
}

// readers is how many segments are read at a time for sums: each takes memory.
const readers = 2

// sums hands on the roll-ups of all parts in a time: those that segments have, by read, or of the
// rows where a part is not as a whole within it.
func (s *Store) sums(ctx context.Context, since, until time.Time, read func(*segment, *rollup) error, give func(*rollup)) error {
	q := Query{Filter: flows.Filter{Since: since, Until: until}}
	from, to := q.bounds()
	memory, segments, release := s.snapshot()
	defer release()
	for _, h := range memory {
		give(rollUp(func(yield func(*table.Row) bool) {
			for r := range all(h.rows) {
				if r.End > from && r.End <= to && !yield(r) {
					return
				}
			}
		}, &h.Tables))
	}
	var mu sync.Mutex // of give, and of errs
	var errs error
	var g errgroup.Group
	g.SetLimit(readers)
	for _, seg := range segments {
		if seg.Until <= from || seg.From > to || ctx.Err() != nil {
			continue
		}
		g.Go(func() error {
			err := s.read(seg, func() error {
				u, err := seg.sumsOf(from, to, read)
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				give(u)
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			errs = errors.Join(errs, err)
			return nil
		})
	}
	return errors.Join(g.Wait(), errs, ctx.Err())
}

// sumsOf is the roll-up of a segment's records in a time: that which read reads where it has them
// all.
func (s *segment) sumsOf(from, to int64, read func(*segment, *rollup) error) (*rollup, error) {
	if s.From > from && s.Until <= to {
		u := &rollup{}
		return u, read(s, u)
	}
	t, err := s.tables()
	if err != nil {
		return nil, err
	}
	var rows []table.Row
	if err := s.find(t, &masks{}, from, to, false, func(r *table.Row) error { rows = append(rows, *r); return nil }); err != nil {
		return nil, err
	}
	return rollUp(all(rows), t), nil
}

// RuleSum is what a rule decided.
type RuleSum struct {
	Verdict string      `json:"verdict"`
	Reason  string      `json:"reason,omitempty"`
	Rule    events.Rule `json:"rule"`
	Sum
}

// Rules sums by verdict and rule, those with the most packets first. Each end's node says what its
// rule decided, so a connection of two nodes may count for two rules.
func (s *Store) Rules(ctx context.Context, since, until time.Time, denied bool) ([]RuleSum, error) {
	type key struct {
		verdict, reason string
		rule            events.Rule
	}
	sums := map[key]Sum{}
	err := s.sums(ctx, since, until, func(seg *segment, u *rollup) error { return seg.readOutcomes(u, denied) }, func(u *rollup) {
		for i := range u.outcomes {
			o := &u.outcomes[i]
			if denied && o.Verdict == flows.Allowed {
				continue
			}
			k := key{o.Verdict, o.Reason, o.Rule}
			sum := sums[k]
			sum.add(u.byOutcome[i])
			sums[k] = sum
		}
	})
	out := make([]RuleSum, 0, len(sums))
	for k, sum := range sums {
		out = append(out, RuleSum{Verdict: k.verdict, Reason: k.reason, Rule: k.rule, Sum: sum})
	}
	slices.SortFunc(out, func(a, b RuleSum) int {
		return cmp.Or(-cmp.Compare(a.Packets, b.Packets), cmp.Compare(a.Verdict, b.Verdict), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Rule.Kind, b.Rule.Kind),
			cmp.Compare(a.Rule.Name, b.Rule.Name), cmp.Compare(a.Rule.Tier, b.Rule.Tier), cmp.Compare(a.Rule.Detail, b.Rule.Detail))
	})
	return out, err
}

// NamespaceSum is what went from a namespace to another; an empty one has the ends that are no
// pods.
type NamespaceSum struct {
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	Verdict string `json:"verdict"`
	Sum
}

// Namespaces sums by the namespaces of the ends, those with the most bytes first; from and to are
// those that are wanted, empty = all. Of connections between two nodes those of one count: of the
// node's side that has seen more.
func (s *Store) Namespaces(ctx context.Context, since, until time.Time, from, to string) ([]NamespaceSum, error) {
	type key struct{ from, to, verdict string }
	sums := map[key]*[sides]Sum{}
	err := s.sums(ctx, since, until, func(seg *segment, u *rollup) error { return seg.readSpaces(u, from, to) }, func(u *rollup) {
		for k, sum := range u.spaces {
			if from != "" && k.From != from || to != "" && k.To != to {
				continue
			}
			at := key{k.From, k.To, k.Verdict}
			if sums[at] == nil {
				sums[at] = &[sides]Sum{}
			}
			sums[at][k.Side].add(sum)
		}
	})
	out := make([]NamespaceSum, 0, len(sums))
	for k, of := range sums {
		out = append(out, NamespaceSum{From: k.from, To: k.to, Verdict: k.verdict, Sum: most(of)})
	}
	slices.SortFunc(out, func(a, b NamespaceSum) int {
		return cmp.Or(-cmp.Compare(a.Bytes, b.Bytes), -cmp.Compare(a.Packets, b.Packets), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Verdict, b.Verdict))
	})
	return out, err
}

func most(of *[sides]Sum) Sum {
	return slices.MaxFunc(of[:], func(a, b Sum) int {
		return cmp.Or(cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Packets, b.Packets), cmp.Compare(a.Records, b.Records))
	})
}

// PairSum is what went between two workloads.
type PairSum struct {
	From     Workload    `json:"from"`
	To       Workload    `json:"to"`
	Protocol string      `json:"protocol"`
	Port     uint16      `json:"port"`
	Verdict  string      `json:"verdict"`
	Reason   string      `json:"reason,omitempty"`
	Rule     events.Rule `json:"rule"`
	Sum
}

// pairsMost is how many pairs an answer distinguishes: memory is bounded, and who sends packets
// chooses ports.
const pairsMost = 200_000

// Pairs sums by workloads, port, verdict and rule, those with the most bytes first, between the
// namespaces from and to; empty = all. Of connections between two nodes those of one count, as in
// Namespaces. beyond are records of pairs that came when there were pairsMost of others.
func (s *Store) Pairs(ctx context.Context, since, until time.Time, from, to string) (out []PairSum, beyond Sum, err error) {
	type key struct {
		from, to                  Workload
		protocol, verdict, reason string
		rule                      events.Rule
		port                      uint16
	}
	sums := map[key]*[sides]Sum{}
	err = s.sums(ctx, since, until, (*segment).readPairs, func(u *rollup) {
		for p, sum := range u.pairs {
			o := &u.outcomes[p.Outcome]
			k := key{u.workloads[p.From], u.workloads[p.To], o.Protocol, o.Verdict, o.Reason, o.Rule, p.Port}
			if from != "" && k.from.Namespace != from || to != "" && k.to.Namespace != to {
				continue
			}
			switch {
			case sums[k] != nil:
			case len(sums) >= pairsMost:
				beyond.add(sum)
				continue
			default:
				sums[k] = &[sides]Sum{}
			}
			sums[k][o.Side].add(sum)
		}
	})
	out = make([]PairSum, 0, len(sums))
	for k, of := range sums {
		out = append(out, PairSum{From: k.from, To: k.to, Protocol: k.protocol, Port: k.port, Verdict: k.verdict, Reason: k.reason, Rule: k.rule, Sum: most(of)})
	}
	slices.SortFunc(out, func(a, b PairSum) int {
		return cmp.Or(-cmp.Compare(a.Bytes, b.Bytes), -cmp.Compare(a.Packets, b.Packets), cmp.Compare(a.From.Namespace+a.From.Name, b.From.Namespace+b.From.Name),
			cmp.Compare(a.To.Namespace+a.To.Name, b.To.Namespace+b.To.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Rule.Name, b.Rule.Name))
	})
	return out, beyond, err
}
