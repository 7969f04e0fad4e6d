// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/nettest"
)

const tcActRedirect = 7

// reader has an agent be there, so long ago.
func (a *answers) reader(ago int64) {
	a.t.Helper()
	var now unix.Timespec
	nettest.Must(a.t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	var handed uint32
	nettest.Must(a.t, a.node.Maps["weir_name_handed"].Lookup(uint32(0), &handed))
	nettest.Must(a.t, a.node.Maps["weir_name_reader"].Put(uint32(0), abi.WeirNameReader{Beat: uint64(now.Nano() - ago), Ifindex: podIfindex, Done: handed}))
}

// readerHas has an agent be there that has so many packets to read, all of other pods.
func (a *answers) readerHas(waiting uint32) {
	a.t.Helper()
	a.reader(0)
	var r abi.WeirNameReader
	nettest.Must(a.t, a.node.Maps["weir_name_reader"].Lookup(uint32(0), &r))
	nettest.Must(a.t, a.node.Maps["weir_name_handed"].Put(uint32(0), r.Done+waiting))
}

// hands runs the program on a frame and reports whether it leads to the agent, with the index of
// the pod's interface in it.
func (a *answers) hands(data []byte) bool {
	a.t.Helper()
	opts := &ebpf.RunOptions{Data: data, DataOut: make([]byte, len(data)+256)}
	ret, err := a.node.Programs[object.NamesProgram].Run(opts)
	nettest.Must(a.t, err)
	if ret == tcActRedirect && (opts.DataOut[6] != 2 || binary.NativeEndian.Uint32(opts.DataOut[8:]) != podIfindex) {
		a.t.Errorf("the frame that goes to the agent has the source address % x", opts.DataOut[6:12])
	}
	return ret == tcActRedirect
}

// segment is one of TCP from a server to the pod.
func segment(from, to netip.Addr, seq uint32, flags byte, data []byte) []byte {
	f := frame(from, to, 53, true, nil)
	f = append(f[:len(f)-2], data...)
	l4 := 14 + 20
	if from.Is4() {
		binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
	} else {
		l4 = 14 + 40
		binary.BigEndian.PutUint16(f[18:], uint16(len(f)-l4))
	}
	binary.BigEndian.PutUint32(f[l4+4:], seq)
	f[l4+13] = flags
	return f
}

// TestNamesHandStream holds which segments of TCP the program reads, and which go to the agent.
func TestNamesHandStream(t *testing.T) {
	t.Parallel()
	a := newAnswers(t, "*.example.com")
	m := message(t, true, "b.example.com.", record{"b.example.com.", "192.0.2.1", 300})
	whole := append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...)
	for server, pod := range map[netip.Addr]netip.Addr{dnsServer: podAddr, dnsServer6: podAddr6} {
		const syn, ack = 0x12, 0x10
		first := uint32(1<<32 - 20) // and on over 0
		a.reader(0)
		begin := func(isn uint32) {
			t.Helper()
			if a.hands(segment(server, pod, isn, syn, nil)) {
				t.Errorf("%s: a SYN goes to the agent", server)
			}
		}
		n := uint32(len(whole))
		for i := range uint32(2) {
			isn := first + 100*i
			a.asked(server, 6)
			begin(isn)
			if a.hands(segment(server, pod, isn+1, ack, whole)) || a.told("192.0.2.1") == nil {
				t.Errorf("%s: a whole message is not read", server)
			}
			if a.hands(segment(server, pod, isn+1, ack, whole)) || a.hands(segment(server, pod, isn+1+n, ack, nil)) || a.hands(segment(server, pod, isn, syn, nil)) {
				t.Errorf("%s: what was sent again goes to the agent", server)
			}
			if !a.hands(segment(server, pod, isn+1+n, ack, whole[:2])) {
				t.Errorf("%s: the length of a message by itself does not go to the agent", server)
			}
			if !a.hands(segment(server, pod, isn+1+n+2, ack, whole)) || !a.hands(segment(server, pod, isn+1+n, 0x11, nil)) {
				t.Errorf("%s: what follows does not go the same way", server)
			}
		}
		begin(first + 1000)
		if !a.hands(segment(server, pod, first+1002, ack, whole)) {
			t.Errorf("%s: a segment with one missing before it is read here", server)
		}
		begin(first + 2000)
		a.reader(2e9)
		unread := a.counts()["unread"]
		if a.hands(segment(server, pod, first+2001, ack, whole[:9])) {
			t.Errorf("%s: a segment goes to an agent that is not there", server)
		}
		a.reader(0)
		if a.hands(segment(server, pod, first+2010, ack, whole[9:])) || a.counts()["unread"] != unread+1 {
			t.Errorf("%s: the rest of a stream that was lost goes to the agent; unread %d, were %d", server, a.counts()["unread"], unread)
		}
	}
}

