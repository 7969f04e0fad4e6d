// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/wire/wiretest"
)

// mergeAll merges until there is nothing to do, and returns how often it did.
func mergeAll(t *testing.T, s *Store) (n int) {
	t.Helper()
	for {
		more, err := s.mergeOnce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return n
		}
		n++
	}
}

// small is a store of n segments of each records.
func small(t *testing.T, s *Store, n, each int, seed uint64) []*flows.Flow {
	t.Helper()
	records := random(seed, n*each)
	for part := range slices.Chunk(records, each) {
		s.Add(part...)
		s.Flush()
	}
	return records
}

// sumsOf are answers that are sums, to compare.
func sumsOf(t *testing.T, s *Store) []any {
	t.Helper()
	ctx, since := context.Background(), time.Time{}
	rules, err := s.Rules(ctx, since, since, false)
	if err != nil {
		t.Fatal(err)
	}
	spaces, err := s.Namespaces(ctx, since, since, "", "")
	if err != nil {
		t.Fatal(err)
	}
	pairs, _, err := s.Pairs(ctx, since, since, "", "")
	if err != nil {
		t.Fatal(err)
	}
	top, _, err := s.Top(ctx, Query{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return []any{rules, spaces, pairs, top}
}

// Small segments become larger ones, which have the same records, and are as many as a level has;
// an agent's records go on where they were taken, and what was lost is counted as before.
func TestMerge(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	o.Age, o.Records = 3*time.Hour, 1000
	s := mustOpen(t, o)
	records := small(t, s, 70, 20, 1)
	late := random(9, 1)[0]
	late.End = now.Add(time.Hour)
	s.Add(late)
	mustTake(t, s, &Batch{Node: "n1", Records: wiretest.Rows(t, records[0].Node, records[0])})
	s.Flush()
	before, sums, missing := s.Status(), sumsOf(t, s), s.Missing(time.Time{}, time.Time{})
	want := found(t, s, Query{})
	if n := mergeAll(t, s); n < 2 {
		t.Errorf("merged %d times", n)
	}
	for _, when := range []string{"merged", "opened again"} {
		st := s.Status()
		if st.Records != before.Records || st.Segments > 16 || st.Coarse != 0 || st.Refused != 0 || st.Lost[LostFull] != 0 {
			t.Errorf("%s: %+v, was %+v", when, st, before)
		}
		if st.Bytes > before.Bytes*2/3 {
			t.Errorf("%s: %d bytes, were %d", when, st.Bytes, before.Bytes)
		}
		for _, q := range queries {
			same(t, fmt.Sprintf("%s: %+v", when, q), found(t, s, q), wanted(want, q))
		}
		if got := sumsOf(t, s); !reflect.DeepEqual(got, sums) {
			t.Errorf("%s: sums differ", when)
		}
		if got := s.Missing(time.Time{}, time.Time{}); !reflect.DeepEqual(got, missing) || got[LostTime] != 1 {
			t.Errorf("%s: missing are %v, were %v", when, got, missing)
		}
		if got := s.Next("n1"); got.Next != 1 {
			t.Errorf("%s: records of n1 are taken up to %+v", when, got)
		}
		if left, err := os.ReadDir(o.Dir); err != nil || len(left) != st.Segments {
			t.Errorf("%s: on the disk are %v, %v", when, left, err)
		}
		s = mustOpen(t, o)
	}
	// The next segment gets a number that no other has.
	small(t, s, 8, 20, 5)
	mergeAll(t, s)
	if st := mustOpen(t, o).Status(); st.Records != before.Records+160 {
		t.Errorf("with more: %+v", st)
	}
}

// Merged segments are about an eighth of the age at most.
func TestMergedSpan(t *testing.T) {
	t.Parallel()
	now := epoch
	o := opening(t, &now)
	o.Age = 8 * time.Hour
	s := mustOpen(t, o)
	for i := range 48 {
		now = epoch.Add(time.Duration(i) * 10 * time.Minute)
		f := random(uint64(i), 1)[0]
		f.End = now
		s.Add(f)
		s.Flush()
		mergeAll(t, s)
	}
	st := s.Status()
	if st.Segments < 8 || st.Segments > 16 || st.Records != 48 {
		t.Errorf("%+v", st)
	}
	for _, seg := range s.segments {
		if span := time.Duration(seg.Until-seg.From) * time.Millisecond; span > time.Hour {
			t.Errorf("segment %d is about %s", seg.number, span)
		}
	}
}

// A program may end at any moment of a merge: each record is there once.
func TestMergeCutOff(t *testing.T) {
	t.Parallel()
	for left := range 10 { // how many of the segments that were merged are on the disk still
		now := epoch.Add(10 * time.Minute)
		o := opening(t, &now)
		o.Age, o.Records = 3*time.Hour, 1000
		s := mustOpen(t, o)
		records := small(t, s, 9, 30, uint64(left))
		olds := filepath.Join(t.TempDir(), "olds")
		if err := os.CopyFS(olds, os.DirFS(o.Dir)); err != nil {
			t.Fatal(err)
		}
		merged := mergeAll(t, s)
		names, err := os.ReadDir(olds)
		if err != nil || len(names) != 9 || merged == 0 {
			t.Fatalf("%v, %v, merged %d times", names, err, merged)
		}
		for _, e := range names[:left] {
			if _, err := os.Stat(filepath.Join(o.Dir, e.Name())); err == nil {
				continue
			}
			if err := os.CopyFS(filepath.Join(o.Dir, e.Name()), os.DirFS(filepath.Join(olds, e.Name()))); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(o.Dir, partPrefix+"000000000099.3"), 0o700); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, o)
		same(t, fmt.Sprintf("%d are there still", left), found(t, s, Query{}), slices.Clone(records))
		if on, err := os.ReadDir(o.Dir); err != nil || len(on) != s.Status().Segments {
			t.Errorf("on the disk: %v, %v", on, err)
		}
		// One that cannot be read does not replace the others.
		if left < 9 {
			continue
		}
		if err := os.CopyFS(o.Dir+"2", os.DirFS(olds)); err != nil {
			t.Fatal(err)
		}
		seg := s.segments[0]
		torn := filepath.Join(o.Dir+"2", filepath.Base(seg.dir))
		if err := os.CopyFS(torn, os.DirFS(seg.dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(torn, fileRows), 100); err != nil {
			t.Fatal(err)
		}
		o.Dir += "2"
		same(t, "beside a torn one", found(t, mustOpen(t, o), Query{}), slices.Clone(records))
	}
}

// Who reads while segments are merged finds each record once; the files go when it has ended, or
// when there is no room for them.
func TestMergeWhileRead(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		now := epoch.Add(10 * time.Minute)
		o := opening(t, &now)
		o.Age, o.Records = 3*time.Hour, 1000
		s := mustOpen(t, o)
		records := small(t, s, 9, 30, 1)
		var got []*flows.Flow
		err := s.Each(t.Context(), Query{}, func(f *flows.Flow) bool {
			if got = append(got, f); len(got) == 1 {
				if mergeAll(t, s) == 0 {
					t.Error("nothing was merged")
				}
				if left, err := os.ReadDir(o.Dir); err != nil || len(left) != s.Status().Segments+9 {
					t.Errorf("while somebody reads: %v, %v", left, err)
				}
				if full {
					s.o.Bytes = s.Status().Bytes
					s.Flush()
				}
			}
			return true
		})
		if full {
			if err == nil || len(got) != 30 {
				t.Errorf("%d records of segments that were removed: %v", len(got), err)
			}
			if st := s.Status(); st.Records != len(records) || len(st.Lost) != 0 {
				t.Errorf("%+v", st)
			}
		} else {
			if err != nil {
				t.Error(err)
			}
			same(t, "read meanwhile", got, slices.Clone(records))
		}
		if left, err := os.ReadDir(o.Dir); err != nil || len(left) != s.Status().Segments {
			t.Errorf("afterwards: %v, %v", left, err)
		}
	}
}

// Records come, are merged and are asked for at the same time.
func TestMergeAtTheSameTime(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	o.Age = 3 * time.Hour
	s := mustOpen(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	var mu sync.Mutex
	added := 0
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				least := added
				mu.Unlock()
				n := 0
				if err := s.Each(ctx, Query{}, func(*flows.Flow) bool { n++; return true }); err == nil && n < least {
					t.Errorf("%d records, of %d", n, least)
				}
			}
		})
	}
	for i := range 60 {
		s.Add(random(uint64(i), 25)...)
		s.Flush()
		mu.Lock()
		added += 25
		mu.Unlock()
	}
	for s.Status().Segments > 16 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	wg.Wait()
	if st := s.Status(); st.Records != 1500 || len(st.Lost) != 0 || st.Refused != 0 {
		t.Errorf("%+v", st)
	}
}

// A segment that is torn is not merged: it is refused, and the others are merged.
func TestMergeTorn(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	o.Age = 3 * time.Hour
	s := mustOpen(t, o)
	records := small(t, s, 18, 30, 1)
	if err := change(filepath.Join(s.segments[3].dir, fileRows), func(b []byte) { b[len(b)/4] ^= 0xff }); err != nil {
		t.Fatal(err)
	}
	mergeAll(t, s)
	if st := s.Status(); st.Refused != 1 || st.Lost[LostTorn] != 30 || st.Segments > 3 {
		t.Errorf("%+v", st)
	}
	same(t, "the others", found(t, s, Query{}), slices.Concat(records[:90], records[120:]))
}
