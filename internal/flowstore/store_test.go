// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Segments of tests have more than one page, too.
func TestMain(m *testing.M) {
	pageBytes = 2 << 10
	os.Exit(m.Run())
}

// opening are options of a small store, at a time that a test sets.
func opening(t *testing.T, now *time.Time) Options {
	return Options{Dir: filepath.Join(t.TempDir(), "store"), Age: time.Hour, Bytes: 1 << 30, Records: 1000, Every: time.Minute,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: func() time.Time { return *now }}
}

func mustOpen(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// random returns records of all shapes, whose ends are within ten minutes after the epoch.
func random(seed uint64, n int) []*flows.Flow {
	r := rand.New(rand.NewPCG(seed, 1))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	peer := func() flows.Peer {
		switch r.IntN(5) {
		case 0:
			return flows.Peer{Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(256))}), Port: uint16(r.IntN(65536))}
		case 1:
			a := [16]byte{0x20, 1, 0xd, 0xb8}
			a[15] = byte(r.IntN(256))
			return flows.Peer{Address: netip.AddrFrom16(a), Port: uint16(r.IntN(65536)), Node: pick("", "n1")}
		}
		i := r.IntN(40)
		p := flows.Peer{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: uint16(r.IntN(65536)), Namespace: fmt.Sprintf("ns%d", i%4), Pod: fmt.Sprintf("web%d-x-%d", i%8, i),
			Node: fmt.Sprintf("n%d", i%3)}
		if i%5 > 0 {
			p.Workload = fmt.Sprintf("Deployment web%d", i%8)
			p.Labels = map[string]string{"app": "web", "pod-template-hash": "x"}
		}
		return p
	}
	rule := func() *events.Rule {
		if r.IntN(3) == 0 {
			return nil
		}
		return &events.Rule{Kind: "NetworkPolicy", Name: fmt.Sprintf("ns%d/p", r.IntN(4)), Tier: pick("", "default"), Detail: fmt.Sprintf("ingress[%d]", r.IntN(3))}
	}
	end := func() *events.End {
		if r.IntN(2) == 0 {
			return nil
		}
		e := &events.End{Rule: rule()}
		if r.IntN(3) == 0 {
			e.Staged = &events.Staged{Verdict: pick(flows.Allowed, flows.Denied), Rule: rule()}
		}
		return e
	}
	out := make([]*flows.Flow, n)
	for i := range out {
		f := &flows.Flow{
			End: epoch.Add(time.Duration(r.IntN(600_000)) * time.Millisecond), Node: fmt.Sprintf("n%d", r.IntN(5)), Verdict: pick(flows.Allowed, flows.Allowed, flows.Denied, flows.Dropped),
			Ended: pick("", "closed", "expired"), Protocol: pick("tcp", "udp"), Source: peer(), Destination: peer(), Service: pick("", "db/pg port pg"), Egress: end(), Ingress: end(), Rule: rule(),
			Path: pick("", "local", "vxlan"), Return: pick("", "direct"), HandedOn: r.IntN(9) == 0, DSR: r.IntN(9) == 0, SNAT: r.IntN(9) == 0, TCPFlags: pick("", "SYN ACK"), Handshake: uint32(max(r.IntN(5000)-1000, 0)),
			Sent: flows.Counters{Packets: r.Uint64N(1000), Bytes: r.Uint64N(1 << 40)}, Received: flows.Counters{Packets: r.Uint64N(1000), Bytes: r.Uint64()},
		}
		if f.Protocol == "tcp" && r.IntN(4) > 0 {
			f.Retransmitted = &flows.Retransmitted{Sent: uint64(r.IntN(3)), Received: uint64(r.IntN(900))}
		}
		if r.IntN(4) > 0 {
			f.Start = f.End.Add(-time.Duration(r.IntN(1_000_000_000)) * time.Millisecond)
		}
		if f.Verdict == flows.Dropped {
			f.Reason = "NO_ROUTE"
		}
		out[i] = f
	}
	out[0].Source.Address, out[0].Source.Pod = netip.MustParseAddr("0.0.0.0"), "" // as a DHCP client's
	out[0].Protocol, out[0].ICMP = "icmp", "8/0"
	return out
}

// found are the records that a query finds.
func found(t *testing.T, s *Store, q Query) (out []*flows.Flow) {
	t.Helper()
	if err := s.Each(context.Background(), q, func(f *flows.Flow) bool { out = append(out, f); return true }); err != nil {
		t.Fatal(err)
	}
	return out
}

