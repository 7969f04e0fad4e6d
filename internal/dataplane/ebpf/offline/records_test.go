// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/eventring"
	"github.com/weir-net/weir/internal/nettest"
)

// Flags of TCP.
const (
	fin, syn, rst, ack = 1, 2, 4, 16
)

// segment is a packet of the connection to port 80 of dryRunState, or of its answers.
func segment(flags byte, answer bool) []byte {
	b := synTo(80)
	if answer {
		ip, tcp := b[14:34], b[34:]
		copy(ip[12:], []byte{10, 244, 1, 3, 10, 244, 1, 2})
		binary.BigEndian.PutUint16(tcp, 80)
		binary.BigEndian.PutUint16(tcp[2:], 50000)
	}
	b[34+13] = flags
	return b
}

// send runs a program on a packet, so many times: fewer than its TTL.
func send(t *testing.T, p *ebpf.Program, frame []byte, times uint32) {
	t.Helper()
	ctx := make([]byte, 192)
	binary.NativeEndian.PutUint32(ctx[36:], 1)
	binary.NativeEndian.PutUint32(ctx[40:], 1)
	if _, err := p.Run(&ebpf.RunOptions{Data: frame, Context: ctx, Repeat: times}); err != nil {
		t.Error(err)
	}
}

// establish plays a handshake: three packets.
func establish(t *testing.T, p *ebpf.Program) {
	t.Helper()
	send(t, p, segment(syn, false), 1)
	send(t, p, segment(syn|ack, true), 1)
	send(t, p, segment(ack, false), 1)
}

func recordsOf(t *testing.T, r *eventring.Records) (out []dataplane.FlowRecord) {
	t.Helper()
	nettest.Must(t, r.Each(func(f dataplane.FlowRecord) { out = append(out, f) }))
	slices.SortFunc(out, func(a, b dataplane.FlowRecord) int {
		if a.Reply == b.Reply {
			return 0
		}
		if a.Reply {
			return 1
		}
		return -1
	})
	return out
}

// recording returns a node that keeps flow records, and the ring that they come by.
func recording(t *testing.T, interval uint32) (*Node, *eventring.Records) {
	t.Helper()
	o, err := Load(Options{Programs: []string{"weir_from_workload"}, AccountInterval: interval})
	nettest.Must(t, err)
	nettest.Must(t, o.Apply(dryRunState()))
	ring, err := eventring.NewRecords(o.Maps["weir_records"])
	nettest.Must(t, err)
	return o, ring
}

// A connection is reported once, when both ends have closed it and the last FIN is acknowledged,
// with every packet of each direction, also those that two processors carried at once.
func TestFlowRecordsAreExact(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	o, ring := recording(t, 1<<30)
	defer o.Close()
	defer ring.Close()
	p := o.Programs["weir_from_workload"]
	began := time.Now()
	establish(t, p)
	const calls, each = 400, 50
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			for range calls {
				send(t, p, segment(ack, false), each)
			}
		})
	}
	both.Wait()
	if got := recordsOf(t, ring); len(got) != 0 {
		t.Fatalf("reported while it is open: %+v", got)
	}
	send(t, p, segment(fin|ack, false), 1)
	send(t, p, segment(fin|ack, true), 1)
	if got := recordsOf(t, ring); len(got) != 0 {
		t.Fatalf("reported before the last FIN is acknowledged: %+v", got)
	}
	send(t, p, segment(ack, false), 1)
	got := recordsOf(t, ring)
	if len(got) != 2 || got[0].Reply || !got[1].Reply {
		t.Fatalf("records: %+v", got)
	}
	there, back := got[0], got[1]
	const packets = 2*calls*each + 4 // SYN, ACK, FIN, the last ACK
	if there.Packets != packets || there.Bytes != packets*40 || back.Packets != 2 || back.Bytes != 80 {
		t.Errorf("%d packets of %d bytes there, %d of %d back; want %d of %d, 2 of 80", there.Packets, there.Bytes, back.Packets, back.Bytes, packets, packets*40)
	}
	if there.TCPFlags != fin|syn|ack || back.TCPFlags != fin|syn|ack || there.End != dataplane.FlowClosed {
		t.Errorf("flags %#x and %#x, end %q", there.TCPFlags, back.TCPFlags, there.End)
	}
	if there.Src.String() != "10.244.1.2" || there.Dport != 80 || back.Src != there.Src || back.Sport != there.Sport || back.Dst != there.Dst {
		t.Errorf("directions: %+v", got)
	}
	if !there.Egress.Local || there.Egress.Rule != 8 || !there.Ingress.Local || there.Ingress.Rule != 0 || there.Path != dataplane.PathLocal {
		t.Errorf("what policy said: %+v", there)
	}
	if there.Started.Before(began.Add(-time.Second)) || there.Until.Before(there.Started) {
		t.Errorf("from %v to %v, now %v", there.Started, there.Until, time.Now())
	}
}

// An open flow is reported by its next packet when the interval is over, and by a reset at once;
// what was reported is not counted again.
func TestFlowRecordsOfIntervals(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	o, ring := recording(t, 1)
	defer o.Close()
	defer ring.Close()
	p := o.Programs["weir_from_workload"]
	establish(t, p)
	sent, reported := uint64(2), uint64(0)
	for end := time.Now().Add(20 * time.Second); reported == 0; {
		if time.Now().After(end) {
			t.Fatal("no record of an open flow")
		}
		time.Sleep(50 * time.Millisecond)
		send(t, p, segment(ack, false), 1)
		sent++
		for _, r := range recordsOf(t, ring) {
			if r.End != dataplane.FlowGoesOn || !r.First {
				t.Errorf("end %q, first %t", r.End, r.First)
			}
			if !r.Reply {
				reported += r.Packets
			}
		}
	}
	send(t, p, segment(rst, false), 1)
	sent++
	for _, r := range recordsOf(t, ring) {
		if !r.Reply {
			reported += r.Packets
			if r.First || r.End != dataplane.FlowClosed {
				t.Errorf("the second record: end %q, first %t", r.End, r.First)
			}
		}
	}
	if reported != sent {
		t.Errorf("%d packets reported, %d sent", reported, sent)
	}
}

