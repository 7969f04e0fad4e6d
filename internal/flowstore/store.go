// SPDX-License-Identifier: Apache-2.0

// Package flowstore keeps records of flows on a disk, and answers questions about them. Records are
// collected in memory and written as segments: folders of Parquet files, sorted by the two ends,
// with roll-ups and with what tells that a segment need not be read. A segment is complete or is
// not there. Who adds records never waits; what is not kept is counted, by reason.
package flowstore

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-net/weir/internal/flows"
)

// Why records are not kept.
const (
	LostQueue = "queue" // they came faster than the disk takes them
	LostDisk  = "disk"  // a segment could not be written
	LostFull  = "full"  // newer ones took their place, before their age
	LostTorn  = "torn"  // the segment that has them is not as it was written
	LostTime  = "time"  // their end is in the future, or older than what is kept
	LostLarge = "large" // their texts have more than textMost bytes
)

const (
	textMost   = 64 << 10 // of a record
	tablesMost = 48 << 20 // bytes of what the records of a part refer to
	ahead      = 5 * time.Minute
	retries    = 2 // with the oldest segment gone, when the disk is full
)

// Options of a store.
type Options struct {
	Dir     string        // its own; it is made
	Age     time.Duration // records are kept for so long
	Bytes   int64         // of segments
	Records int           // of a segment, at most
	// CoarseAfter is the age of records from which on those of the same ends, destination port and
	// decision that ended in the same CoarseEvery become one; 0 = never. It is so for younger ones,
	// too, where those that are as they were have more than three quarters of Bytes.
	CoarseAfter, CoarseEvery time.Duration
	// Taken is called with each record that is taken, unless it is nil. It has to return at once.
	Taken func(*flows.Flow)
	Every time.Duration // a segment is written at least so often; what is younger is lost with the process, unless agents have it still
	Log   *slog.Logger
	Now   func() time.Time
}

// Defaults of Options. A record in memory has some 100 bytes, and two segments may be there.
const (
	DefaultAge     = 24 * time.Hour
	DefaultBytes   = 4 << 30
	DefaultRecords = 512 << 10
	DefaultEvery   = 5 * time.Minute

	DefaultCoarseAfter = 12 * time.Hour
	DefaultCoarseEvery = 5 * time.Minute
)

// Store is safe for concurrent use.
type Store struct {
	o Options

	writing sync.Mutex // who writes or removes segments
	next    uint64     // number of the next segment

	mu       sync.Mutex // below writing
	active   *part
	full     *part      // is written next, or now; nil = none
	segments []*segment // oldest first
	replaced []*segment // by others, and read still
	torn     []tornSegment
	lost     map[string]uint64 // since it was opened
	unsaved  map[string]uint64 // of lost, since the part before the active one
	added    uint64
	wake     chan struct{}
	merge    chan struct{} // there may be segments to merge
	// positions are how far the records of nodes' agents were taken, by node.
	positions map[string]*position
}

// tornSegment is kept for people to look at, as long as there is room and until its age.
type tornSegment struct {
	dir   string
	bytes int64
	since time.Time
}

// Open opens what is in a folder. What a writer that was killed left is removed; segments that are
// torn are put aside and counted.
func Open(o Options) (*Store, error) {
	if o.Age <= 0 || o.Bytes <= 0 || o.Records <= 0 || o.Every <= 0 {
		return nil, errors.New("flowstore: age, bytes, records and interval are above 0")
	}
	if o.CoarseAfter < 0 || o.CoarseAfter > 0 && o.CoarseEvery < time.Millisecond {
		return nil, errors.New("flowstore: the age of coarser records is 0 or more, and their interval a millisecond or more")
	}
	s := &Store{o: o, active: newPart(nil), lost: map[string]uint64{}, unsaved: map[string]uint64{}, wake: make(chan struct{}, 1), merge: make(chan struct{}, 1), positions: map[string]*position{}}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		dir := filepath.Join(o.Dir, e.Name())
		switch {
		case !e.IsDir(): // lost+found is one, too: no name of ours
		case strings.HasPrefix(e.Name(), partPrefix):
			if err := os.RemoveAll(dir); err != nil {
				return nil, err
			}
		case strings.HasPrefix(e.Name(), tornPrefix):
			if err := s.addTorn(dir); err != nil {
				return nil, err
			}
		default:
			number, records, _, ok := parseName(e.Name())
			if !ok {
				continue
			}
			s.next = max(s.next, number+1)
			switch seg, err := openSegment(o.Dir, e.Name()); {
			case errors.Is(err, errTorn):
				s.putAside(dir, uint64(records), err)
			case err != nil:
				return nil, err
			default:
				s.segments = append(s.segments, seg)
			}
		}
	}
	if err := s.dropReplaced(); err != nil {
		return nil, err
	}
	slices.SortFunc(s.segments, func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	if n := len(s.segments); n > 0 {
		for node, p := range s.segments[n-1].Positions {
			if p != nil {
				s.positions[node] = p
			}
		}
	}
	s.prune()
	return s, nil
}

