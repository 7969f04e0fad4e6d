// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nettest"
)

// TestMain runs the tests in a network namespace of their own, which ends with the process.
func TestMain(m *testing.M) { nettest.Main(m, 0, nil) }

func tuple(proto uint8, src, dst string, id uint16) Tuple {
	if proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6 {
		t := Tuple{Proto: proto, Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), ID: id, Type: EchoRequest}
		if proto == unix.IPPROTO_ICMPV6 {
			t.Type = Echo6Request
		}
		return t
	}
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return Tuple{Proto: proto, Src: s.Addr(), Dst: d.Addr(), SrcPort: s.Port(), DstPort: d.Port()}
}

func timestamp(t Tuple) Tuple {
	t.Type = 13
	return t
}

// examples are connections of every kind that is carried over, by name.
func examples() map[string]Entry {
	entry := func(orig, after Tuple) Entry {
		e := Entry{Orig: orig, Reply: after.Reversed(), Left: time.Hour, Mark: 0x10000, Status: SeenReply | Assured | Confirmed}
		switch orig.Proto {
		case unix.IPPROTO_TCP:
			e.TCP = TCP{State: TCPEstablished, OrigFlags: TCPLiberal, RepFlags: TCPLiberal}
		case unix.IPPROTO_SCTP:
			e.SCTP = SCTPEstablished
		}
		return e
	}
	const tcp, udp, sctp, icmp, icmp6 = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6
	plain := tuple(tcp, "10.244.1.2:40000", "10.244.2.2:80", 0)
	closing := entry(tuple(tcp, "10.244.1.2:40001", "10.96.0.1:80", 0), tuple(tcp, "10.244.1.2:40001", "10.244.2.2:8080", 0))
	closing.TCP = TCP{State: TCPTimeWait, OrigFlags: TCPLiberal | TCPCloseInit, RepFlags: TCPLiberal | TCPCloseInit}
	half := entry(tuple(tcp, "10.244.1.2:40002", "10.96.0.1:80", 0), tuple(tcp, "10.244.1.2:40002", "10.244.2.2:8080", 0))
	half.TCP.State, half.Status = TCPSynSent, Confirmed
	return map[string]Entry{
		"plain":                 entry(plain, plain),
		"service":               entry(tuple(tcp, "10.244.1.2:40000", "10.96.0.1:80", 0), tuple(tcp, "10.244.1.2:40000", "10.244.2.3:8080", 0)),
		"service, UDP":          entry(tuple(udp, "10.244.1.2:40000", "10.96.0.1:53", 0), tuple(udp, "10.244.1.2:40000", "10.244.2.3:5353", 0)),
		"service, SCTP":         entry(tuple(sctp, "10.244.1.2:40000", "10.96.0.1:53", 0), tuple(sctp, "10.244.1.2:40000", "10.244.2.3:5353", 0)),
		"masqueraded":           entry(tuple(tcp, "10.244.1.2:41000", "192.0.2.1:443", 0), tuple(tcp, "172.30.0.8:20017", "192.0.2.1:443", 0)),
		"masqueraded echo":      entry(tuple(icmp, "10.244.1.2", "192.0.2.1", 77), tuple(icmp, "172.30.0.8", "192.0.2.1", 20018)),
		"masqueraded timestamp": entry(timestamp(tuple(icmp, "10.244.1.2", "192.0.2.1", 79)), timestamp(tuple(icmp, "172.30.0.8", "192.0.2.1", 20024))),
		"both ends":             entry(tuple(tcp, "172.30.0.55:50000", "172.30.0.8:30001", 0), tuple(tcp, "172.30.0.8:20019", "10.244.2.3:8080", 0)),
		"source port":           entry(tuple(tcp, "172.30.0.55:50001", "172.30.0.8:30001", 0), tuple(tcp, "172.30.0.55:20020", "172.30.0.8:9000", 0)),
		"hairpin":               entry(tuple(udp, "10.244.1.2:41001", "10.96.0.1:53", 0), tuple(udp, "172.30.0.8:20021", "10.244.1.2:53", 0)),
		"closing":               closing,
		"half open":             half,
		"IPv6":                  entry(tuple(tcp, "[fd00::2]:40000", "[fd96::1]:80", 0), tuple(tcp, "[fd30::8]:20022", "[fd00::3]:8080", 0)),
		"IPv6, echo":            entry(tuple(icmp6, "fd00::2", "fd01::1", 78), tuple(icmp6, "fd30::8", "fd01::1", 20023)),
		"without ports":         entry(Tuple{Proto: 50, Src: plain.Src, Dst: plain.Dst}, Tuple{Proto: 50, Src: netip.MustParseAddr("172.30.0.8"), Dst: plain.Dst}),
	}
}

// natBits are what the kernel adds to the status.
const natBits = Status(1<<4 | 1<<5 | 1<<7 | 1<<8)

func same(got, want Entry) bool {
	got.Status &^= natBits
	if d := want.Left - got.Left; d < 0 || d > 5*time.Minute {
		return false
	}
	got.Left = want.Left
	return got == want
}

