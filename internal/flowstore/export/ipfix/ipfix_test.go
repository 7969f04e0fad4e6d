// SPDX-License-Identifier: Apache-2.0

package ipfix

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore/export"
)

// records are n of IPv4 and n of IPv6, by turns.
func records(n int) (out []*flows.Flow) {
	for i := range 2 * n {
		f := &flows.Flow{Start: time.Unix(1_700_000_000, 0), End: time.Unix(1_700_000_010, 5e6), Verdict: flows.Allowed, Protocol: "tcp", TCPFlags: "SYN ACK FIN", Ended: "closed",
			Source:      flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Port: uint16(40000 + i)},
			Destination: flows.Peer{Address: netip.MustParseAddr("192.0.2.7"), Port: 443}, Sent: flows.Counters{Packets: 7, Bytes: 700}, Received: flows.Counters{Packets: 9, Bytes: 9000}}
		if i%2 == 1 {
			f.Source.Address, f.Destination.Address = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
			f.Protocol, f.TCPFlags, f.Ended, f.Verdict = "udp", "", "", flows.Denied
		}
		out = append(out, f)
	}
	return out
}

// message is one as RFC 7011 has it.
type message struct {
	sequence uint32
	sets     map[uint16][]byte
}

func parse(t *testing.T, b []byte) message {
	t.Helper()
	be := binary.BigEndian
	if len(b) < headerLen || be.Uint16(b) != 10 || int(be.Uint16(b[2:])) != len(b) || be.Uint32(b[12:]) != domain {
		t.Fatalf("the header of %d bytes is %x", len(b), b[:min(len(b), headerLen)])
	}
	m := message{sequence: be.Uint32(b[8:]), sets: map[uint16][]byte{}}
	for b = b[headerLen:]; len(b) > 0; {
		n := int(be.Uint16(b[2:]))
		if n < 4 || n > len(b) {
			t.Fatalf("a set of %d bytes, of %d", n, len(b))
		}
		m.sets[be.Uint16(b)], b = b[4:n], b[n:]
	}
	return m
}

