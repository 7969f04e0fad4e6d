// SPDX-License-Identifier: Apache-2.0

package answers

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

var (
	server  = netip.MustParseAddr("192.0.2.53")
	client  = netip.MustParseAddr("10.244.1.2")
	stream1 = Stream{Server: server, Client: client, Port: 40000}
	began   = time.Unix(1_000_000, 0)
)

// answer is a message about www.example.com, whose CNAME has so many addresses.
func answer(t testing.TB, n int, more ...dnsmessage.Resource) []byte {
	t.Helper()
	name, cdn := dnsmessage.MustNewName("wWw.example.com."), dnsmessage.MustNewName("a.cdn.test.")
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, Response: true},
		Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
		Answers:   []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: 60}, Body: &dnsmessage.CNAMEResource{CNAME: cdn}}}}
	for i := range n {
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: cdn, Class: dnsmessage.ClassINET, TTL: uint32(50 + i)},
			Body: &dnsmessage.AResource{A: [4]byte{198, 51, byte(i >> 8), byte(i)}}})
	}
	m.Answers = append(m.Answers, more...)
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRead(t *testing.T) {
	t.Parallel()
	https := dnsmessage.HTTPSResource{SVCBResource: dnsmessage.SVCBResource{Priority: 1, Target: dnsmessage.MustNewName(".")}}
	https.SetParam(dnsmessage.SVCParamIPv4Hint, []byte{203, 0, 113, 1, 203, 0, 113, 2})
	https.SetParam(dnsmessage.SVCParamIPv6Hint, netip.MustParseAddr("2001:db8::1").AsSlice())
	a, err := Read(answer(t, 300, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("a.cdn.test."), Class: dnsmessage.ClassINET, TTL: 30}, Body: &https}))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"www.example.com", "a.cdn.test"}; !slices.Equal(a.Names, want) || a.ID != 7 || len(a.Addrs) != 303 {
		t.Fatalf("names %q, want %q; ID %d, %d addresses", a.Names, want, a.ID, len(a.Addrs))
	}
	for i, want := range map[int]Addr{0: {netip.MustParseAddr("198.51.0.0"), 50}, 299: {netip.MustParseAddr("198.51.1.43"), 60},
		300: {netip.MustParseAddr("203.0.113.1"), 30}, 302: {netip.MustParseAddr("2001:db8::1"), 30}} {
		if a.Addrs[i] != want {
			t.Errorf("address %d is %v, want %v", i, a.Addrs[i], want)
		}
	}
	m := answer(t, 2)
	for what, at := range map[string][3]byte{"a question": {2, 1}, "NXDOMAIN": {3, 3}, "no question": {5, 0}} {
		changed := bytes.Clone(m)
		changed[at[0]] = at[1]
		if what == "no question" {
			changed = changed[:12]
			changed[7] = 0
		}
		if _, err := Read(changed); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for n := range m {
		if a, err := Read(m[:n]); err == nil && len(a.Addrs) == 2 {
			t.Errorf("%d bytes of %d are an answer", n, len(m))
		}
	}
	if _, err := Read(answer(t, addrsMost+1)); err == nil {
		t.Error("an answer of any number of addresses is read")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(answer(f, 3))
	f.Fuzz(func(t *testing.T, m []byte) {
		if a, err := Read(m); err == nil && (len(a.Addrs) > addrsMost || len(a.Names) > namesMost) {
			t.Errorf("%d names and %d addresses", len(a.Names), len(a.Addrs))
		}
		ParsePacket(m)
	})
}

// TestStreams sends messages in segments of any size, some again, some late.
func TestStreams(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var all []byte
		var want [][]byte
		for range 1 + r.IntN(5) {
			m := answer(t, r.IntN(200))
			want = append(want, m)
			all = append(binary.BigEndian.AppendUint16(all, uint16(len(m))), m...)
		}
		first := r.Uint32()
		var s Streams
		s.Begin(stream1, first, first+1, began)
		var segments []segment
		for at := 0; at < len(all); {
			n := min(1+r.IntN(1400), len(all)-at)
			back := min(at, r.IntN(3)*100) // of what was sent before
			segments = append(segments, segment{first + 1 + uint32(at-back), all[at-back : at+n]})
			at += n
		}
		for range len(segments) / 4 {
			i, j := r.IntN(len(segments)), r.IntN(len(segments))
			segments[i], segments[j] = segments[j], segments[i]
		}
		var got [][]byte
		for _, g := range segments {
			m, lost := s.Add(stream1, g.seq, g.data, began)
			if lost {
				t.Fatal("a stream is lost")
			}
			got = append(got, m...)
		}
		if !slices.EqualFunc(got, want, bytes.Equal) {
			t.Fatalf("%d messages of %d came", len(got), len(want))
		}
		if s.held != 0 {
			t.Errorf("%d bytes are held of a stream that was read", s.held)
		}
		s.End(stream1)
	}
}