// wanted are the records that it has to find.
func wanted(all []*flows.Flow, q Query) (out []*flows.Flow) {
	for _, f := range all {
		if q.Wants(f) {
			out = append(out, f)
		}
	}
	return out
}

// same compares records in any order.
func same(t *testing.T, what string, got, want []*flows.Flow) {
	t.Helper()
	order := func(of []*flows.Flow) {
		slices.SortFunc(of, func(a, b *flows.Flow) int {
			return cmp.Or(a.End.Compare(b.End), cmp.Compare(a.Received.Bytes, b.Received.Bytes))
		})
	}
	order(got)
	order(want)
	if len(got) != len(want) {
		t.Errorf("%s: %d records, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("%s, record %d (-want +got):\n%s", what, i, gocmp.Diff(want[i], got[i], cmpopts.EquateComparable(netip.Addr{})))
			return
		}
	}
}

var queries = []Query{
	{},
	{Filter: flows.Filter{Denied: true}},
	{Filter: flows.Filter{From: "ns1"}},
	{Filter: flows.Filter{From: "ns1/web1", To: "ns2"}},
	{Filter: flows.Filter{From: "ns1/web1-x-9"}},
	{Filter: flows.Filter{From: "192.0.2.0/25"}},
	{Filter: flows.Filter{From: "0.0.0.0"}},
	{Filter: flows.Filter{To: "10.0.0.7"}},
	{Filter: flows.Filter{To: "2001:db8::/120", Denied: true}},
	{Filter: flows.Filter{Policy: "p"}},
	{Filter: flows.Filter{Policy: "ns3/p", Denied: true}},
	{Filter: flows.Filter{From: "nowhere"}},
	{Filter: flows.Filter{Policy: "none"}},
	{Filter: flows.Filter{Namespaces: []string{"ns2"}}},
	{Filter: flows.Filter{Namespaces: []string{"ns0", "ns1", "nowhere"}}},
	{Filter: flows.Filter{Since: epoch.Add(3 * time.Minute), Until: epoch.Add(4 * time.Minute)}},
	{Filter: flows.Filter{Since: epoch.Add(3 * time.Minute), Until: epoch.Add(5 * time.Minute), Namespaces: []string{"ns0"}}},
	{Filter: flows.Filter{Since: epoch.Add(time.Hour)}},
	{Filter: flows.Filter{Until: epoch.Add(-time.Second)}},
}

// A store finds what a look at each record finds, and finds it as it was: from memory, from
// segments, and after it was opened again.
func TestFindsWhatWasAdded(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	o.Records = 2500
	s := mustOpen(t, o)
	records := random(1, 6000)
	ask := func(when string, of []*flows.Flow) {
		for _, q := range queries {
			same(t, fmt.Sprintf("%s: %+v", when, q), found(t, s, q), wanted(of, q))
		}
	}
	s.Add(records[:2000]...)
	ask("in memory", records[:2000])
	s.Add(records[2000:4500]...)
	if st := s.Status(); st.Memory != 4500 || st.Segments != 0 {
		t.Fatalf("%+v", st)
	}
	ask("one part is full", records[:4500])
	s.Flush()
	s.Add(records[4500:]...)
	ask("segments and memory", records)
	s.Flush()
	if st := s.Status(); st.Memory != 0 || st.Records != len(records) || st.Segments != 3 || len(st.Lost) != 0 || st.Added != uint64(len(records)) {
		t.Fatalf("%+v", st)
	}
	ask("segments", records)
	before := s.Status()
	s = mustOpen(t, o)
	ask("opened again", records)
	if after := s.Status(); after.Bytes != before.Bytes || after.Records != before.Records || !after.Oldest.Equal(before.Oldest) {
		t.Errorf("%+v, was %+v", after, before)
	}
	n := 0
	if err := s.Each(context.Background(), Query{}, func(*flows.Flow) bool { n++; return n < 3 }); err != nil || n != 3 {
		t.Errorf("%d records, of which the third was to be the last: %v", n, err)
	}
	if err := s.Each(context.Background(), Query{Filter: flows.Filter{From: "a/b/c"}}, nil); err == nil {
		t.Error("a query that is none is taken")
	}
}

