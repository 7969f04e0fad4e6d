// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/flows"
)

// pairwise returns records of few pairs, one a second from the epoch on, with all that differs
// between two records of the same pair.
func pairwise(n int) []*flows.Flow {
	some := random(4, 12)
	out := make([]*flows.Flow, n)
	for i := range out {
		f := *some[i%len(some)]
		f.End = epoch.Add(time.Duration(i) * time.Second)
		f.Start = f.End.Add(-time.Duration(i%50) * time.Second)
		f.Source.Port = uint16(40000 + i)
		f.Ended = []string{"", "closed", "expired"}[i%3]
		f.TCPFlags = []string{"", "SYN ACK"}[i%2]
		f.Sent, f.Received = flows.Counters{Packets: uint64(i), Bytes: uint64(100 * i)}, flows.Counters{Packets: 1, Bytes: uint64(i)}
		out[i] = &f
	}
	return out
}

// coarser is what a look at each record makes of them.
func coarser(of []*flows.Flow, every time.Duration) []*flows.Flow {
	var out []*flows.Flow
	at := map[string]*flows.Flow{}
	for _, f := range of {
		k := *f
		k.Start, k.End, k.Source.Port, k.Ended, k.TCPFlags, k.Sent, k.Received, k.Retransmitted = time.Time{}, f.End.Truncate(every), 0, "", "", flows.Counters{}, flows.Counters{}, nil
		key := fmt.Sprintf("%+v %+v %+v %+v", k, k.Egress, k.Ingress, k.Rule)
		sum := at[key]
		if sum == nil {
			own := k
			sum = &own
			sum.Start, sum.End = f.Start, f.End
			at[key] = sum
			out = append(out, sum)
		}
		if f.Start.Before(sum.Start) {
			sum.Start = f.Start
		}
		if f.End.After(sum.End) {
			sum.End = f.End
		}
		sum.Records++
		if f.Ended != "" || f.Verdict != flows.Allowed {
			sum.Connections++
		}
		sum.Sent.Packets, sum.Sent.Bytes = sum.Sent.Packets+f.Sent.Packets, sum.Sent.Bytes+f.Sent.Bytes
		sum.Received.Packets, sum.Received.Bytes = sum.Received.Packets+f.Received.Packets, sum.Received.Bytes+f.Received.Bytes
		if again := f.Retransmitted; again != nil {
			if sum.Retransmitted == nil {
				sum.Retransmitted = &flows.Retransmitted{}
			}
			sum.Retransmitted.Sent, sum.Retransmitted.Received = sum.Retransmitted.Sent+again.Sent, sum.Retransmitted.Received+again.Received
		}
	}
	return out
}

// coarseStore is one whose records become coarser after an hour.
func coarseStore(t *testing.T, now *time.Time) *Store {
	o := opening(t, now)
	o.Age, o.Records, o.CoarseAfter, o.CoarseEvery = 8*time.Hour, 2000, time.Hour, 5*time.Minute
	return mustOpen(t, o)
}

// sortSums puts records in an order that does not depend on how they came about.
func sortSums(of []*flows.Flow) []*flows.Flow {
	slices.SortFunc(of, func(a, b *flows.Flow) int {
		return cmp.Or(a.End.Compare(b.End), cmp.Compare(a.Sent.Bytes, b.Sent.Bytes), cmp.Compare(a.Received.Bytes, b.Received.Bytes))
	})
	return of
}

// What is older than an age becomes coarser: sums of the same ends, port and decision, within one
// interval. What is younger stays as it was, and sums over all of it say the same as before.
func TestCoarse(t *testing.T) {
	t.Parallel()
	now := epoch
	s := coarseStore(t, &now)
	records := pairwise(3600)
	for part := range slices.Chunk(records, 400) {
		now = part[len(part)-1].End
		s.Add(part...)
		s.Flush()
	}
	sums, before := sumsOf(t, s), s.Status()
	now = epoch.Add(90 * time.Minute)
	mergeAll(t, s)
	st := s.Status()
	if st.Coarse == 0 || st.Coarse == st.Records || st.Bytes > before.Bytes*3/4 || len(st.Lost) != 0 {
		t.Errorf("%+v, was %+v", st, before)
	}
	from := s.segments[0].Until
	for _, seg := range s.segments {
		if seg.Coarse > 0 {
			from = max(from, seg.Until)
		}
	}
	old, young := []*flows.Flow{}, []*flows.Flow{}
	for _, f := range records {
		if f.End.UnixMilli() <= from {
			old = append(old, f)
		} else {
			young = append(young, f)
		}
	}
	if len(old) < 1500 || len(young) < 1500 {
		t.Fatalf("%d old and %d young ones", len(old), len(young))
	}
	got := found(t, s, Query{})
	want := sortSums(slices.Concat(coarser(old, 5*time.Minute), young))
	if sortSums(got); len(got) != len(want) || len(got) > len(young)+len(old)/10 {
		t.Fatalf("%d records, want %d of %d", len(got), len(want), len(records))
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("%+v\nwant\n%+v", got[i], want[i])
		}
	}
	if after := sumsOf(t, s); !reflect.DeepEqual(after, sums) {
		t.Errorf("sums are\n%v\nwere\n%v", after, sums)
	}
	for _, q := range queries[:14] {
		if got, want := len(found(t, s, q)), len(wanted(want, q)); got != want {
			t.Errorf("%+v: %d, want %d", q, got, want)
		}
	}
	// All of it, opened again, in larger segments.
	now = epoch.Add(4 * time.Hour)
	s = mustOpen(t, s.o)
	mergeAll(t, s)
	if st := s.Status(); st.Coarse != st.Records || st.Records != len(coarser(records, 5*time.Minute)) && st.Segments == 1 {
		t.Errorf("%+v", st)
	}
	if after := sumsOf(t, s); !reflect.DeepEqual(after, sums) {
		t.Errorf("sums are\n%v\nwere\n%v", after, sums)
	}
	// What goes for want of room is counted as what came.
	s.o.Bytes = 1
	s.Flush()
	if st := s.Status(); st.Lost[LostFull] != uint64(len(records)) || st.Segments != 0 {
		t.Errorf("%+v", st)
	}
}

// A store that fills up makes the oldest part coarser before it removes any.
func TestCoarseWhenFull(t *testing.T) {
	t.Parallel()
	now := epoch
	s := coarseStore(t, &now)
	s.o.CoarseAfter = 7 * time.Hour
	records := pairwise(3600)
	for part := range slices.Chunk(records, 400) {
		now = part[len(part)-1].End
		s.Add(part...)
		s.Flush()
	}
	mergeAll(t, s)
	if st := s.Status(); st.Coarse != 0 {
		t.Fatalf("with room: %+v", st)
	}
	s.o.Bytes = s.Status().Bytes
	mergeAll(t, s)
	s.Flush()
	st := s.Status()
	if st.Coarse == 0 || len(st.Lost) != 0 {
		t.Errorf("%+v", st)
	}
	for _, seg := range s.segments {
		if seg.Coarse > 0 && seg.Until > now.Add(-coarseLeast).UnixMilli() {
			t.Error("records of the last minutes are sums")
		}
	}
	s.o.CoarseAfter = -1
	if _, err := Open(s.o); err == nil {
		t.Error("an age below 0 is taken")
	}
	// Without the setting what is coarse stays, and is merged as such.
	s.o.CoarseAfter, s.o.CoarseEvery = 0, 0
	s = mustOpen(t, s.o)
	mergeAll(t, s)
	if after := s.Status(); after.Coarse == 0 || after.Coarse > st.Coarse {
		t.Errorf("%+v, was %+v", after, st)
	}
}