// addTorn knows of a segment that was put aside.
func (s *Store) addTorn(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	_, sum, err := sizes(dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.torn = append(s.torn, tornSegment{dir: dir, bytes: sum, since: st.ModTime()})
	return err
}

// putAside refuses a segment.
func (s *Store) putAside(dir string, records uint64, why error) {
	s.mu.Lock()
	s.lose(LostTorn, records)
	s.mu.Unlock()
	to := filepath.Join(s.o.Dir, tornPrefix+filepath.Base(dir))
	err := os.Rename(dir, to)
	if err == nil {
		err = s.addTorn(to)
	}
	s.o.Log.Error("a segment of flow records is refused", "segment", dir, "records", records, "why", why, "put aside", to, "err", err)
}

// Run writes and merges segments until ctx ends, and then writes what is left.
func (s *Store) Run(ctx context.Context) {
	var merging sync.WaitGroup
	defer merging.Wait()
	merging.Go(func() { s.mergeUntil(ctx) })
	tick := time.NewTicker(min(s.o.Every, time.Minute))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.Flush()
			return
		case <-s.wake:
			s.write()
		case <-tick.C:
			s.mu.Lock()
			if s.full == nil && len(s.active.rows) > 0 && s.o.Now().Sub(s.active.began) >= s.o.Every {
				s.turn()
			}
			s.mu.Unlock()
			s.write()
		}
	}
}

// Flush writes what is in memory.
func (s *Store) Flush() {
	s.write()
	s.mu.Lock()
	if s.full == nil && len(s.active.rows) > 0 {
		s.turn()
	}
	s.mu.Unlock()
	s.write()
}

// write writes the part that is full, if there is one, and keeps within bounds.
func (s *Store) write() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	p := s.full
	s.mu.Unlock()
	if p != nil {
		seg, err := s.writePart(p)
		s.mu.Lock()
		if s.full = nil; err == nil {
			s.segments = append(s.segments, seg)
			select {
			case s.merge <- struct{}{}:
			default:
			}
		} else {
			s.lose(LostDisk, uint64(len(p.rows)))
			for why, n := range p.lost {
				s.unsaved[why] += n
			}
		}
		s.mu.Unlock()
		if err != nil {
			s.o.Log.Error("a segment of flow records could not be written", "records", len(p.rows), "err", err)
		}
	}
	s.prune()
}

func (s *Store) writePart(p *part) (seg *segment, err error) {
	for try := 0; ; try++ {
		seg, err = writeSegment(s.o.Dir, s.next, p)
		s.next++
		if !errors.Is(err, syscall.ENOSPC) || try == retries || !s.removeReplaced() && !s.removeOldest(LostFull) {
			return seg, err
		}
	}
}