// Sums are those of the records, whatever roll-ups they are taken from.
func TestSums(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	s := mustOpen(t, opening(t, &now))
	records := random(2, 2500)
	for part := range slices.Chunk(records[:2400], 800) {
		s.Add(part...)
		s.Flush()
	}
	s.Add(records[2400:]...)
	ctx := context.Background()
	for _, within := range [][2]time.Time{{}, {epoch.Add(2 * time.Minute), epoch.Add(7 * time.Minute)}, {epoch.Add(time.Hour), {}}} {
		type key struct{ a, b, c string }
		rules, namespaces := map[key]Sum{}, map[key]*[sides]Sum{}
		for _, f := range wanted(records, Query{Filter: flows.Filter{Since: within[0], Until: within[1]}}) {
			sum := Sum{Records: 1, Packets: f.Sent.Packets + f.Received.Packets, Bytes: f.Sent.Bytes + f.Received.Bytes}
			if f.Ended != "" || f.Verdict != flows.Allowed {
				sum.Connections = 1
			}
			rule := events.Rule{}
			if f.Rule != nil {
				rule = *f.Rule
			}
			r := key{f.Verdict, f.Reason, fmt.Sprint(rule)}
			of := rules[r]
			of.add(sum)
			rules[r] = of
			n := key{f.Source.Namespace, f.Destination.Namespace, f.Verdict}
			if namespaces[n] == nil {
				namespaces[n] = &[sides]Sum{}
			}
			at := sideNone
			if f.Ingress != nil {
				at = sideDestination
			} else if f.Egress != nil {
				at = sideSource
			}
			namespaces[n][at].add(sum)
		}
		got, err := s.Rules(ctx, within[0], within[1], false)
		if err != nil || len(got) != len(rules) {
			t.Fatalf("%d rules, want %d: %v", len(got), len(rules), err)
		}
		for i, g := range got {
			if want := rules[key{g.Verdict, g.Reason, fmt.Sprint(g.Rule)}]; g.Sum != want {
				t.Errorf("%+v, want %+v", g, want)
			}
			if i > 0 && g.Packets > got[i-1].Packets {
				t.Errorf("%+v is after %+v", g, got[i-1])
			}
		}
		denied, err := s.Rules(ctx, within[0], within[1], true)
		if slices.ContainsFunc(denied, func(r RuleSum) bool { return r.Verdict == flows.Allowed }) || err != nil || len(rules) > 0 && (len(denied) == 0 || len(denied) == len(got)) {
			t.Errorf("denied: %+v, %v", denied, err)
		}
		spaces, err := s.Namespaces(ctx, within[0], within[1], "", "")
		if err != nil || len(spaces) != len(namespaces) {
			t.Fatalf("%d pairs of namespaces, want %d: %v", len(spaces), len(namespaces), err)
		}
		for _, g := range spaces {
			if want := most(namespaces[key{g.From, g.To, g.Verdict}]); g.Sum != want {
				t.Errorf("%+v, want %+v", g, want)
			}
		}
		for _, between := range [][2]string{{"ns1", "ns2"}, {"ns1", ""}, {"", "ns3"}, {"nowhere", ""}} {
			var want []NamespaceSum
			for _, g := range spaces {
				if (between[0] == "" || g.From == between[0]) && (between[1] == "" || g.To == between[1]) {
					want = append(want, g)
				}
			}
			if some, err := s.Namespaces(ctx, within[0], within[1], between[0], between[1]); err != nil || !slices.Equal(some, want) {
				t.Errorf("between %q: %+v, %v, want %+v", between, some, err, want)
			}
		}
		pairs, beyond, err := s.Pairs(ctx, within[0], within[1], "ns1", "")
		if err != nil || beyond != (Sum{}) || len(rules) > 0 && len(pairs) == 0 {
			t.Fatalf("%d pairs, %+v, %v", len(pairs), beyond, err)
		}
		var of uint64
		for _, p := range pairs {
			of += p.Records
			if p.From.Namespace != "ns1" {
				t.Errorf("%+v", p)
			}
		}
		all := uint64(len(wanted(records, Query{Filter: flows.Filter{Since: within[0], Until: within[1], From: "ns1"}})))
		if of > all || of < all/2 { // those of one side count where both sides have some of a pair
			t.Errorf("pairs of %d records of %d", of, all)
		}
	}
}