// A record says how long the handshake took, from the SYN to the ACK of the SYN's sender, of both
// directions, unless a segment of it was sent again.
func TestFlowRecordsOfHandshakes(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	const toServer, toClient = 30 * time.Millisecond, 50 * time.Millisecond
	for name, c := range map[string]struct {
		syns, answers int
		known         bool
	}{"once": {1, 1, true}, "SYN again": {2, 1, false}, "SYN-ACK again": {1, 2, false}} {
		o, ring := recording(t, 1<<30)
		p := o.Programs["weir_from_workload"]
		began := time.Now()
		for range c.syns {
			send(t, p, segment(syn, false), 1)
		}
		time.Sleep(toServer)
		for range c.answers {
			send(t, p, segment(syn|ack, true), 1)
		}
		time.Sleep(toClient)
		send(t, p, segment(ack, false), 1)
		most := time.Since(began)
		time.Sleep(toClient) // counts no more
		send(t, p, segment(ack, true), 1)
		send(t, p, segment(rst, false), 1)
		got := recordsOf(t, ring)
		if len(got) != 2 {
			t.Fatalf("%s: records: %+v", name, got)
		}
		for _, r := range got {
			if c.known != (r.Handshake >= toServer+toClient) || r.Handshake > most || !c.known && r.Handshake != 0 {
				t.Errorf("%s: the handshake took %v, of %v at most", name, r.Handshake, most)
			}
		}
		ring.Close()
		o.Close()
	}
}

// data is a segment with so many bytes from a sequence number on.
func data(seq uint32, bytes int, answer bool) []byte {
	b := append(segment(ack, answer), make([]byte, bytes)...)
	binary.BigEndian.PutUint16(b[16:], uint16(40+bytes))
	binary.BigEndian.PutUint32(b[38:], seq)
	return b
}

// A record counts the segments of each direction that bring nothing new, across the wrap of the
// sequence numbers, whatever the other direction's are, and each once; not those without data, nor
// those that bring some that is new.
func TestFlowRecordsOfRetransmissions(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	const begin = 1<<32 - 300 // wraps within the third segment
	for name, c := range map[string]struct {
		segments    [][]byte
		there, back uint64
	}{
		"in order":         {[][]byte{data(begin, 100, false), data(begin+100, 100, false), data(begin+200, 200, false), data(100, 100, false), data(7000, 100, true), data(7100, 100, true)}, 0, 0},
		"again":            {[][]byte{data(begin, 100, false), data(begin, 100, false), data(begin+100, 300, false), data(begin+200, 200, false), data(100, 80, false)}, 2, 0},
		"overtaken":        {[][]byte{data(begin, 100, true), data(begin+200, 300, true), data(begin+100, 100, true), data(200, 100, true)}, 0, 1},
		"more than before": {[][]byte{data(begin, 100, false), data(begin, 200, false), data(begin+100, 300, false)}, 0, 0},
		"without data":     {[][]byte{data(begin, 100, false), data(begin+100, 0, false), data(begin+99, 0, false), data(begin+100, 0, false)}, 0, 0},
		"padded":           {[][]byte{data(begin, 100, false), append(data(begin, 0, false), make([]byte, 6)...), data(begin+100, 1, false), data(begin+100, 1, false)}, 1, 0},
		"both":             {[][]byte{data(5, 100, false), data(5, 100, true), data(5, 100, false), data(5, 100, true), data(5, 90, true)}, 1, 2},
	} {
		o, ring := recording(t, 1<<30)
		p := o.Programs["weir_from_workload"]
		establish(t, p)
		for _, s := range c.segments {
			send(t, p, s, 1)
		}
		send(t, p, segment(rst, false), 1)
		got := recordsOf(t, ring)
		if len(got) != 2 || !got[0].RetransmittedKnown || got[0].Retransmitted != c.there || got[1].Retransmitted != c.back {
			t.Errorf("%s: want %d there, %d back: %+v", name, c.there, c.back, got)
		}
		ring.Close()
		o.Close()
	}
}

// What nobody meets again is reported by who removes it; without accounting nothing is counted.
func TestFlowRecordsOfExpired(t *testing.T) {
	nettest.NeedRoot(t, "loading programs")
	for _, interval := range []uint32{1 << 30, 0} {
		o, err := Load(Options{Programs: []string{"weir_from_workload"}, AccountInterval: interval})
		nettest.Must(t, err)
		nettest.Must(t, o.Apply(dryRunState()))
		establish(t, o.Programs["weir_from_workload"])
		var sum uint64
		m := o.Maps["weir_flows"]
		for key, err := m.NextKeyBytes(nil); key != nil; key, err = m.NextKeyBytes(key) {
			nettest.Must(t, err)
			value, err := m.LookupBytes(key)
			nettest.Must(t, err)
			r, ok := eventring.Expired[abi.Ip4](key, value, time.Now())
			if ok != (interval > 0) {
				t.Errorf("interval %d: reported %v", interval, ok)
			}
			if sum += r.Packets; ok && (r.End != dataplane.FlowExpired || !r.First) {
				t.Errorf("end %q, first %t", r.End, r.First)
			}
		}
		if want := map[bool]uint64{true: 3, false: 0}[interval > 0]; sum != want {
			t.Errorf("interval %d: %d packets, want %d", interval, sum, want)
		}
		o.Close()
	}
}