func TestFragments(t *testing.T) {
	t.Parallel()
	m := answer(t, 100)
	whole := append([]byte{0, 53, 0x9c, 0x40, 0, 0, 0, 0}, m...)
	part := func(from, to int) Packet {
		return Packet{Server: server, Client: client, Proto: unix.IPPROTO_UDP, Fragmented: true, ID: 9, Offset: from, More: to < len(whole), Payload: whole[from:to]}
	}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		var f Fragments
		bounds := []int{0, 800, 1600, len(whole)}
		for i, n := range order {
			p, ok := f.Add(part(bounds[n], bounds[n+1]), began)
			if ok != (i == 2) {
				t.Fatalf("order %v: after %d fragments: whole: %v", order, i+1, ok)
			}
			if ok && (!bytes.Equal(p.Payload, m) || p.Fragmented) {
				t.Errorf("order %v: another datagram", order)
			}
		}
	}
	var f Fragments
	f.Add(part(0, 800), began)
	f.Add(part(792, 1600), began)
	if _, ok := f.Add(part(1600, len(whole)), began); ok {
		t.Error("fragments that overlap are a datagram")
	}
	for i := range uint32(1000) {
		p := part(0, 800)
		p.ID = 100 + i
		f.Add(p, began)
	}
	if len(f.of) > datagramsMost {
		t.Errorf("%d datagrams are held", len(f.of))
	}
}

func TestParsePacket(t *testing.T) {
	t.Parallel()
	udp := append([]byte{0, 53, 0x9c, 0x40, 0, 12, 0, 0}, "abcd"...)
	four := append([]byte{0x45, 0, 0, 32, 0, 1, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 53, 10, 244, 1, 2}, udp...)
	if p, ok := ParsePacket(append(four, 0, 0)); !ok || p.Port != 40000 || string(p.Payload) != "abcd" || p.Server != server || p.Client != client || p.Fragmented {
		t.Errorf("IPv4: %+v, %v", p, ok)
	}
	options := bytes.Repeat([]byte{0}, 256*8) // the longest header there is
	options[0], options[1] = 17, 255
	six := append(append([]byte{0x60, 0, 0, 0, 0, 0, 60, 64}, make([]byte, 32)...), append(options, udp...)...)
	binary.BigEndian.PutUint16(six[4:], uint16(len(six)-40))
	if p, ok := ParsePacket(six); !ok || p.Port != 40000 || string(p.Payload) != "abcd" {
		t.Errorf("IPv6: %+v, %v", p, ok)
	}
	for _, b := range [][]byte{four, six} {
		for n := range b {
			if _, ok := ParsePacket(b[:n]); ok {
				t.Errorf("%d bytes of %d are a packet", n, len(b))
			}
		}
	}
	four[21] = 54
	if _, ok := ParsePacket(four); ok {
		t.Error("another port than 53 is a server's")
	}
}