// A connection between two nodes has records of both: its bytes count once.
func TestBytesOfTwoNodesCountOnce(t *testing.T) {
	t.Parallel()
	now := epoch
	s := mustOpen(t, opening(t, &now))
	record := func(node string, bytes uint64, at ...bool) *flows.Flow {
		f := &flows.Flow{End: epoch, Node: node, Verdict: flows.Allowed, Protocol: "tcp", Ended: "closed", Sent: flows.Counters{Packets: 1, Bytes: bytes},
			Source:      flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Namespace: "a", Pod: "x", Node: "n1"},
			Destination: flows.Peer{Address: netip.MustParseAddr("10.0.0.2"), Namespace: "b", Pod: "y", Node: "n2", Port: 80}}
		if at[0] {
			f.Egress = &events.End{}
		}
		if at[1] {
			f.Ingress = &events.End{}
		}
		return f
	}
	s.Add(record("n1", 100, true, false), record("n2", 100, false, true), record("n1", 50, true, false))
	for range 2 {
		got, err := s.Namespaces(context.Background(), time.Time{}, time.Time{}, "", "")
		if want := []NamespaceSum{{From: "a", To: "b", Verdict: flows.Allowed, Sum: Sum{Records: 2, Connections: 2, Packets: 2, Bytes: 150}}}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
		pairs, _, err := s.Pairs(context.Background(), time.Time{}, time.Time{}, "", "b")
		if err != nil || len(pairs) != 1 || pairs[0].Bytes != 150 || pairs[0].Port != 80 {
			t.Errorf("%+v, %v", pairs, err)
		}
		s.Flush()
	}
}

// What is kept has bounds: the oldest go, and what goes before its age is counted.
func TestBounds(t *testing.T) {
	t.Parallel()
	now := epoch
	o := opening(t, &now)
	s := mustOpen(t, o)
	add := func(n int, seed uint64) {
		records := random(seed, n)
		for _, f := range records {
			f.End = now
		}
		s.Add(records...)
		s.Flush()
	}
	add(500, 1)
	now = now.Add(40 * time.Minute)
	add(500, 2)
	one := s.Status().Bytes / 2
	now = now.Add(30 * time.Minute) // the first is older than an hour
	s.Flush()
	if st := s.Status(); st.Segments != 1 || len(st.Lost) != 0 || st.Bytes > one*3/2 {
		t.Fatalf("by age: %+v", st)
	}
	s.o.Bytes = one * 5 / 2
	add(500, 3)
	add(500, 4)
	st := s.Status()
	if st.Segments != 2 || st.Lost[LostFull] != 500 || st.Bytes > s.o.Bytes {
		t.Errorf("by bytes: %+v", st)
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) != 2 {
		t.Errorf("on the disk: %v, %v", left, err)
	}
	// Times that a node may not claim, and texts without an end.
	early, late, large := random(5, 1)[0], random(6, 1)[0], random(7, 1)[0]
	early.End, late.End, large.End = now.Add(-2*time.Hour), now.Add(time.Hour), now
	large.Source.Labels = map[string]string{"x": strings.Repeat("y", textMost)}
	s.Add(early, late, large)
	if st := s.Status(); st.Lost[LostTime] != 2 || st.Lost[LostLarge] != 1 || st.Memory != 0 {
		t.Errorf("refused: %+v", st)
	}
	if _, err := Open(Options{Dir: o.Dir}); err == nil {
		t.Error("a store without bounds is opened")
	}
}

// Who adds does not wait: what comes while two parts are full is counted.
func TestQueue(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	o.Records = 100
	s := mustOpen(t, o)
	s.writing.Lock() // as while a disk hangs
	records := random(1, 230)
	s.Add(records...)
	if st := s.Status(); st.Memory != 200 || st.Lost[LostQueue] != 30 {
		t.Errorf("%+v", st)
	}
	same(t, "while a disk hangs", found(t, s, Query{}), slices.Clone(records[:200]))
	s.writing.Unlock()
	s.Flush()
	if st := s.Status(); st.Memory != 0 || st.Records != 200 {
		t.Errorf("%+v", st)
	}
	// A disk that takes nothing.
	if err := os.RemoveAll(o.Dir); err != nil {
		t.Fatal(err)
	}
	s.Add(records[:10]...)
	s.Flush()
	if st := s.Status(); st.Lost[LostDisk] != 10 || st.Memory != 0 {
		t.Errorf("%+v", st)
	}
}

