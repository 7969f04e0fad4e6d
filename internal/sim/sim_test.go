// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// The scenarios of test/scenarios are the oracle's main test. Here is what they do not reach:
// states written by hand, sockets, and that time and choices come from outside.

var (
	own  = netip.MustParseAddr("172.31.1.1")
	podA = netip.MustParseAddr("10.0.0.1")
	podB = netip.MustParseAddr("10.0.0.2")
	vip  = netip.MustParseAddr("10.96.0.1")
)

func handmade() *nodestate.State {
	s := nodestate.New()
	s.Settings = nodestate.Settings{Node: own, SNATFirst: 20000, SNATLast: 20009, ConnectTime: model.ConnectTimeTCP,
		Timeouts: model.DefaultSettings().Timeouts, Tunnel: nodestate.Tunnel{Port: 4789, VNI: 1, MTU: 1450}}
	s.Addrs[own] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true}
	s.Addrs[podA] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 10, MAC: [6]byte{2, 0, 0, 0, 0, 1}, NATOutgoing: true}
	s.Addrs[podB] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: 11, MAC: [6]byte{2, 0, 0, 0, 0, 2},
		Ingress: nodestate.Isolation{Set: 5, Rule: 50}}
	s.Routes[netip.MustParsePrefix("10.0.0.0/24")] = nodestate.Route{Pool: true, Local: true}
	id := nodestate.Frontend{Addr: vip, Port: 80, Proto: model.ProtocolTCP}
	s.Frontends.Set(id, nodestate.Service{ID: id, Rule: 70, Affinity: 10})
	s.Backends.Set(id, []nodestate.Backend{{Addr: podA, Port: 8080, Local: true}, {Addr: podB, Port: 8080, Local: true}})
	s.Policy.Set(nodestate.PolicyKey{Set: 5, Head: true}, nodestate.PolicyValue{Rule: 51, Allow: true})
	s.Clients[99] = nodestate.Client{IPv4: podA}
	return s
}

func TestVerdictsBearRules(t *testing.T) {
	s := handmade()
	n := New(s, Options{})
	syn := packet.MustParse("tcp 10.0.0.1:1 > 10.0.0.2:2 S")
	r := n.Receive(In{Hook: FromWorkload, IfIndex: 10, Packet: syn})
	if r.Action != Local || r.IfIndex != 11 || r.Rule != 51 || r.Packet.IP.TTL != 63 || r.MAC != (packet.MAC{2, 0, 0, 0, 0, 2}) {
		t.Fatalf("%s: %s", r, r.Packet)
	}
	if syn.IP.TTL != 64 {
		t.Error("the packet that came in was changed")
	}
	denied := handmade()
	denied.Policy = nodestate.Map[nodestate.PolicyKey, nodestate.PolicyValue]{}
	n.SetState(denied)
	r = n.Receive(In{Hook: FromWorkload, IfIndex: 10, Packet: packet.MustParse("tcp 10.0.0.1:1 > 10.0.0.2:2 .")})
	if r.Action != Drop || r.Reason != reason.PolicyIngress || r.Rule != 50 {
		t.Fatalf("after the policy was gone: %s", r)
	}
}

func TestTimeAndChoicesComeFromOutside(t *testing.T) {
	now, choice := time.Duration(0), 1
	n := New(handmade(), Options{
		Now:  func() time.Duration { return now },
		Pick: func(c Choice) int { return choice },
		Port: func(first uint16, size int) int { return size - 1 },
		FIB:  func(netip.Addr) (Hop, bool) { return Hop{IfIndex: 2}, true },
	})
	to := func(text string) netip.Addr {
		t.Helper()
		r := n.Receive(In{Hook: FromUplink, IfIndex: 2, Packet: packet.MustParse(text)})
		if r.Action == Drop {
			t.Fatalf("%s: %s", text, r)
		}
		return r.Packet.IP.Dst
	}
	if a := to("tcp 9.9.9.9:1 > 10.96.0.1:80 S"); a != podB {
		t.Errorf("the chosen backend is %s, got %s", podB, a)
	}
	choice = 0
	if a := to("tcp 9.9.9.9:2 > 10.96.0.1:80 S"); a != podB {
		t.Errorf("affinity to %s, got %s", podB, a)
	}
	now += 11 * time.Second
	if a := to("tcp 9.9.9.9:3 > 10.96.0.1:80 S"); a != podA {
		t.Errorf("affinity is over, got %s", a)
	}
	r := n.Receive(In{Hook: FromWorkload, IfIndex: 10, Packet: packet.MustParse("udp 10.0.0.1:5 > 9.9.9.9:53")})
	if r.Packet.SrcPort != 20009 || r.Packet.IP.Src != own {
		t.Errorf("source translation: %s", r.Packet)
	}
}