// What is written is what the kernel returns, in either direction and in the list of all.
func TestKernelKeepsWhatIsWritten(t *testing.T) {
	table := opened(t)
	for name, e := range examples() {
		if put, err := table.Put(e, nil); err != nil || !put {
			t.Errorf("%s: written %v, %v", name, put, err)
			continue
		}
		for _, of := range []Tuple{e.Orig, e.Reply} {
			if got, found, err := table.Find(of); err != nil || !found || !same(got, e) {
				t.Errorf("%s: by %v there is %+v (%v, %v), want %+v", name, of, got, found, err, e)
			}
		}
		if put, err := table.Put(e, nil); err != nil || put {
			t.Errorf("%s: written again: %v, %v", name, put, err)
		}
	}
	listed := map[Tuple]Entry{}
	for _, six := range []bool{false, true} {
		if err := table.Each(six, func(e Entry) { listed[e.Orig] = e }); err != nil {
			t.Fatal(err)
		}
	}
	if len(listed) != len(examples()) {
		t.Errorf("%d connections are listed, want %d", len(listed), len(examples()))
	}
	for name, e := range examples() {
		if !same(listed[e.Orig], e) {
			t.Errorf("%s is listed as %+v, want %+v", name, listed[e.Orig], e)
		}
		if err := table.Delete(e.Reply); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, found, err := table.Find(e.Orig); found || err != nil {
			t.Errorf("%s is there after it was forgotten (%v)", name, err)
		}
	}
}

// opened opens the table of the test's own namespace, for as long as the test takes.
func opened(t *testing.T) *Table {
	t.Helper()
	nettest.NeedRoot(t, "connection tracking of a namespace of its own")
	table, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}

// A connection takes the place of others that have one of its tuples, unless these are to be kept.
func TestPutReplaces(t *testing.T) {
	table := opened(t)
	want := examples()["service"]
	other := want
	other.Reply.Src = netip.MustParseAddr("10.244.2.9")
	behind := want
	behind.Orig = want.Reply.Reversed()
	against := behind
	against.Orig, against.Reply = behind.Reply, behind.Orig
	for name, there := range map[string]Entry{"another backend": other, "as it is seen behind the translation": behind, "picked up by an answer": against} {
		if _, err := table.Put(there, nil); err != nil {
			t.Fatal(err)
		}
		if put, err := table.Put(want, func(Entry) bool { return true }); put || err != nil {
			t.Errorf("%s is to be kept: %v, %v", name, put, err)
		}
		if put, err := table.Put(want, func(Entry) bool { return false }); !put || err != nil {
			t.Errorf("%s is to be replaced: %v, %v", name, put, err)
		}
		if got, found, err := table.Find(want.Reply); err != nil || !found || !same(got, want) {
			t.Errorf("%s: there is %+v (%v, %v)", name, got, found, err)
		}
		if err := table.Delete(want.Orig); err != nil {
			t.Fatal(err)
		}
	}
}

// The kernel takes the rules of every Hold, and they are gone when it is released; to release what
// is not there is no error.
func TestHold(t *testing.T) {
	nettest.NeedRoot(t, "connection tracking of a namespace of its own")
	ctx := context.Background()
	for _, o := range []HoldOptions{{InterfacePrefix: "cali"}, {InterfacePrefix: "cali", TunnelPort: 4789}} {
		release, err := Hold(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Hold(ctx, o); err != nil {
			t.Errorf("holding while another holds: %v", err)
		}
		there := func() bool { return kernel.NFT(ctx, "add rule inet "+holdTable+" forward counter\n", nftTime) == nil }
		if !there() {
			t.Error("there is no table")
		}
		stopped, stop := context.WithCancel(ctx)
		stop()
		if _, err := Hold(stopped, o); err != nil || !there() {
			t.Errorf("holding while the caller ends: %v", err)
		}
		if err := errors.Join(release(), release()); err != nil {
			t.Error(err)
		}
		if there() {
			t.Error("the table is still there")
		}
		if _, err := Hold(ctx, o); errors.Join(err, ReleaseHold()) != nil || there() {
			t.Errorf("a hold does not end (%v)", err)
		}
	}
	t.Setenv("PATH", "")
	if release, err := Hold(ctx, HoldOptions{InterfacePrefix: "cali"}); err == nil || release() != nil {
		t.Errorf("without the nft program: %v", err)
	}
}

func TestRoom(t *testing.T) {
	for _, c := range [][3]int{{1000, 0, 900}, {1000, 899, 1}, {1000, 950, 0}, {0, 5, math.MaxInt}} {
		if got := room(c[0], c[1]); got != c[2] {
			t.Errorf("of %d with %d there is room for %d, want %d", c[0], c[1], got, c[2])
		}
	}
	nettest.NeedRoot(t, "connection tracking of a namespace of its own")
	if got, err := Room(); err != nil || got <= 0 {
		t.Errorf("there is room for %d (%v)", got, err)
	}
}

// No answer of a kernel, whatever it is, does more than fail.
func FuzzDecode(f *testing.F) {
	for _, e := range examples() {
		f.Add(append([]byte{2, 0, 0, 0}, e.encode()...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decode(b)
		if err == nil && (!e.Orig.valid() || !e.Reply.valid()) {
			t.Errorf("a connection without addresses: %+v", e)
		}
	})
}