// A segment that is not as it was written is refused, when the store is opened or when its tables
// are read; the others are there, and its records are counted. Of a writer that was killed nothing
// is left.
func TestTorn(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		tear func(dir string) error
		read bool // it is seen when it is read
	}{
		{"a file is short", func(dir string) error { return os.Truncate(filepath.Join(dir, fileRows), 100) }, false},
		{"a file is missing", func(dir string) error { return os.Remove(filepath.Join(dir, filePairs)) }, false},
		{"no zone", func(dir string) error { return os.Remove(filepath.Join(dir, zoneFile)) }, false},
		{"a zone that is none", func(dir string) error { return os.WriteFile(filepath.Join(dir, zoneFile), []byte("{"), 0o600) }, false},
		{"a large zone", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, zoneFile), bytes.Repeat([]byte(" "), zoneMost+1), 0o600)
		}, false},
		{"a page is another", func(dir string) error {
			return change(filepath.Join(dir, fileRows), func(b []byte) { b[len(b)/4] ^= 0xff })
		}, true},
		{"a footer is another", func(dir string) error {
			return change(filepath.Join(dir, filePeers), func(b []byte) { clear(b[len(b)-60 : len(b)-8]) })
		}, true},
		{"a file is of zeroes", func(dir string) error { return change(filepath.Join(dir, fileWhats), func(b []byte) { clear(b) }) }, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			now := epoch.Add(10 * time.Minute)
			o := opening(t, &now)
			s := mustOpen(t, o)
			records := random(1, 1500)
			for part := range slices.Chunk(records, 500) {
				s.Add(part...)
				s.Flush()
			}
			if err := x.tear(s.segments[1].dir); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(o.Dir, partPrefix+"000000000009"), 0o700); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, o)
			if st := s.Status(); x.read != (st.Refused == 0) {
				t.Errorf("opened: %+v", st)
			}
			same(t, "what is left", found(t, s, Query{}), slices.Concat(records[:500], records[1000:]))
			if st := s.Status(); st.Refused != 1 || st.Lost[LostTorn] != 500 || st.Segments != 2 {
				t.Errorf("%+v", st)
			}
			left, err := os.ReadDir(o.Dir)
			if err != nil || len(left) != 3 || left[2].Name() != tornPrefix+nameOf(1, 500, 0) {
				t.Errorf("on the disk: %v, %v", left, err)
			}
			s = mustOpen(t, o)
			s.o.Bytes = s.Status().Bytes // no room for what was put aside
			s.Flush()
			if st := s.Status(); st.Refused != 0 || st.Segments != 2 {
				t.Errorf("without room: %+v", st)
			}
		})
	}
}

func change(name string, f func([]byte)) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	f(b)
	return os.WriteFile(name, b, 0o600)
}

// Questions and records at the same time, with segments that come and go.
func TestAtTheSameTime(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	o := opening(t, &now)
	o.Records, o.Bytes = 200, 200<<10
	s := mustOpen(t, o)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				for _, q := range queries[:4] {
					if err := s.Each(ctx, q, func(f *flows.Flow) bool { return q.Wants(f) }); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
				if _, err := s.Namespaces(ctx, epoch.Add(time.Minute), time.Time{}, "", ""); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	total := 0
	for i := range 12 {
		some := random(uint64(i), 150)
		total += len(some)
		s.Add(some...)
		s.Flush()
	}
	cancel()
	wg.Wait()
	st := s.Status()
	if n := uint64(st.Records) + st.Lost[LostFull] + st.Lost[LostQueue]; n != uint64(total) || st.Lost[LostFull] == 0 || st.Memory != 0 || st.Refused != 0 {
		t.Errorf("%+v: %d of %d records", st, n, total)
	}
}

// A name that is in a segment is never denied; few others are taken for one.
func TestBloom(t *testing.T) {
	t.Parallel()
	names := map[string]struct{}{}
	for i := range 3000 {
		names[fmt.Sprintf("ns%d/pod-%d", i%7, i)] = struct{}{}
	}
	b := newBloom(names)
	for n := range names {
		if !b.mayBe(n) {
			t.Fatalf("%s is not there", n)
		}
	}
	wrong := 0
	for i := range 10_000 {
		if b.mayBe(fmt.Sprintf("other/pod-%d", i)) {
			wrong++
		}
	}
	if wrong > 200 || !b.mayBe("10.0.0.0/8") || !b.mayBe("::1") || !b.mayBe("") {
		t.Errorf("%d of 10,000 other names", wrong)
	}
	for i := range 10 * bloomMost / bitsEach {
		names[fmt.Sprintf("more/pod-%d", i)] = struct{}{}
	}
	if b := newBloom(names); len(b) != bloomMost {
		t.Errorf("%d bytes for %d names", len(b), len(names))
	}
}
