// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/table"
	"github.com/weir-net/weir/internal/hostile"
)

// whole has every field of a record.
func whole(i int) *flows.Flow {
	rule := &events.Rule{Kind: "NetworkPolicy", Name: "shop/web", Tier: "default", Detail: "ingress[0]"}
	end := time.UnixMilli(1_700_000_000_000 + int64(i)).UTC()
	return &flows.Flow{
		Start: end.Add(-3 * time.Second), End: end, Node: "n1", Verdict: flows.Denied, Reason: "POLICY_INGRESS", Ended: "closed", Protocol: "tcp", ICMP: "8/0",
		Source:      flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Port: uint16(40000 + i), Namespace: "shop", Pod: "web-5d8-abcde", Workload: "Deployment web", Labels: map[string]string{"app": "web", "tier": "front"}, Node: "n1"},
		Destination: flows.Peer{Address: netip.MustParseAddr("2001:db8::7"), Port: 443, Node: "n2"},
		Service:     "shop/pg port pg", Asked: "10.96.0.9:443", Egress: &events.End{Rule: rule, Domain: "*.example.com", Name: "a.example.com"}, Ingress: &events.End{Rule: rule, Staged: &events.Staged{Verdict: "allowed", Rule: rule}}, Rule: rule,
		Path: "vxlan", Return: "direct", HandedOn: true, DSR: true, SNAT: true, Sent: flows.Counters{Packets: uint64(i), Bytes: 1 << 40}, Received: flows.Counters{Packets: 2, Bytes: 3}, TCPFlags: "SYN ACK", Handshake: uint32(300 + i), Retransmitted: &flows.Retransmitted{Sent: uint64(i), Received: 4},
		Records: uint32(i), Connections: uint32(i / 2),
	}
}

// recordsOf are the records of a batch of n1.
func recordsOf(b *Batch) ([]*flows.Flow, error) {
	rows, err := b.Rows("n1")
	if err != nil {
		return nil, err
	}
	numbers := table.NewNumbers()
	m, err := rows.Into(numbers, NewKnown())
	if err != nil {
		return nil, err
	}
	out := make([]*flows.Flow, rows.Len())
	for i := range out {
		r := m.Row(i)
		out[i] = numbers.Flow(&r)
	}
	return out, nil
}