func TestSocketsShareAffinityWithPackets(t *testing.T) {
	n := New(handmade(), Options{Pick: func(c Choice) int { return len(c.From) - 1 }})
	s := Socket{Cookie: 4, Netns: 99, Proto: model.ProtocolTCP}
	asked := netip.AddrPortFrom(vip, 80)
	got, err := n.Connect(s, asked)
	if want := netip.AddrPortFrom(podB, 8080); err != nil || got != want {
		t.Fatalf("connect: %s, %v, want %s", got, err, want)
	}
	if p := n.Peer(s, got); p != asked {
		t.Errorf("getpeername: %s, want %s", p, asked)
	}
	if p := n.Peer(Socket{Cookie: 5, Netns: 99, Proto: model.ProtocolTCP}, got); p != got {
		t.Errorf("getpeername of another socket: %s, want %s", p, got)
	}
	n.opts.Pick = func(Choice) int { t.Error("chosen again"); return 0 }
	if r := n.Receive(In{Hook: FromWorkload, IfIndex: 10, Packet: packet.MustParse("tcp 10.0.0.1:9 > 10.96.0.1:80 S")}); r.Packet.IP.Dst != podB {
		t.Errorf("a packet of the same pod: %s", r.Packet)
	}
	empty := handmade()
	empty.Backends = nodestate.Map[nodestate.Frontend, []nodestate.Backend]{}
	n.SetState(empty)
	if _, err := n.Connect(s, asked); !errors.Is(err, ErrRefused) {
		t.Errorf("without backends: %v", err)
	}
}

func TestCloneGoesItsOwnWay(t *testing.T) {
	n := New(handmade(), Options{FIB: func(netip.Addr) (Hop, bool) { return Hop{IfIndex: 2}, true }})
	c := n.Clone()
	if r := c.Receive(In{Hook: FromWorkload, IfIndex: 10, Packet: packet.MustParse("udp 10.0.0.1:5 > 9.9.9.9:53")}); r.Action != Neigh {
		t.Fatal(r)
	}
	back := packet.MustParse("udp 9.9.9.9:53 > 172.31.1.1:20000")
	if r := c.Receive(In{Hook: FromUplink, IfIndex: 2, Packet: back}); r.Action != Local {
		t.Errorf("the clone knows its flow: %s", r)
	}
	if r := n.Receive(In{Hook: FromUplink, IfIndex: 2, Packet: back}); r.Action != Pass || r.Packet.IP.Dst == podA {
		t.Errorf("the original does not: %s", r)
	}
}

func TestClampMSS(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"opts=0x020405b4", "opts=0x02040582"},                 // 1460 → 1410
		{"opts=0x02040100", "opts=0x02040100"},                 // small enough
		{"opts=0x01020405b4000000", "opts=0x0102040582000000"}, // at an odd offset
		{"opts=0x0000020405b40000", "opts=0x0000020405b40000"}, // after the end
		{"opts=0x08010204", "opts=0x08010204"},                 // a length that cannot be
		{"opts=0x02080fff00000000", "opts=0x02080fff00000000"}, // a wrong one
	} {
		p, err := packet.Parse("tcp 1.1.1.1:1 > 2.2.2.2:2 S " + c.in)
		if err != nil {
			t.Fatal(err)
		}
		clampMSS(p, 1450)
		if want := packet.MustParse("tcp 1.1.1.1:1 > 2.2.2.2:2 S " + c.want); p.String() != want.String() {
			t.Errorf("%s\n got %s\nwant %s", c.in, p, want)
		}
	}
}