// Messages are small enough for UDP, begin with the templates, and count records on.
func TestMessages(t *testing.T) {
	t.Parallel()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := New("udp://"+l.LocalAddr().String(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Now()
	s.now = func() time.Time { return now }
	b := make([]byte, 1<<16)
	read := func() message {
		if err := l.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, _, err := l.ReadFrom(b)
		if err != nil || n > messageMost {
			t.Fatalf("%d bytes, %v", n, err)
		}
		return parse(t, bytes.Clone(b[:n]))
	}
	seen := uint32(0)
	for round := range 3 {
		if err := s.Send(t.Context(), records(100)); err != nil {
			t.Fatal(err)
		}
		if round != 1 { // the third is later
			m := read()
			if want := appendTemplates(nil)[4:]; !bytes.Equal(m.sets[templateSet], want) || m.sequence != seen {
				t.Fatalf("%+v", m)
			}
		}
		if round == 1 {
			now = now.Add(templateTime)
		}
		of := map[uint16]int{}
		for of[template4]+of[template6] < 200 {
			m := read()
			if m.sequence != seen {
				t.Fatalf("a message begins with %d, after %d", m.sequence, seen)
			}
			for id, set := range m.sets {
				size := lengthOf(fields4)
				if id == template6 {
					size = lengthOf(fields6)
				}
				if len(set)%size != 0 || len(set) == 0 {
					t.Fatalf("set %d has %d bytes, records %d", id, len(set), size)
				}
				of[id] += len(set) / size
				seen += uint32(len(set) / size)
			}
		}
		if of[template4] != 100 || of[template6] != 100 {
			t.Errorf("%v", of)
		}
	}
}

// What IPFIX cannot say is refused, the others are sent.
func TestRefused(t *testing.T) {
	t.Parallel()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := New("udp://"+l.LocalAddr().String(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	all := records(1)
	mixed, none := *all[0], *all[0]
	mixed.Destination.Address, none.Source.Address = all[1].Destination.Address, netip.Addr{}
	var refused *export.Refused
	if err := s.Send(t.Context(), append(all, &mixed, &none)); !errors.As(err, &refused) || refused.Records != 2 {
		t.Errorf("%v", err)
	}
	if s.sequence != 2 {
		t.Errorf("%d records were sent", s.sequence)
	}
	for _, to := range []string{"", "udp://", "c:4739", "http://c", "udp://c:x"} {
		if _, err := New(to, ""); err == nil {
			t.Errorf("%q is taken", to)
		}
	}
	if s, err := New("tls://c", ""); err != nil || s.addr.Port != SecurePort {
		t.Errorf("%+v, %v", s, err)
	}
}

// By TCP, templates come again with each connection, and a connection that ends is an error that is
// worth another try.
func TestStream(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := New("tcp://"+l.Addr().String(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 {
		if err := s.Send(t.Context(), records(1)); err != nil {
			t.Fatal(err)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		head := make([]byte, headerLen)
		for _, want := range []struct {
			set      uint16
			sequence uint32
		}{{templateSet, 0}, {template4, 0}, {template6, 1}} {
			if _, err := io.ReadFull(conn, head); err != nil {
				t.Fatal(err)
			}
			rest := make([]byte, int(binary.BigEndian.Uint16(head[2:]))-headerLen)
			if _, err := io.ReadFull(conn, rest); err != nil {
				t.Fatal(err)
			}
			if m := parse(t, append(bytes.Clone(head), rest...)); m.sets[want.set] == nil || m.sequence != want.sequence {
				t.Errorf("%+v, want %+v", m, want)
			}
		}
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		var refused *export.Refused
		for {
			if err = s.Send(t.Context(), records(1)); err != nil {
				break
			}
		}
		if errors.As(err, &refused) || s.conn != nil {
			t.Errorf("%v", err)
		}
	}
	l.Close()
	if err := s.Send(t.Context(), records(1)); err == nil {
		t.Error("it is sent to nobody")
	}
}

// nfdump reads what was sent.
func TestNfdump(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nfcapd", "nfdump"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: hack/setup.sh installs nfdump", err)
		}
	}
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.LocalAddr().(*net.UDPAddr).Port
	free.Close()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said bytes.Buffer
	capture := exec.CommandContext(ctx, "nfcapd", "-b", "127.0.0.1", "-p", strconv.Itoa(port), "-w", dir)
	capture.Stdout, capture.Stderr = &said, &said
	if err := capture.Start(); err != nil {
		t.Fatal(err)
	}
	s, err := New(fmt.Sprintf("udp://127.0.0.1:%d", port), "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// Until it listens, an ICMP error answers, which the next write returns.
	for len(listening(t, port)) == 0 {
		if ctx.Err() != nil {
			t.Fatalf("nfcapd does not listen: %s", said.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := s.Send(t.Context(), records(50)); err != nil {
		t.Fatal(err)
	}
	// What it has not read when it ends is lost: ss says how much that is, after the state.
	for fields := strings.Fields(listening(t, port)); len(fields) < 2 || fields[1] != "0"; fields = strings.Fields(listening(t, port)) {
		if ctx.Err() != nil {
			t.Fatal("nfcapd does not read")
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond) // for the message in its hands
	if err := capture.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := capture.Wait(); err != nil {
		t.Fatalf("nfcapd: %v: %s", err, said.String())
	}
	out, err := exec.CommandContext(ctx, "nfdump", "-R", dir, "-q", "-6", "-o", "fmt:%tsr %ter %pr %sa %sp %da %dp %flg %pkt %byt %opkt %obyt").CombinedOutput()
	if err != nil {
		t.Fatalf("nfdump: %v: %s\n%s", err, out, said.String())
	}
	four, six := 0, 0
	for line := range strings.Lines(string(out)) {
		f := strings.Join(strings.Fields(line), " ")
		switch {
		case strings.Contains(f, "TCP 10.0.0.1 40") && strings.Contains(f, " 192.0.2.7 443 ") && strings.Contains(f, "A.") && strings.HasSuffix(f, " 7 700 9 9000") && strings.HasPrefix(f, "1700000000.000 1700000010.005 "):
			four++
		case strings.Contains(f, "UDP 2001:db8::1 40") && strings.Contains(f, " 2001:db8::2 443 ") && strings.HasSuffix(f, " 7 700 9 9000"):
			six++
		}
	}
	if four != 50 || six != 50 {
		t.Errorf("%d of IPv4, %d of IPv6:\n%s\n%s", four, six, out, said.String())
	}
}

// listening has the sockets of a port.
func listening(t *testing.T, port int) string {
	t.Helper()
	out, err := exec.Command("ss", "-Hlun", "sport", "=", strconv.Itoa(port)).CombinedOutput()
	if err != nil {
		t.Fatalf("ss: %v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}