// Entries that are known are not read again, in whichever batch they come, and one that comes in
// another encoding is the same; what is known is bounded.
func TestKnown(t *testing.T) {
	t.Parallel()
	numbers, known := table.NewNumbers(), NewKnown()
	add := func(b *Batch) {
		t.Helper()
		rows, err := b.Rows("n1")
		if err != nil {
			t.Fatal(err)
		}
		m, err := rows.Into(numbers, known)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows.Len() {
			m.Row(i)
		}
	}
	batch := func() *Batch {
		var sent bytes.Buffer
		if _, err := NewWriter(&sent).Write("b1", 0, nil, []*flows.Flow{whole(1), whole(2)}); err != nil {
			t.Fatal(err)
		}
		b, err := NewReader(&sent).Next()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	add(batch())
	if len(known.peers) != 2 || len(known.whats) != 1 || len(known.hows) != 1 {
		t.Fatalf("known are %d, %d, %d", len(known.peers), len(known.whats), len(known.hows))
	}
	bytes, entries := known.bytes, numbers.Bytes
	add(batch())
	if known.bytes != bytes {
		t.Error("the same bytes are learned again")
	}
	other := batch()
	other.Peers[0] = append(other.Peers[0], 0x98, 0x06, 1) // a field that this version does not know
	add(other)
	if len(known.peers) != 3 || numbers.Bytes != entries || len(numbers.Peers) != 2 {
		t.Errorf("of another encoding there are %d known, %d peers", len(known.peers), len(numbers.Peers))
	}
	known.bytes = knownMost + 1
	add(batch())
	if len(known.peers) != 2 || known.bytes > knownMost || len(numbers.Peers) != 2 {
		t.Errorf("after all is forgotten %d are known, %d bytes", len(known.peers), known.bytes)
	}
}

// An agent of a version that does not say how long handshakes took is understood.
func TestWithoutHandshakes(t *testing.T) {
	t.Parallel()
	var sent bytes.Buffer
	if _, err := NewWriter(&sent).Write("b1", 0, nil, []*flows.Flow{whole(1)}); err != nil {
		t.Fatal(err)
	}
	b, err := NewReader(&sent).Next()
	if err != nil {
		t.Fatal(err)
	}
	b.Handshake = nil
	if got, err := recordsOf(b); err != nil || len(got) != 1 || got[0].Handshake != 0 || got[0].Sent != whole(1).Sent {
		t.Errorf("%v, %+v", err, got)
	}
}

// What is sent arrives as it was, several batches one behind the other, each with what was lost.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	bare := &flows.Flow{End: time.UnixMilli(5).UTC(), Node: "n1", Verdict: flows.Allowed, Protocol: "udp"}
	records := []*flows.Flow{whole(1), whole(2), bare}
	var sent bytes.Buffer
	w := NewWriter(&sent)
	for _, some := range [][]*flows.Flow{records, nil} {
		if n, err := w.Write("b1", 7, map[string]uint64{"ring": 4}, some); err != nil || n != len(some) {
			t.Fatal(n, err)
		}
	}
	r := NewReader(&sent)
	for i, want := range [][]*flows.Flow{records, {}} {
		b, err := r.Next()
		if err != nil || b.GetBoot() != "b1" || b.GetFirst() != 7 || b.GetLost()["ring"] != 4 {
			t.Fatalf("batch %d: %v %+v", i, err, b)
		}
		got, err := recordsOf(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("batch %d: %v\n%+v\n%+v", i, err, got, want)
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// What does not fit in one batch is left for the next one.
func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	few := make([]*flows.Flow, MostRecords+1)
	for i := range few {
		few[i] = whole(i)
	}
	large := make([]*flows.Flow, 100)
	for i := range large {
		large[i] = whole(i)
		large[i].Source.Labels = map[string]string{"x": strings.Repeat(fmt.Sprint(i%10), 40<<10) + fmt.Sprint(i)}
	}
	for name, records := range map[string][]*flows.Flow{"number": few, "bytes": large} {
		var sent bytes.Buffer
		n, err := NewWriter(&sent).Write("b1", 0, nil, records)
		if err != nil || n == 0 || n >= len(records) || sent.Len() > MostBytes/2+(100<<10) {
			t.Errorf("%s: %d of %d in %d bytes, %v", name, n, len(records), sent.Len(), err)
		}
		b, err := NewReader(&sent).Next()
		if err != nil || len(b.GetEnd()) != n {
			t.Errorf("%s: %d arrive, %v", name, len(b.GetEnd()), err)
		}
	}
	// One that fits in none is left out: the number of the next says so.
	huge := whole(1)
	huge.Source.Labels = map[string]string{"x": strings.Repeat("y", MostBytes)}
	var sent bytes.Buffer
	n, err := NewWriter(&sent).Write("b1", 5, nil, []*flows.Flow{huge})
	b, errRead := NewReader(&sent).Next()
	if err := errors.Join(err, errRead); err != nil || n != 1 || b.GetFirst() != 6 || len(b.GetEnd()) != 0 {
		t.Errorf("%d, %v, %+v", n, err, b)
	}
}

// A node's batch that means nothing is refused, before it takes much memory.
func TestHostileBatches(t *testing.T) {
	hostile.Record(t, "a compromised node's flow records crash their store, or take its memory", hostile.Node, hostile.ControlPlane, hostile.Both)
	good := func() *Batch {
		var sent bytes.Buffer
		if _, err := NewWriter(&sent).Write("b1", 0, nil, []*flows.Flow{whole(1), whole(2)}); err != nil {
			t.Fatal(err)
		}
		b, err := NewReader(&sent).Next()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, change := range map[string]func(*Batch){
		"a peer that is not there":     func(b *Batch) { b.From[1] = 99 },
		"a peer below none":            func(b *Batch) { b.To[0] = -1 },
		"a decision that is not there": func(b *Batch) { b.What[0] = 1 },
		"a course that is not there":   func(b *Batch) { b.How[0] = 1 << 30 },
		"a node that is not there":     func(b *Batch) { b.At[0] = 3 },
		"a port that is none":          func(b *Batch) { b.Dport[0] = 1 << 16 },
		"an address of three bytes":    func(b *Batch) { b.Destination[0] = []byte{1, 2, 3} },
		"a pod's address of none":      func(b *Batch) { b.Peers[0], _ = proto.Marshal(&Peer{Pod: "p", Address: []byte{1}}) },
		"a peer that is none":          func(b *Batch) { b.Peers[0] = []byte{0xff} },
		"a decision that is none":      func(b *Batch) { b.Whats[0] = []byte{0xff} },
		"a course that is none":        func(b *Batch) { b.Hows[0] = []byte{0xff} },
		"a short column":               func(b *Batch) { b.SentBytes = b.SentBytes[:1] },
		"a short column of times":      func(b *Batch) { b.Handshake = b.Handshake[:1] },
		"many records":                 func(b *Batch) { b.End = make([]int64, MostRecords+1) },
	} {
		b := good()
		change(b)
		if _, err := recordsOf(b); !errors.Is(err, errBatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := &Batch{Peers: make([][]byte, mostFields+1)}
	message, err := proto.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	framed := func(length int, message []byte) io.Reader {
		return bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, uint32(length)), message...))
	}
	for name, r := range map[string]io.Reader{"long": framed(MostBytes+1, nil), "many fields": framed(len(message), message), "no message": framed(2, []byte{0xff, 0xff})} {
		if _, err := NewReader(r).Next(); !errors.Is(err, errBatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewReader(framed(100, []byte{1})).Next(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("cut: %v", err)
	}
}

func TestPositions(t *testing.T) {
	t.Parallel()
	for _, p := range []Position{{}, {Boot: "ABC", Next: 9}} {
		if got, err := ParsePosition(p.Query()); err != nil || got != p {
			t.Errorf("%+v: %+v %v", p, got, err)
		}
	}
	for _, text := range []string{"b", "b/", "/4", "b/-1", "b/4/5"} {
		if p, err := ParsePosition(map[string][]string{"after": {text}}); err == nil {
			t.Errorf("%q is %+v", text, p)
		}
	}
}

// BenchmarkBatch is what a batch of records of 200 pairs costs, both ways, with the records that
// come out of it.
func BenchmarkBatch(b *testing.B) {
	records := make([]*flows.Flow, MostRecords)
	for i := range records {
		records[i] = whole(i)
		records[i].Source.Pod = fmt.Sprint("web-5d8-", i%200)
	}
	var sent bytes.Buffer
	for b.Loop() {
		sent.Reset()
		if n, err := NewWriter(&sent).Write("b1", 0, nil, records); err != nil || n != len(records) {
			b.Fatal(n, err)
		}
		size := sent.Len()
		batch, err := NewReader(&sent).Next()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := recordsOf(batch); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(size)/float64(len(records)), "bytes/record")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(records)), "ns/record")
}
