// SPDX-License-Identifier: Apache-2.0

package namereader

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/answers"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

const podIfindex = 1

// taught is a reader, without a device, of a pod whose policy has two patterns.
type taught struct {
	*Reader
	t    *testing.T
	node *offline.Node
}

func newTaught(t *testing.T, servers ...netip.Addr) *taught {
	t.Helper()
	nettest.NeedRoot(t, "loads eBPF programs")
	node, err := offline.Load(offline.Options{Programs: []string{}})
	nettest.Must(t, err)
	t.Cleanup(node.Close)
	s := nodestate.New()
	s.Settings.IPv6 = true
	s.Addrs[netip.MustParseAddr("10.244.1.2")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: podIfindex, Egress: nodestate.Isolation{Set: 7}}
	s.Names.Servers = servers
	for p, id := range map[string]nodestate.NameID{"*.example.com": 100, "cdn.test": 101} {
		s.Names.Patterns[p] = id
		s.Names.Sets[nodestate.NameKey{Set: 7, Name: id}] = 9
	}
	nettest.Must(t, node.Apply(s))
	copied, err := node.Teacher()
	nettest.Must(t, err)
	t.Cleanup(copied.Close)
	return &taught{New(node.Maps, copied, slog.New(slog.DiscardHandler)), t, node}
}

// told returns the patterns that the pod knows of an address.
func (r *taught) told(a netip.Addr) (out []uint64) {
	var v abi.WeirNamedValue
	if r.node.Maps["weir_names"].Lookup(abi.WeirNamedKey{Ifindex: podIfindex, Addr: abi.Widen(a)}, &v) != nil {
		return nil
	}
	for _, s := range v.Slots {
		if s.Pattern != 0 {
			out = append(out, s.Pattern)
		}
	}
	slices.Sort(out)
	return out
}

// TestTeach holds that all addresses of an answer are noted with all patterns that its names match,
// however many there are and however long the names, and that one answer counts as one.
func TestTeach(t *testing.T) {
	t.Parallel()
	for i, server := range []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")} {
		r := newTaught(t, server)
		a := &answers.Answer{Names: []string{strings.Repeat("a.", 100) + "example.com"}}
		for n := range 40 {
			a.Names = append(a.Names, fmt.Sprintf("%s.%d.other.test", strings.Repeat("b", 60), n))
		}
		a.Names = append(a.Names, "cdn.test")
		for n := range 300 {
			a.Addrs = append(a.Addrs, answers.Addr{Addr: netip.AddrFrom4([4]byte{198, 51, byte(n >> 8), byte(n)}), TTL: 300})
		}
		a.Addrs = append(a.Addrs, answers.Addr{Addr: netip.MustParseAddr("2001:db8::1"), TTL: 300})
		p := answers.Packet{Server: server, Client: netip.MustParseAddr([]string{"10.244.1.2", "fd00::2"}[i]), Port: 40000, Proto: unix.IPPROTO_UDP}
		noted, full, err := r.teacher.teach(podIfindex, p, a)
		if !noted || full > 0 || err != nil {
			t.Fatalf("noted %v, full %d, %v", noted, full, err)
		}
		for _, addr := range a.Addrs {
			if got := r.told(addr.Addr); !slices.Equal(got, []uint64{100, 101}) {
				t.Fatalf("%s: %s has the patterns %d, want both", server, addr.Addr, got)
			}
		}
	}
}

// TestSegments holds that the message of a stream whose rest comes later is read then, where the
// program has not read it, and that an answer without a question teaches nothing.
func TestSegments(t *testing.T) {
	t.Parallel()
	server, addr := netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("203.0.113.9")
	r := newTaught(t, server)
	name := dnsmessage.MustNewName("x.example.com.")
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 77, Response: true}, Questions: []dnsmessage.Question{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
		Answers: []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: 60}, Body: &dnsmessage.AResource{A: addr.As4()}}}}
	b, err := m.Pack()
	nettest.Must(t, err)
	b = append([]byte{0, byte(len(b))}, b...)
	const first, next = 1000, 5001
	nettest.Must(t, r.streams.Put(question(podIfindex, server, 40000, 0, unix.IPPROTO_TCP), abi.WeirNameStream{First: first, Next: next, State: abi.NameStreamHanded}))
	send := func(from, to int) {
		r.segment(podIfindex, answers.Packet{Server: server, Client: netip.MustParseAddr("10.244.1.2"), Port: 40000, Proto: unix.IPPROTO_TCP,
			Seq: next + uint32(from), Payload: b[from:to]}, time.Now())
	}
	send(0, 2)
	send(10, len(b))
	send(2, 10)
	if r.told(addr) != nil || r.unasked.Load() != 1 {
		t.Errorf("without a question the address is known, or not counted as unasked: %d", r.unasked.Load())
	}
	nettest.Must(t, r.teacher.asked.Put(question(podIfindex, server, 40000, 77, unix.IPPROTO_TCP), uint32(1)))
	r.follows.End(answers.Stream{Server: server, Client: netip.MustParseAddr("10.244.1.2"), Port: 40000})
	send(0, 20)
	if r.told(addr) != nil {
		t.Error("a message counts before it is whole")
	}
	send(20, len(b))
	if got := r.told(addr); !slices.Equal(got, []uint64{100}) {
		t.Errorf("the address has the patterns %d", got)
	}
	counts := map[string]uint64{}
	if r.Counts(counts); counts["noted"] != 1 || counts["unread"] != 0 {
		t.Errorf("counts: %v", counts)
	}
}