// prune removes what is above the bounds.
func (s *Store) prune() {
	oldest := s.o.Now().Add(-s.o.Age)
	for {
		s.mu.Lock()
		var sum int64
		for _, seg := range slices.Concat(s.segments, s.replaced) {
			sum += seg.bytes
		}
		var first *tornSegment
		for i := range s.torn {
			if sum += s.torn[i].bytes; first == nil {
				first = &s.torn[i]
			}
		}
		var aged *segment
		for _, seg := range s.segments {
			if seg.Until < oldest.UnixMilli() {
				aged = seg
				break
			}
		}
		removed := false
		switch {
		case first != nil && (sum > s.o.Bytes || first.since.Before(oldest)):
			dir := first.dir
			s.torn = s.torn[1:]
			s.mu.Unlock()
			if err := os.RemoveAll(dir); err != nil {
				s.o.Log.Error("a refused segment stays", "segment", dir, "err", err)
			}
			continue
		case aged != nil:
			s.mu.Unlock()
			removed = s.remove(aged, "")
		case sum > s.o.Bytes:
			s.mu.Unlock()
			removed = s.removeReplaced() || s.removeOldest(LostFull)
		default:
			s.mu.Unlock()
		}
		if !removed {
			return
		}
	}
}

// removeOldest removes the oldest segment; false = there is none.
func (s *Store) removeOldest(why string) bool {
	s.mu.Lock()
	var seg *segment
	if len(s.segments) > 0 {
		seg = s.segments[0]
	}
	s.mu.Unlock()
	return seg != nil && s.remove(seg, why)
}

// remove removes a segment; why is how its records are counted, empty for those that are old.
func (s *Store) remove(seg *segment, why string) bool {
	s.mu.Lock()
	i := slices.Index(s.segments, seg)
	if i >= 0 {
		s.segments = slices.Delete(slices.Clone(s.segments), i, i+1)
		if why != "" {
			s.lost[why] += seg.of()
		}
	}
	s.mu.Unlock()
	if i < 0 {
		return true // it was refused meanwhile
	}
	if err := removeSegment(s.o.Dir, seg); err != nil {
		s.o.Log.Error("a segment of flow records stays on the disk", "segment", seg.dir, "err", err)
	}
	return true
}

// refuse puts a segment aside that turned out to be torn when it was read.
func (s *Store) refuse(seg *segment, why error) {
	s.mu.Lock()
	i := slices.Index(s.segments, seg)
	if i >= 0 {
		s.segments = slices.Delete(slices.Clone(s.segments), i, i+1)
	}
	s.mu.Unlock()
	if i >= 0 { // else it was removed, or somebody else has seen it
		s.putAside(seg.dir, seg.of(), why)
	}
}

// Status is how a store is.
type Status struct {
	Added    uint64            `json:"added"`   // records, since it was opened
	Lost     map[string]uint64 `json:"lost"`    // records, since it was opened, by why
	Memory   int               `json:"memory"`  // records that are in no segment yet
	Records  int               `json:"records"` // in segments
	Segments int               `json:"segments"`
	Bytes    int64             `json:"bytes"`   // of segments
	Coarse   int               `json:"coarse"`  // of Records: those that are sums
	Refused  int               `json:"refused"` // segments that are torn, and put aside
	Oldest   time.Time         `json:"oldest"`  // End of the oldest record; zero = there is none
}

// CoarseUntil is the End of the latest of the records of a time that are sums, and over how long
// they are; zero = there are none.
func (s *Store) CoarseUntil(since, until time.Time) (latest time.Time, every time.Duration) {
	q := Query{Filter: flows.Filter{Since: since, Until: until}}
	from, to := q.bounds()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.segments {
		if seg.Coarse == 0 || seg.Until <= from || seg.From > to {
			continue
		}
		if end := time.UnixMilli(min(seg.Until, to)).UTC(); end.After(latest) {
			latest = end
		}
		every = max(every, time.Duration(seg.Coarse)*time.Millisecond)
	}
	return latest, every
}

// Status says how much is kept, and how much was not.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Added: s.added, Lost: maps.Clone(s.lost), Memory: len(s.active.rows), Segments: len(s.segments), Refused: len(s.torn)}
	note := func(oldest int64) {
		if at := time.UnixMilli(oldest).UTC(); st.Oldest.IsZero() || at.Before(st.Oldest) {
			st.Oldest = at
		}
	}
	if s.full != nil {
		st.Memory += len(s.full.rows)
		note(s.full.oldest)
	}
	if len(s.active.rows) > 0 {
		note(s.active.oldest)
	}
	for _, seg := range s.segments {
		st.Records += seg.Records
		if st.Bytes += seg.bytes; seg.Coarse > 0 {
			st.Coarse += seg.Records
		}
		note(seg.From)
	}
	return st
}