// TestNamesHandMessage holds the same of datagrams, and that no more wait for the agent than may.
func TestNamesHandMessage(t *testing.T) {
	t.Parallel()
	a := newAnswers(t, "*.example.com")
	var many []record
	for i := range 70 {
		many = append(many, record{"b.example.com.", fmt.Sprint("192.0.2.", i), 300})
	}
	m := message(t, true, "b.example.com.", many...)
	for server, pod := range map[netip.Addr]netip.Addr{dnsServer: podAddr, dnsServer6: podAddr6} {
		f := frame(server, pod, 53, false, m)
		a.asked(server, 17)
		if a.hands(f) {
			t.Error("an answer goes to an agent that was never there")
		}
		a.reader(0)
		if a.hands(f) {
			t.Error("an answer that nobody asked for goes to the agent")
		}
		for i := range abi.NameHandedEach + 1 {
			a.asked(server, 17)
			if got, want := a.hands(f), i < abi.NameHandedEach; got != want {
				t.Fatalf("answer %d goes to the agent, which has read none: %v", i, got)
			}
		}
		a.readerHas(abi.NameHandedMost)
		a.asked(server, 17)
		if a.hands(f) {
			t.Error("an answer goes to an agent that has to read as many as may wait for it")
		}
		a.reader(0)
		a.asked(server, 17)
		if a.hands(frame(server, pod, 53, false, message(t, true, "b.example.com.", many[:3]...))) {
			t.Error("an answer goes to the agent that is read here")
		}
		nettest.Must(t, a.node.Maps["weir_name_reader"].Put(uint32(0), abi.WeirNameReader{}))
	}
	if a.told("192.0.2.63") == nil {
		t.Error("without an agent, what can be read is not noted")
	}
}

// fragmentsOf makes two fragments of a frame.
func fragmentsOf(f []byte, first int) (out [2][]byte) {
	four := f[12] == 8
	head := 14 + 20
	if !four {
		head = 14 + 40
	}
	for i, b := range [][]byte{f[head : head+first], f[head+first:]} {
		begin, more := i*first, 1-i
		out[i] = append([]byte(nil), f[:head]...)
		if four {
			binary.BigEndian.PutUint16(out[i][16:], uint16(20+len(b)))
			out[i][18], out[i][19] = 0x12, 0x34
			binary.BigEndian.PutUint16(out[i][20:], uint16(begin/8|more<<13))
		} else {
			binary.BigEndian.PutUint16(out[i][18:], uint16(8+len(b)))
			out[i] = append(out[i], out[i][20], 0, byte((begin|more)>>8), byte(begin|more), 1, 2, 3, 4)
			out[i][20] = 44
		}
		out[i] = append(out[i], b...)
	}
	return out
}

// TestNamesHandFragments: the fragments of a datagram whose first does not have the whole answer go
// to the agent, and those of others, or in another order, do not.
func TestNamesHandFragments(t *testing.T) {
	t.Parallel()
	a := newAnswers(t, "*.example.com")
	var many []record
	for i := range 60 {
		many = append(many, record{"b.example.com.", fmt.Sprint("192.0.2.", i), 300})
	}
	a.reader(0)
	for server, pod := range map[netip.Addr]netip.Addr{dnsServer: podAddr, dnsServer6: podAddr6} {
		f := fragmentsOf(frame(server, pod, 53, false, message(t, true, "b.example.com.", many...)), 512)
		if a.hands(f[1]) {
			t.Errorf("%s: a fragment goes to the agent whose first did not", server)
		}
		if a.hands(f[0]) {
			t.Errorf("%s: a fragment of an answer that nobody asked for goes to the agent", server)
		}
		a.asked(server, 17)
		if !a.hands(f[0]) || !a.hands(f[1]) {
			t.Errorf("%s: fragments do not go to the agent", server)
		}
		f = fragmentsOf(frame(server.Next(), pod, 53, false, message(t, true, "b.example.com.", many...)), 512)
		if a.hands(f[0]) || a.hands(f[1]) {
			t.Errorf("%s: fragments of another server go to the agent", server)
		}
	}
}
