// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"maps"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/table"
	"github.com/weir-net/weir/internal/flows/wire"
)

// LostOld is why records are not kept that an agent had no more when it was asked for them: newer
// ones had taken their place, or the agent had ended. Of the latter those are counted that its
// successor overwrote.
const LostOld = "old"

// nodesLost are reasons by which agents make no record of what happened (flows.Status).
var nodesLost = []string{"events", "evicted", "expired", "interval", "ring"}

// lostMost bounds what one batch of a node may say is lost: it is the node's word.
const lostMost = 1 << 32

// Batch is records of one node's agent, in the order of their numbers.
type Batch struct {
	Node    string
	At      wire.Position     // of the first record; where there is none, of the next
	Lost    map[string]uint64 // what the agent made no record of, since its start, by why
	Records *wire.Rows        // nil = none
}

// position is how far the records of a node's agent were taken.
type position struct {
	wire.Position
	Lost map[string]uint64 `json:"lost,omitempty"` // what the agent said there
	Seen int64             `json:"seen"`           // when, milliseconds since 1970
	// Old are records that the agent had no more when it was asked for them, OldAt is when it was
	// so last, milliseconds since 1970.
	Old   uint64 `json:"old,omitempty"`
	OldAt int64  `json:"oldAt,omitempty"`
}

// Take takes those records of an agent that it does not have yet, and returns how many of the
// batch's it has then: fewer than there are while the disk is behind, and then the same batch is to
// be given again. How far an agent's records were taken is on the disk with the records: a store
// that is opened again asks for what follows. Of a batch that means nothing, none are taken.
func (s *Store) Take(b *Batch) (taken int, err error) {
	now := s.o.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var from *wire.Merging
	if b.Records.Len() > 0 {
		if from, err = b.Records.Into(s.active.Numbers, s.active.known); err != nil {
			return 0, err
		}
	}
	p := s.positions[b.Node]
	switch {
	case p == nil: // what was before that is not this store's loss
		p = &position{Position: b.At, Lost: maps.Clone(b.Lost)}
		s.positions[b.Node] = p
	case p.Boot != b.At.Boot:
		s.loseOld(p, min(b.At.Next, lostMost), now)
		p.Position, p.Lost = b.At, nil
	case b.At.Next > p.Next:
		s.loseOld(p, min(b.At.Next-p.Next, lostMost), now)
		p.Next = b.At.Next
	}
	before := p.Lost
	p.Lost, p.Seen = map[string]uint64{}, now.UnixMilli()
	for _, why := range nodesLost {
		n, had := b.Lost[why], before[why]
		if n < had { // the agent counts anew, of another data plane
			had = 0
		}
		p.Lost[why] = n
		s.lose(why, min(n-had, lostMost))
	}
	for n := uint64(b.Records.Len()); p.Next-b.At.Next < n; p.Next++ {
		i := int(p.Next - b.At.Next)
		if !s.keeps(b.Records.End(i), b.Records.Size(i), now) {
			continue
		}
		switch turned, room := s.room(); {
		case !room:
			return i, nil
		case turned:
			if from, err = b.Records.Into(s.active.Numbers, s.active.known); err != nil {
				return i, err
			}
		}
		s.add(from.Row(i), now)
	}
	return b.Records.Len(), nil
}

// Next is up to where the records of a node's agent were taken.
func (s *Store) Next(node string) wire.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.positions[node]; p != nil {
		return p.Position
	}
	return wire.Position{}
}

// Seen are the nodes whose agents gave records, or said that there are none, since a time; sorted.
func (s *Store) Seen(since time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for node, p := range s.positions {
		if p.Seen >= since.UnixMilli() {
			out = append(out, node)
		}
	}
	slices.Sort(out)
	return out
}

// Add takes records, which nobody changes from then on. It does not wait for the disk: those that
// come faster than it takes them are lost.
func (s *Store) Add(records ...*flows.Flow) {
	now := s.o.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range records {
		if !s.keeps(f.End.UnixMilli(), table.Size(f), now) {
			continue
		}
		if _, room := s.room(); !room {
			s.lose(LostQueue, 1)
			continue
		}
		s.add(s.active.Add(f), now)
	}
}

// keeps is false for a record that is not kept, which it counts.
func (s *Store) keeps(end int64, size int, now time.Time) bool {
	switch {
	case end > now.Add(ahead).UnixMilli() || end < now.Add(-s.o.Age).UnixMilli():
		s.lose(LostTime, 1)
	case size > textMost:
		s.lose(LostLarge, 1)
	default:
		return true
	}
	return false
}

// room is false while there is none until a segment is written; turned says that the active part is
// another one from now on.
func (s *Store) room() (turned, room bool) {
	if len(s.active.rows) < s.o.Records && s.active.Bytes <= tablesMost {
		return false, true
	}
	if s.full != nil {
		return false, false
	}
	s.turn()
	return true, true
}

// add adds a row of the active part's numbers.
func (s *Store) add(r table.Row, now time.Time) {
	if len(s.active.rows) == 0 {
		s.active.began, s.active.oldest = now, r.End
	}
	s.active.oldest = min(s.active.oldest, r.End)
	s.active.rows = append(s.active.rows, r)
	s.added++
	if s.o.Taken != nil {
		s.o.Taken(s.active.Flow(&r))
	}
}

// lose counts records that are not kept.
func (s *Store) lose(why string, n uint64) {
	if n > 0 {
		s.lost[why] += n
		s.unsaved[why] += n
	}
}

// loseOld counts records that a node's agent had no more.
func (s *Store) loseOld(p *position, n uint64, now time.Time) {
	if n > 0 {
		s.lose(LostOld, n)
		p.Old, p.OldAt = p.Old+n, now.UnixMilli()
	}
}

// Old are the nodes whose agents had records no more when they were asked for them, where that was
// so after a time, with how many these were while the store knows the node.
func (s *Store) Old(since time.Time) map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]uint64{}
	for node, p := range s.positions {
		if p.Old > 0 && p.OldAt > since.UnixMilli() {
			out[node] = p.Old
		}
	}
	return out
}

// turn has the active part written, with how far each agent's records were taken and what was lost
// since the part before.
func (s *Store) turn() {
	s.full, s.active = s.active, newPart(nil)
	s.full.lost, s.unsaved = s.unsaved, map[string]uint64{}
	s.full.positions = make(map[string]*position, len(s.positions))
	gone := s.o.Now().Add(-s.o.Age).UnixMilli()
	for node, p := range s.positions {
		if p.Seen < gone {
			delete(s.positions, node)
			continue
		}
		own := *p
		s.full.positions[node] = &own // p.Lost is replaced, not changed
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Missing says what is not kept of a time, by why: as far as it is known when that was, which is up
// to the time of a segment.
func (s *Store) Missing(since, until time.Time) map[string]uint64 {
	q := Query{Filter: flows.Filter{Since: since, Until: until}}
	from, to := q.bounds()
	out := map[string]uint64{}
	sum := func(lost map[string]uint64) {
		for why, n := range lost {
			out[why] += n
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.segments {
		if seg.Until > from && seg.From <= to {
			sum(seg.Lost)
		}
	}
	if s.full != nil {
		sum(s.full.lost)
	}
	sum(s.unsaved)
	return out
}
