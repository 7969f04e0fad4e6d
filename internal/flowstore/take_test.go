// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"bytes"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/wire"
	"github.com/weir-net/weir/internal/flows/wire/wiretest"
)

// batch is some records of n1's agent, from a number on.
func batch(t *testing.T, boot string, first uint64, records []*flows.Flow, lost map[string]uint64) *Batch {
	t.Helper()
	return &Batch{Node: "n1", At: wire.Position{Boot: boot, Next: first}, Lost: lost, Records: wiretest.Rows(t, "n1", records...)}
}

func mustTake(t *testing.T, s *Store, b *Batch) int {
	t.Helper()
	n, err := s.Take(b)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func count(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.Each(t.Context(), Query{}, func(*flows.Flow) bool { n++; return true }); err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *Store) lostNow() map[string]uint64 {
	lost := s.Status().Lost
	maps.DeleteFunc(lost, func(_ string, n uint64) bool { return n == 0 })
	return lost
}

// Records are taken once, whatever is sent again; what is between two batches is counted, and so is
// what the agent lost since the first of them.
func TestTake(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	told := 0
	o.Taken = func(*flows.Flow) { told++ }
	s := mustOpen(t, o)
	records := random(1, 100)
	for i, c := range []struct {
		batch *Batch
		taken int
		kept  int
		lost  map[string]uint64
	}{
		{batch(t, "a", 1000, records[:10], map[string]uint64{"ring": 5, "old": 900}), 10, 10, nil}, // what was before is not lost
		{batch(t, "a", 1000, records[:10], map[string]uint64{"ring": 5}), 10, 10, nil},             // again
		{batch(t, "a", 1005, records[5:20], map[string]uint64{"ring": 7}), 15, 20, map[string]uint64{"ring": 2}},
		{batch(t, "a", 1030, records[30:40], map[string]uint64{"ring": 7}), 10, 30, map[string]uint64{"ring": 2, "old": 10}},
		{batch(t, "a", 1045, nil, map[string]uint64{"ring": 1, "mine": 9}), 0, 30, map[string]uint64{"ring": 3, "old": 15}}, // of another data plane
		{batch(t, "b", 3, records[50:60], map[string]uint64{"events": 4}), 10, 40, map[string]uint64{"ring": 3, "old": 18, "events": 4}},
	} {
		if taken := mustTake(t, s, c.batch); taken != c.taken {
			t.Errorf("batch %d: %d taken, want %d", i, taken, c.taken)
		}
		if lost := s.lostNow(); count(t, s) != c.kept || !maps.Equal(lost, c.lost) {
			t.Errorf("batch %d: %d kept, %v lost, want %d, %v", i, count(t, s), lost, c.kept, c.lost)
		}
		if told != c.kept {
			t.Errorf("batch %d: Taken was told %d, of %d", i, told, c.kept)
		}
	}
	if at := s.Next("n1"); at != (wire.Position{Boot: "b", Next: 13}) {
		t.Errorf("next is %+v", at)
	}
	if old := s.Old(now.Add(-time.Second)); !maps.Equal(old, map[string]uint64{"n1": 18}) || len(s.Old(now)) != 0 {
		t.Errorf("of these agents records were lost: %v", old)
	}
	if at := s.Next("n2"); at != (wire.Position{}) {
		t.Errorf("of a node that it does not know: %+v", at)
	}
}

// A store that was killed has what was on its disk, asks for what follows, and so has all of it
// once; what was lost is known with the records of that time.
func TestTakeAgain(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	s := mustOpen(t, o)
	records := random(2, 300)
	mustTake(t, s, batch(t, "a", 0, records[:100], nil))
	mustTake(t, s, batch(t, "a", 110, records[110:200], map[string]uint64{"interval": 6}))
	s.Flush()
	mustTake(t, s, batch(t, "a", 200, records[200:250], map[string]uint64{"interval": 9})) // goes with the process
	killed := mustOpen(t, o)
	at := killed.Next("n1")
	if at != (wire.Position{Boot: "a", Next: 200}) || count(t, killed) != 190 {
		t.Fatalf("it goes on at %+v, with %d records", at, count(t, killed))
	}
	if lost := killed.Missing(epoch, time.Time{}); !maps.Equal(lost, map[string]uint64{"old": 10, "interval": 6}) {
		t.Errorf("missing are %v", lost)
	}
	if lost := killed.Missing(epoch.Add(-time.Hour), epoch.Add(-time.Minute)); len(lost) > 0 {
		t.Errorf("before all records %v are missing", lost)
	}
	mustTake(t, killed, batch(t, "a", at.Next, records[200:], map[string]uint64{"interval": 9}))
	if lost := killed.lostNow(); count(t, killed) != 290 || !maps.Equal(lost, map[string]uint64{"interval": 3}) {
		t.Errorf("%d records, %v lost", count(t, killed), lost)
	}
	if nodes := killed.Seen(now.Add(-time.Second)); len(nodes) != 1 || nodes[0] != "n1" {
		t.Errorf("seen are %q", nodes)
	}
}

// While the disk is behind nothing is lost: the batch is taken as far as there is room, and the
// rest when there is.
func TestTakeWaits(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	o.Records = 100
	s := mustOpen(t, o)
	b := batch(t, "a", 0, random(3, 250), nil)
	if n := mustTake(t, s, b); n != 200 { // two parts
		t.Fatalf("%d are taken", n)
	}
	if n := mustTake(t, s, b); n != 200 || s.Next("n1").Next != 200 {
		t.Fatalf("%d are taken, next is %d", n, s.Next("n1").Next)
	}
	s.write()
	// What the first segment says of positions is what it has.
	if at := mustOpen(t, o).Next("n1"); at.Next != 100 {
		t.Errorf("a store that is opened then goes on at %d", at.Next)
	}
	if n := mustTake(t, s, b); n != 250 || count(t, s) != 250 || len(s.lostNow()) > 0 {
		t.Errorf("%d are taken, %d kept, %v lost", n, count(t, s), s.lostNow())
	}
	// Of what nobody gives again, it is lost.
	s.Add(random(4, 100)...)
	if lost := s.lostNow(); lost[LostQueue] == 0 {
		t.Errorf("lost are %v", lost)
	}
}

// What comes as messages is what was sent, but for its node: however batches and parts cut it, and
// whether the store knows already what records refer to or reads it.
func TestTakeKeepsRecords(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	o.Records = 130
	var told []*flows.Flow
	o.Taken = func(f *flows.Flow) { told = append(told, f) }
	s := mustOpen(t, o)
	records := random(8, 400)
	for i, f := range records { // what an agent aggregated, in some segments and not in others
		if i < 200 && i%3 == 0 {
			f.Records, f.Connections, f.Source.Port, f.TCPFlags, f.Ended = 3, 2, 0, "", ""
		}
	}
	for first := 0; first < len(records); first += 100 {
		if n := mustTake(t, s, batch(t, "a", uint64(first), records[first:first+100], nil)); n != 100 {
			t.Fatalf("%d are taken", n)
		}
		s.write()
	}
	s.Flush()
	for _, f := range records {
		f.Node = "n1"
	}
	same(t, "told", told, records)
	same(t, "kept", found(t, mustOpen(t, o), Query{}), records)
}

// A batch that means nothing leaves a part as it is: an entry without a record would make a segment
// that is refused when it is read.
func TestTakeNothingOfNothing(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	s := mustOpen(t, opening(t, &now))
	records := random(9, 3)
	var sent bytes.Buffer
	if _, err := wire.NewWriter(&sent).Write("a", 0, nil, records); err != nil {
		t.Fatal(err)
	}
	message, err := wire.NewReader(&sent).Next()
	if err != nil {
		t.Fatal(err)
	}
	last := len(message.Hows) - 1
	message.Hows[last] = []byte{0xff}
	rows, err := message.Rows("n1")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Take(&Batch{Node: "n1", At: wire.Position{Boot: "a"}, Records: rows}); n != 0 || err == nil {
		t.Errorf("%d are taken, %v", n, err)
	}
	if at := s.Next("n1"); at != (wire.Position{}) || len(s.active.Peers)+len(s.active.Whats)+len(s.active.Hows) > 0 {
		t.Errorf("next is %+v, and there are %d peers", at, len(s.active.Peers))
	}
	// Of what was taken already, entries that no other record has are not taken either.
	b := batch(t, "a", 0, records, nil)
	s.positions["n1"] = &position{Position: wire.Position{Boot: "a", Next: 2}}
	if n := mustTake(t, s, b); n != 3 || len(s.active.rows) != 1 || len(s.active.Peers) > 2 || len(s.active.Hows) != 1 {
		t.Errorf("%d are taken: %d rows, %d peers", n, len(s.active.rows), len(s.active.Peers))
	}
}

// Sums by roll-ups are those of the records.
func TestTop(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	s := mustOpen(t, opening(t, &now))
	s.Add(random(5, 900)...)
	s.Flush()
	s.Add(random(6, 100)...)
	for _, f := range []flows.Filter{{}, {Denied: true}, {From: "ns0"}, {From: "ns1", To: "ns0", Since: epoch.Add(2 * time.Minute), Until: epoch.Add(7 * time.Minute)}} {
		byRollups, _, err := s.Top(t.Context(), Query{Filter: f}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		records := wantedSums(t, s, f)
		if len(byRollups) == 0 || len(byRollups) != len(records) {
			t.Fatalf("%+v: %d sums, of records %d", f, len(byRollups), len(records))
		}
		for i := range byRollups {
			if byRollups[i] != records[i] {
				t.Fatalf("%+v, sum %d: %+v, of records %+v", f, i, byRollups[i], records[i])
			}
		}
	}
}

// Sums of what roll-ups do not tell are of its records alone.
func TestTopOfRecords(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	s := mustOpen(t, opening(t, &now))
	s.Add(random(7, 500)...)
	f := flows.Filter{From: "0.0.0.0/0"}
	got, beyond, err := s.Top(t.Context(), Query{Filter: f}, 3)
	if want := wantedSums(t, s, f); err != nil || beyond != 0 || len(want) < 3 || !slices.Equal(got, want[:3]) {
		t.Errorf("%v, %d beyond: %+v", err, beyond, got)
	}
}

// wantedSums are the sums of records that are looked at one by one.
func wantedSums(t *testing.T, s *Store, f flows.Filter) []flows.Sum {
	t.Helper()
	sums := map[flows.Sum]*[sides]Sum{}
	err := s.Each(t.Context(), Query{Filter: f}, func(r *flows.Flow) bool {
		k := flows.Sum{From: Workload{r.Source.Namespace, r.Source.Workload}.name(), To: Workload{r.Destination.Namespace, r.Destination.Workload}.name(),
			Protocol: r.Protocol, Port: r.Destination.Port, Verdict: r.Verdict}
		if r.Verdict != flows.Allowed && r.Rule != nil && r.Rule.Kind != "" {
			k.Rule = r.Rule.String()
		}
		if sums[k] == nil {
			sums[k] = &[sides]Sum{}
		}
		sums[k][sideOf(r.Ingress, r.Egress)].add(Sum{Records: 1, Packets: r.Sent.Packets + r.Received.Packets, Bytes: r.Sent.Bytes + r.Received.Bytes})
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]flows.Sum, 0, len(sums))
	for k, of := range sums {
		sum := most(of)
		k.Packets, k.Bytes = sum.Packets, sum.Bytes
		out = append(out, k)
	}
	return flows.Largest(out, len(out), f.Denied)
}
