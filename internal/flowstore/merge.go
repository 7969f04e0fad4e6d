// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/weir-net/weir/internal/flows/table"
)

const (
	// mergeFrom is how many segments of a level become one: each record is written anew as often as
	// there are powers of it in Options.Records.
	mergeFrom = 8
	// spanShare of the age is the longest time that a merged segment is about: segments are removed
	// as a whole.
	spanShare = 8
	// coarseLeast is the least age of records that become coarser because the store fills up: who
	// follows records asks for those of the last minutes again.
	coarseLeast = 10 * time.Minute
	// mergeRetry is the time after a merge that failed.
	mergeRetry = 10 * time.Minute
)

// mergeUntil merges what there is to merge, until ctx ends.
func (s *Store) mergeUntil(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		wait := time.Duration(0)
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = s.mergeOnce(ctx); err != nil && ctx.Err() == nil {
				s.o.Log.Warn("segments of flow records are not merged; trying again", "err", err)
				more, wait = false, mergeRetry
			}
		}
		if wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
				continue
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.merge:
		case <-tick.C:
		}
	}
}

// errAlone is of a segment that is not merged with those before it: they have too many texts.
var errAlone = errors.New("too many texts for one segment")

// mergeOnce makes one segment of several, or a coarser one; false = there is nothing to do. It
// takes no lock while it reads and writes. A program that ends at any moment leaves the segments of
// before, or the new one and some of these, which it replaces when the store is opened.
func (s *Store) mergeOnce(ctx context.Context) (more bool, err error) {
	s.mu.Lock()
	run, coarse := s.pick()
	for _, seg := range run {
		seg.readers++
	}
	s.mu.Unlock()
	if len(run) == 0 {
		return false, nil
	}
	defer s.release(run)
	p, err := s.mergedPart(ctx, run, coarse)
	switch {
	case errors.Is(err, errAlone):
		return true, nil
	case err != nil:
		return false, err
	}
	last := run[len(run)-1]
	seg := &segment{number: last.number, merged: 1}
	for _, o := range run {
		seg.merged = max(seg.merged, o.merged+1)
	}
	if err := seg.write(s.o.Dir, p); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("there is no room for a merged segment beside those that it replaces: %w", err)
		}
		return false, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	// While writing is held, none is removed for its age or for want of room. One that was removed
	// before, or refused, is not to come back.
	s.mu.Lock()
	at := slices.Index(s.segments, run[0])
	same := at >= 0 && at+len(run) <= len(s.segments) && slices.Equal(s.segments[at:at+len(run)], run)
	s.mu.Unlock()
	if !same {
		return true, os.RemoveAll(seg.temporary(s.o.Dir))
	}
	if err := seg.place(s.o.Dir); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// One that a reader refused in this moment is lost there, and is here: at is found anew.
	var kept []*segment
	placed := false
	for _, o := range s.segments {
		if !slices.Contains(run, o) {
			if !placed && o.number > seg.number {
				kept, placed = append(kept, seg), true
			}
			kept = append(kept, o)
			continue
		}
		o.replaced = true
		s.replaced = append(s.replaced, o)
	}
	if !placed {
		kept = append(kept, seg)
	}
	s.segments = kept
	return true, nil
}

// pick returns segments that follow each other and are to become one, and whether that is a
// coarser one. It is called with the lock.
func (s *Store) pick() (run []*segment, coarse bool) {
	now := s.o.Now()
	fits := func(run []*segment, next *segment) bool {
		sum, from, until := next.Records, next.From, next.Until
		for _, seg := range run {
			sum, from, until = sum+seg.Records, min(from, seg.From), max(until, seg.Until)
		}
		return sum <= s.o.Records && until-from <= (s.o.Age/spanShare).Milliseconds()
	}
	if s.o.CoarseAfter > 0 {
		var fine int64
		for _, seg := range s.segments {
			if seg.Coarse == 0 {
				fine += seg.bytes
			}
		}
		old, least := now.Add(-s.o.CoarseAfter).UnixMilli(), now.Add(-coarseLeast).UnixMilli()
		for _, seg := range s.segments {
			due := seg.Coarse == 0 && !seg.alone && (seg.Until < old || seg.Until < least && fine > s.o.Bytes/4*3)
			switch {
			case due && (len(run) == 0 || fits(run, seg)):
				run, fine = append(run, seg), fine-seg.bytes
				continue
			case len(run) == 0:
				continue
			}
			break
		}
		if len(run) > 0 {
			return run, true
		}
	}
	for at := 0; at < len(s.segments); {
		first := s.segments[at]
		alike := func(o *segment) bool {
			return !first.alone && !o.alone && o.Level == first.Level && o.Coarse == first.Coarse
		}
		to := at + 1
		for to < len(s.segments) && alike(s.segments[to]) && fits(s.segments[at:to], s.segments[to]) {
			to++
		}
		beyond := to < len(s.segments) && alike(s.segments[to])
		if n := to - at; n >= mergeFrom || n > 1 && beyond {
			return slices.Clone(s.segments[at:to]), first.Coarse > 0
		}
		at = to
	}
	return nil, false
}

// sumKey is what records have in common that become one.
type sumKey struct {
	source, destination     [16]byte
	interval                int64
	from, to, what, how, at int32
	dport                   uint16
}

