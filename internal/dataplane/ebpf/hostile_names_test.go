// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// forgedAddr is where forged answers say that a name of the pod's policy is, namedAddr is where
// rightful ones do.
const (
	forgedAddr = "203.0.113.66"
	namedAddr  = "192.0.2.1"
)

func forgedAnswer(t *testing.T) []byte {
	t.Helper()
	return message(t, true, "b.example.com.", record{"b.example.com.", forgedAddr, 300})
}

// rightful fails the test unless an answer of the trusted server to a question counts.
func (a *answers) rightful() {
	a.t.Helper()
	a.answer(message(a.t, true, "b.example.com.", record{"b.example.com.", namedAddr, 300}))
	if a.told(namedAddr) == nil {
		a.t.Fatal("a trusted server's answer to a question does not count: nothing was shown")
	}
}

// TestHostileUntrustedServer: a pod may ask whom it likes, and what others than the trusted servers
// tell it opens nothing for it, of either family and whichever way it asked.
func TestHostileUntrustedServer(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a DNS server that is not trusted tells a pod where a name of its policy leads", hostile.Pod, hostile.EBPF, hostile.Both)
	a := newAnswers(t, "*.example.com")
	a.rightful()
	server, server6 := podAddr.Next(), podAddr6.Next()
	for _, proto := range []uint32{6, 17} {
		a.asked(server, proto)
		a.run(frame(server, podAddr, 53, proto == 6, forgedAnswer(t)))
		a.asked(server6, proto)
		a.run(frame(server6, podAddr6, 53, proto == 6, forgedAnswer(t)))
	}
	if got := a.told(forgedAddr); got != nil {
		t.Errorf("it is a name's: %v", got)
	}
}

// TestHostileUnaskedAnswer: who sends in the name of a trusted server has to know a question that
// the pod has open: the port and the number of the message.
func TestHostileUnaskedAnswer(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a DNS answer that a pod did not ask for says where a name of its policy leads", hostile.Link, hostile.EBPF, hostile.Both)
	a := newAnswers(t, "*.example.com")
	a.rightful()
	m := forgedAnswer(t)
	a.run(frame(dnsServer, podAddr, 53, false, m))
	a.run(frame(dnsServer6, podAddr6, 53, true, m))
	m[0] ^= 0x55
	a.answer(m)
	if got := a.told(forgedAddr); got != nil {
		t.Errorf("it is a name's: %v", got)
	}
}

// TestHostileSecondAnswer: a question has one answer, whoever sends another one.
func TestHostileSecondAnswer(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a second answer to one question of a pod says where a name of its policy leads", hostile.Link, hostile.EBPF, hostile.Both)
	a := newAnswers(t, "*.example.com")
	a.rightful()
	a.run(frame(dnsServer, podAddr, 53, false, forgedAnswer(t)))
	if got := a.told(forgedAddr); got != nil {
		t.Errorf("it is a name's: %v", got)
	}
}

// TestHostileNamesShare: a pod that asks for ever new names has its share of the table once that
// fills, and no more.
func TestHostileNamesShare(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a pod fills the node's table of the addresses of domain names", hostile.Pod, hostile.EBPF, hostile.Both)
	a := newAnswers(t, "*.example.com")
	a.rightful()
	nettest.Must(t, a.node.Maps["weir_name_used"].Put(uint32(podIfindex), uint32(abi.NamedEach)))
	nettest.Must(t, a.node.Maps["weir_name_used"].Put(uint32(0), uint32(abi.NamedFew)))
	a.answer(forgedAnswer(t))
	if got := a.told(forgedAddr); got != nil {
		t.Errorf("a pod with %d addresses of %d gets one more: %v", abi.NamedEach, abi.NamedFew, got)
	}
}

// TestHostileAnswerInAnswer: whoever has a zone may put into a record what looks like an answer,
// and a pod may ask for it by TCP such that a segment begins there. Messages are found by their
// place in the stream alone.
func TestHostileAnswerInAnswer(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a record of a zone, which a pod asks for by TCP, has an answer in it that says where a name of its policy leads", hostile.Pod, hostile.EBPF, hostile.Both)
	a := newAnswers(t, "*.example.com")
	a.rightful()
	a.reader(0)
	m := forgedAnswer(t)
	inner := append([]byte{0, byte(len(m))}, m...)
	for server, pod := range map[netip.Addr]netip.Addr{dnsServer: podAddr, dnsServer6: podAddr6} {
		a.asked(server, 6)
		a.hands(segment(server, pod, 100, 0x12, nil))
		a.hands(segment(server, pod, 100+1+500, 0x10, inner)) // what is before it comes later
		a.asked(server, 6)                                    // a connection whose beginning nobody saw
		nettest.Must(t, a.node.Maps["weir_name_streams"].Delete(streamOf(server)))
		a.hands(segment(server, pod, 700, 0x10, inner))
	}
	if got := a.told(forgedAddr); got != nil {
		t.Errorf("it is a name's: %v", got)
	}
}

// TestHostileUnreadAnswers: a pod whose answers wait for an agent that is slow takes a part of the
// places for them, so that another pod's answer is read, too; and it has its places again once the
// agent has read what was there.
func TestHostileUnreadAnswers(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a pod's answers that wait for the agent take all places for them, so that those of others go on unread", hostile.Pod, hostile.EBPF, hostile.Both)
	a := newAnswers(t, "*.example.com")
	a.rightful()
	ns := nettest.New(t, "waits")
	victim := 0 // the interface of the other pod
	ns.Do(t, "making an interface", func() error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "victim"}, PeerName: "peer"}
		err := netlink.LinkAdd(link)
		victim = link.Index
		return err
	})
	a.s.Addrs[podAddr.Next()] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: victim, Egress: nodestate.Isolation{Set: setOfPod}}
	nettest.Must(t, a.node.Apply(a.s))
	var many []record
	for i := range 70 {
		many = append(many, record{"b.example.com.", fmt.Sprint("192.0.2.", i), 300})
	}
	m := message(t, true, "b.example.com.", many...)
	// handed has the pod at an interface ask, and get answers that programs cannot read; it returns
	// how many of them go to the agent.
	handed := func(ifindex, answers int, server, pod netip.Addr) (n int) {
		ns.Do(t, "running the program", func() error {
			var q abi.WeirNameQuestion
			ctx := make([]byte, 192)
			binary.NativeEndian.PutUint32(ctx[40:], uint32(ifindex))
			for range answers {
				q = a.question(server, 17)
				q.Ifindex = uint32(ifindex)
				if err := a.node.Maps["weir_name_asked"].Put(q, uint32(1)); err != nil {
					return err
				}
				ret, err := a.node.Programs[object.NamesProgram].Run(&ebpf.RunOptions{Data: frame(server, pod, 53, false, m), Context: ctx})
				if err != nil {
					return err
				}
				if ret == tcActRedirect {
					n++
				}
			}
			return nil
		})
		return n
	}
	for server, pod := range map[netip.Addr]netip.Addr{dnsServer: podAddr, dnsServer6: podAddr6} {
		a.reader(0)
		if n := handed(podIfindex, 2*abi.NameHandedMost, server, pod); n != abi.NameHandedMost/4 {
			t.Fatalf("%d of one pod's answers wait for the agent", n)
		}
		if n := handed(victim, 1, server, pod); n != 1 {
			t.Error("the answer of another pod goes on unread")
		}
		a.reader(0) // has read all
		if n := handed(podIfindex, 2*abi.NameHandedMost, server, pod); n != abi.NameHandedMost/4 {
			t.Errorf("once all was read, %d answers of the pod go to the agent", n)
		}
	}
}