// mergedPart reads segments, and makes a part of them.
func (s *Store) mergedPart(ctx context.Context, run []*segment, coarse bool) (*part, error) {
	p := newPart(nil)
	p.first, p.positions, p.lost = run[0].first(), run[len(run)-1].Positions, map[string]uint64{}
	var how func(*table.How)
	var sums map[sumKey]int32
	if coarse {
		p.coarse, sums = s.o.CoarseEvery.Milliseconds(), map[sumKey]int32{}
		for _, seg := range run {
			p.coarse = max(p.coarse, seg.Coarse) // that of another setting stays
		}
		how = func(h *table.How) { h.Ended, h.TCPFlags = "", "" }
	}
	for i, seg := range run {
		if p.of += seg.of(); (seg.Coarse > 0) == coarse { // one that becomes coarse begins at level 0
			p.level = max(p.level, seg.Level+1)
		}
		for why, n := range seg.Lost {
			p.lost[why] += n
		}
		err := s.read(seg, func() error {
			t, err := seg.tables()
			if err != nil {
				return err
			}
			x := p.Merge(t, how)
			if p.Bytes > tablesMost && i > 0 {
				s.mu.Lock()
				seg.alone = true
				s.mu.Unlock()
				return errAlone
			}
			return seg.each(t, func(r *table.Row) error {
				if coarse {
					r.Connections, r.Records = connections(r, t), max(r.Records, 1)
				}
				x.Translate(r)
				if !coarse {
					p.rows = append(p.rows, *r)
					return ctx.Err()
				}
				addTo(p, sums, r)
				return ctx.Err()
			})
		})
		if err != nil {
			return nil, err
		}
	}
	if !coarse {
		p.of = 0
	}
	return p, nil
}

// addTo adds a row to the sum that it is part of.
func addTo(p *part, sums map[sumKey]int32, r *table.Row) {
	r.Sport = 0
	k := sumKey{r.Source, r.Destination, floorDiv(r.End, p.coarse), r.From, r.To, r.What, r.How, r.At, r.Dport}
	i, have := sums[k]
	if have && (p.rows[i].Records > math.MaxUint32-r.Records || p.rows[i].Connections > math.MaxUint32-r.Connections) {
		have = false // another row with the same key
	}
	if !have {
		sums[k] = int32(len(p.rows))
		p.rows = append(p.rows, *r)
		return
	}
	of := &p.rows[i]
	start := startOf(of)
	if other := startOf(r); start == table.NoStart || other != table.NoStart && other < start {
		start = other
	}
	of.End = max(of.End, r.End)
	if of.Lasted = table.NoStart; start != table.NoStart {
		of.Lasted = of.End - start
	}
	of.Records, of.Connections = of.Records+r.Records, of.Connections+r.Connections
	of.Handshake = max(of.Handshake, r.Handshake)
	of.SentAgain, of.ReceivedAgain = table.AddAgain(of.SentAgain, r.SentAgain), table.AddAgain(of.ReceivedAgain, r.ReceivedAgain)
	of.Sent.Packets, of.Sent.Bytes = of.Sent.Packets+r.Sent.Packets, of.Sent.Bytes+r.Sent.Bytes
	of.Received.Packets, of.Received.Bytes = of.Received.Packets+r.Received.Packets, of.Received.Bytes+r.Received.Bytes
}

func startOf(r *table.Row) int64 {
	if r.Lasted == table.NoStart {
		return table.NoStart
	}
	return r.End - r.Lasted
}

func floorDiv(a, b int64) int64 {
	if q := a / b; a >= 0 || a%b == 0 {
		return q
	}
	return a/b - 1
}

// release ends reading of segments, and removes those that were replaced meanwhile.
func (s *Store) release(of []*segment) {
	s.mu.Lock()
	for _, seg := range of {
		seg.readers--
	}
	var gone []*segment
	s.replaced = slices.DeleteFunc(s.replaced, func(seg *segment) bool {
		if seg.readers == 0 {
			gone = append(gone, seg)
		}
		return seg.readers == 0
	})
	s.mu.Unlock()
	s.removeAll(gone)
}

// removeReplaced removes those that were replaced, read or not; false = there are none.
func (s *Store) removeReplaced() bool {
	s.mu.Lock()
	gone := s.replaced
	s.replaced = nil
	s.mu.Unlock()
	s.removeAll(gone)
	return len(gone) > 0
}

func (s *Store) removeAll(gone []*segment) {
	for _, seg := range gone {
		if err := removeSegment(s.o.Dir, seg); err != nil {
			s.o.Log.Error("a segment of flow records that was merged stays on the disk", "segment", seg.dir, "err", err)
		}
	}
}

// dropReplaced removes those segments whose records another one has, when a store is opened.
func (s *Store) dropReplaced() error {
	var errs error
	all := slices.Clone(s.segments)
	s.segments = slices.DeleteFunc(s.segments, func(o *segment) bool {
		is := slices.ContainsFunc(all, func(by *segment) bool { return by.replaces(o) })
		if is {
			errs = errors.Join(errs, removeSegment(s.o.Dir, o))
		}
		return is
	})
	return errs
}
