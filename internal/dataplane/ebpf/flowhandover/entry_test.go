// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func flowKeyOf(proto uint8, src, dst string) abi.FlowKey[abi.Ip4] {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return abi.FlowKey[abi.Ip4]{Saddr: abi.ToAddr[abi.Ip4](s.Addr()), Daddr: abi.ToAddr[abi.Ip4](d.Addr()), Sport: abi.Be16(s.Port()), Dport: abi.Be16(d.Port()), Proto: proto}
}

// flowTo is an entry that makes of a packet another.
func flowTo(after abi.FlowKey[abi.Ip4], state, flags, action uint8) abi.FlowValue[abi.Ip4] {
	return abi.FlowValue[abi.Ip4]{Saddr: after.Saddr, Daddr: after.Daddr, Sport: after.Sport, Dport: after.Dport, State: state, Flags: flags, Action: action}
}

func TestTracked(t *testing.T) {
	const tcp, udp, icmp = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP
	asked := flowKeyOf(tcp, "10.244.1.2:40000", "10.96.0.1:80")
	after := flowKeyOf(tcp, "10.244.1.2:40000", "10.244.2.3:8080")
	service, _ := tupleOf(asked, false)
	answer, _ := tupleOf(after.Reversed(), true)
	const liberal = conntrack.TCPLiberal
	tracking := func(state uint8, status conntrack.Status) *conntrack.Entry {
		return &conntrack.Entry{Orig: service, Reply: answer, Left: time.Minute, Status: status | conntrack.Confirmed, TCP: conntrack.TCP{State: state, OrigFlags: liberal, RepFlags: liberal}}
	}
	over := tracking(conntrack.TCPTimeWait, conntrack.SeenReply|conntrack.Assured)
	over.TCP.OrigFlags, over.TCP.RepFlags = liberal|conntrack.TCPCloseInit, liberal|conntrack.TCPCloseInit
	echo, out := flowKeyOf(icmp, "10.244.1.2:77", "192.0.2.1:85"), flowKeyOf(icmp, "172.30.0.8:20001", "192.0.2.1:20009")
	handed := tracking(conntrack.TCPEstablished, conntrack.Assured)
	handed.Reply = service.Reversed()
	handedBack := *handed
	handedBack.Status |= conntrack.SeenReply
	addr := netip.MustParseAddr
	for name, c := range map[string]struct {
		key   abi.FlowKey[abi.Ip4]
		value abi.FlowValue[abi.Ip4]
		left  time.Duration // 0 = a minute
		want  *conntrack.Entry
	}{
		"open":                   {asked, flowTo(after, abi.StateReplied, abi.FlowRewrite, abi.ActNeigh), 0, tracking(conntrack.TCPEstablished, conntrack.SeenReply|conntrack.Assured)},
		"open, by its answers":   {after.Reversed(), flowTo(asked.Reversed(), abi.StateReplied, abi.FlowRewrite|abi.FlowReply, abi.ActNeigh), 0, tracking(conntrack.TCPEstablished, conntrack.SeenReply|conntrack.Assured)},
		"one side is closed":     {asked, flowTo(after, abi.StateReplied|abi.StateFIN, abi.FlowRewrite, abi.ActNeigh), 0, tracking(conntrack.TCPEstablished, conntrack.SeenReply|conntrack.Assured)},
		"both sides are closed":  {asked, flowTo(after, abi.StateReplied|abi.StateFIN|abi.StateClosing, abi.FlowRewrite, abi.ActNeigh), 0, over},
		"begun":                  {asked, flowTo(after, 0, abi.FlowRewrite, abi.ActNeigh), 0, tracking(conntrack.TCPSynRecv, 0)},
		"answered":               {asked, flowTo(after, abi.StateAnswered, abi.FlowRewrite, abi.ActNeigh), 0, tracking(conntrack.TCPSynRecv, conntrack.SeenReply)},
		"reset":                  {asked, flowTo(after, abi.StateReplied|abi.StateClosing|abi.StateReset, abi.FlowRewrite, abi.ActNeigh), 0, nil},
		"too old":                {asked, flowTo(after, abi.StateReplied, abi.FlowRewrite, abi.ActNeigh), -time.Second, nil},
		"handed on":              {asked, flowTo(asked, abi.StateReplied, abi.FlowHandOn, abi.ActNeigh), 0, handed},
		"answered by here":       {asked, flowTo(asked, abi.StateReplied|abi.StateAnswered, abi.FlowHandOn, abi.ActNeigh), 0, &handedBack},
		"about to be forgotten":  {asked, flowTo(after, abi.StateReplied, abi.FlowRewrite, abi.ActNeigh), time.Second, tracking(conntrack.TCPEstablished, conntrack.SeenReply|conntrack.Assured)},
		"an ICMP message":        {abi.FlowKey[abi.Ip4]{Proto: icmp, Sport: abi.Be16(0x0500), Dport: abi.Be16(0x4500)}, abi.FlowValue[abi.Ip4]{State: abi.StateReplied}, 0, nil},
		"GRE":                    {abi.FlowKey[abi.Ip4]{Proto: unix.IPPROTO_GRE}, abi.FlowValue[abi.Ip4]{State: abi.StateReplied}, 0, nil},
		"SCTP that is half open": {flowKeyOf(unix.IPPROTO_SCTP, "10.244.1.2:1", "10.244.2.2:2"), abi.FlowValue[abi.Ip4]{}, 0, nil},
		"masqueraded echo": {echo, flowTo(out, abi.StateReplied, abi.FlowRewrite|abi.FlowSNAT, abi.ActNeigh), 0, &conntrack.Entry{
			Orig:   conntrack.Tuple{Proto: icmp, Src: addr("10.244.1.2"), Dst: addr("192.0.2.1"), ID: 77, Type: conntrack.EchoRequest},
			Reply:  conntrack.Tuple{Proto: icmp, Src: addr("192.0.2.1"), Dst: addr("172.30.0.8"), ID: 20001, Type: conntrack.EchoReply},
			Status: conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed, Left: time.Minute}},
		"masqueraded echo, by its answers": {out.Reversed(), flowTo(echo.Reversed(), abi.StateReplied, abi.FlowRewrite|abi.FlowReply, abi.ActNeigh), 0, &conntrack.Entry{
			Orig:   conntrack.Tuple{Proto: icmp, Src: addr("10.244.1.2"), Dst: addr("192.0.2.1"), ID: 77, Type: conntrack.EchoRequest},
			Reply:  conntrack.Tuple{Proto: icmp, Src: addr("192.0.2.1"), Dst: addr("172.30.0.8"), ID: 20001, Type: conntrack.EchoReply},
			Status: conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed, Left: time.Minute}},
	} {
		left := c.left
		if left == 0 {
			left = time.Minute
		}
		got, ok := ConntrackEntry(c.key, c.value, left)
		if c.want != nil && c.left > 0 {
			c.want.Left = MinTimeout
		}
		if ok != (c.want != nil) || ok && got != *c.want {
			t.Errorf("%s: %+v %v, want %+v", name, got, ok, c.want)
		}
	}
}

// takerOf is for a node 172.30.0.8 with the pod 10.244.1.2, which knows 10.244.2.0/26 on another
// node and the Service 10.96.0.1:80 with a node port and the backends 10.244.2.3:8080 and
// 192.0.2.80:80.
func takerOf() Importer {
	s := nodestate.New()
	addr := netip.MustParseAddr
	s.Addrs[addr("172.30.0.8")] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true, NodePorts: true}
	s.Addrs[addr("172.30.0.9")] = nodestate.Addr{Kind: nodestate.AddrNode, Node: addr("172.30.0.9"), NodePorts: true}
	s.Addrs[addr("10.244.1.2")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali1", IfIndex: 7, NATOutgoing: true}
	s.Routes[netip.MustParsePrefix("10.244.0.0/16")] = nodestate.Route{Pool: true}
	s.Routes[netip.MustParsePrefix("10.244.1.0/26")] = nodestate.Route{Pool: true, Local: true}
	s.Routes[netip.MustParsePrefix("10.244.2.0/26")] = nodestate.Route{Pool: true, Node: addr("172.30.0.9")}
	id := nodestate.Frontend{Addr: addr("10.96.0.1"), Port: 80, Proto: model.ProtocolTCP}
	s.Frontends.Set(id, nodestate.Service{ID: id})
	s.Frontends.Set(nodestate.Frontend{Addr: netip.IPv4Unspecified(), Port: 30001, Proto: model.ProtocolTCP}, nodestate.Service{ID: id, External: true})
	s.Backends.Set(id, []nodestate.Backend{{Addr: addr("10.244.2.3"), Port: 8080}, {Addr: addr("192.0.2.80"), Port: 80}})
	return Importer{State: s, Ifindex: func(a nodestate.Addr) int { return a.IfIndex }, Which: ImportAll}
}

func connection(src, dst, afterSrc, afterDst string) conntrack.Entry {
	asked, _ := tupleOf(flowKeyOf(unix.IPPROTO_TCP, src, dst), false)
	after, _ := tupleOf(flowKeyOf(unix.IPPROTO_TCP, afterSrc, afterDst), false)
	return conntrack.Entry{Orig: asked, Reply: after.Reversed(), Status: conntrack.SeenReply | conntrack.Assured | conntrack.Confirmed, Left: time.Minute,
		TCP: conntrack.TCP{State: conntrack.TCPEstablished}}
}

func TestTaken(t *testing.T) {
	const pod, client, node = "10.244.1.2:40000", "172.30.0.55:50000", "172.30.0.8:20001"
	zone := connection(pod, "10.96.0.1:80", pod, "10.244.2.3:8080")
	zone.Zone = 1
	closed := connection(pod, "10.96.0.1:80", pod, "10.244.2.3:8080")
	closed.TCP.State = conntrack.TCPClose
	for name, c := range map[string]struct {
		e    conntrack.Entry
		want bool
		svc  bool
		iif  [2]uint32 // of the original direction and of the answers
		more [2]uint8  // flags, alongside FlowReply and FlowRewrite
	}{
		"pod to a Service":                   {connection(pod, "10.96.0.1:80", pod, "10.244.2.3:8080"), true, true, [2]uint32{7, 0}, [2]uint8{}},
		"pod to a backend that left":         {connection(pod, "10.96.0.1:80", pod, "10.244.2.4:8080"), true, true, [2]uint32{7, 0}, [2]uint8{}},
		"pod to a backend elsewhere":         {connection(pod, "10.96.0.1:80", node, "192.0.2.80:80"), true, true, [2]uint32{7, 0}, [2]uint8{abi.FlowSNAT, 0}},
		"pod to a pod":                       {connection(pod, "10.244.2.3:8080", pod, "10.244.2.3:8080"), true, false, [2]uint32{7, 0}, [2]uint8{}},
		"pod to the outside":                 {connection(pod, "192.0.2.1:443", node, "192.0.2.1:443"), true, false, [2]uint32{7, 0}, [2]uint8{abi.FlowSNAT, 0}},
		"client to a pod":                    {connection(client, "172.30.0.8:30001", client, "10.244.1.2:8080"), true, true, [2]uint32{0, 7}, [2]uint8{}},
		"client to a pod elsewhere":          {connection(client, "172.30.0.8:30001", node, "10.244.2.3:8080"), true, true, [2]uint32{}, [2]uint8{abi.FlowSNAT, 0}},
		"client by another node":             {connection(client, "172.30.0.9:30001", client, "10.244.1.2:8080"), true, true, [2]uint32{0, 7}, [2]uint8{}},
		"client to a backend elsewhere":      {connection(client, "172.30.0.8:30001", node, "192.0.2.80:80"), true, true, [2]uint32{}, [2]uint8{abi.FlowSNAT, 0}},
		"the node to a Service":              {connection("172.30.0.8:41000", "10.96.0.1:80", "172.30.0.8:41000", "10.244.2.3:8080"), true, true, [2]uint32{}, [2]uint8{abi.FlowFromHost, abi.FlowFromHost}},
		"the node to its pod":                {connection("172.30.0.8:41000", "10.244.1.2:80", "172.30.0.8:41000", "10.244.1.2:80"), true, false, [2]uint32{0, 7}, [2]uint8{abi.FlowFromHost, abi.FlowFromHost}},
		"the node to the outside":            {connection("172.30.0.8:41000", "192.0.2.1:443", "172.30.0.8:41000", "192.0.2.1:443"), false, false, [2]uint32{}, [2]uint8{}},
		"the node to its pod, repointed":     {connection("172.30.0.8:41000", "10.244.1.2:80", node, "10.244.1.2:80"), true, false, [2]uint32{0, 7}, [2]uint8{abi.FlowFromHost, abi.FlowFromHost}},
		"the node to a pod, repointed":       {connection("172.30.0.8:41000", "10.244.2.3:80", node, "10.244.2.3:80"), true, false, [2]uint32{}, [2]uint8{abi.FlowFromHost, abi.FlowFromHost}},
		"client to the node, repointed":      {connection(client, "172.30.0.8:8081", "172.30.0.55:1024", "172.30.0.8:8081"), true, false, [2]uint32{}, [2]uint8{}},
		"client to the outside, repointed":   {connection(client, "192.0.2.1:443", "172.30.0.55:1024", "192.0.2.1:443"), false, false, [2]uint32{}, [2]uint8{}},
		"the node to the outside, repointed": {connection("172.30.0.8:41000", "192.0.2.1:443", node, "192.0.2.1:443"), false, false, [2]uint32{}, [2]uint8{}},
		"a port that somebody else forwards": {connection(client, "172.30.0.8:8443", client, "172.17.0.2:443"), false, false, [2]uint32{}, [2]uint8{}},
		"a container of somebody else":       {connection("172.17.0.2:41000", "192.0.2.1:443", node, "192.0.2.1:443"), false, false, [2]uint32{}, [2]uint8{}},
		"a source that is not the node's":    {connection(pod, "192.0.2.1:443", "192.0.2.99:20001", "192.0.2.1:443"), false, false, [2]uint32{}, [2]uint8{}},
		"another zone":                       {zone, false, false, [2]uint32{}, [2]uint8{}},
		"over":                               {closed, false, false, [2]uint32{}, [2]uint8{}},
	} {
		f, ok := ImportFlow[abi.Ip4](takerOf(), c.e, 1000, 5)
		if ok != c.want {
			t.Errorf("%s: taken over %v, want %v", name, ok, c.want)
		}
		if !ok {
			continue
		}
		if f.Key.Reversed() != f.Here.After(f.Key.Proto) || f.Back.Reversed() != f.There.After(f.Key.Proto) {
			t.Errorf("%s: the entries do not mirror each other: %+v", name, f)
		}
		rewrite := uint8(0)
		if c.e.Translated() {
			rewrite = abi.FlowRewrite
		}
		if f.There.Flags != rewrite|c.more[0] || f.Here.Flags != rewrite|abi.FlowReply|c.more[1] {
			t.Errorf("%s: flags %#x, %#x", name, f.There.Flags, f.Here.Flags)
		}
		if got := [2]uint32{f.There.EntersBy(), f.Here.EntersBy()}; got != c.iif {
			t.Errorf("%s: packets enter at %v, want %v", name, got, c.iif)
		}
		if (f.There.Svc.Proto != 0) != c.svc || f.There.Svc != f.Here.Svc || f.There.Backend != f.Here.Backend {
			t.Errorf("%s: Service %+v, %+v", name, f.There.Svc, f.Here.Svc)
		}
		if !f.Established || f.There.State != abi.StateReplied || f.There.Epoch == 5 || f.There.Seen != 1000 {
			t.Errorf("%s: %+v", name, f.There)
		}
	}
}

// TestTakenHalfOpen: what is half open has a port of ours, or none that is translated.
func TestTakenHalfOpen(t *testing.T) {
	const pod, node = "10.244.1.2:40000", "172.30.0.8:20001"
	for name, c := range map[string]struct {
		e    conntrack.Entry
		want bool
	}{
		"pod to a Service":           {connection(pod, "10.96.0.1:80", pod, "10.244.2.3:8080"), true},
		"pod to the outside":         {connection(pod, "192.0.2.1:443", node, "192.0.2.1:443"), false},
		"pod to a backend elsewhere": {connection(pod, "10.96.0.1:80", node, "192.0.2.80:80"), false},
	} {
		c.e.TCP.State, c.e.Status = conntrack.TCPSynSent, conntrack.Confirmed
		if f, ok := ImportFlow[abi.Ip4](takerOf(), c.e, 1000, 5); ok != c.want || ok && f.Established {
			t.Errorf("%s: taken over %v, want %v (%+v)", name, ok, c.want, f)
		}
	}
}

// TestTakenOfOthers: of a data plane that is not ours, what was translated to pods and backends of
// Services is taken over.
func TestTakenOfOthers(t *testing.T) {
	const pod, client, node = "10.244.1.2:40000", "172.30.0.55:50000", "172.30.0.8:20001"
	from := takerOf()
	from.Which = ImportTranslated
	for name, c := range map[string]struct {
		e    conntrack.Entry
		want bool
	}{
		"pod to a Service":           {connection(pod, "10.96.0.1:80", pod, "10.244.2.3:8080"), true},
		"client to a pod":            {connection(client, "172.30.0.8:30001", node, "10.244.1.2:8080"), true},
		"pod to a backend elsewhere": {connection(pod, "10.96.0.1:80", node, "192.0.2.80:80"), true},
		"pod to a pod":               {connection(pod, "10.244.2.3:8080", pod, "10.244.2.3:8080"), false},
		"pod to the outside":         {connection(pod, "192.0.2.1:443", node, "192.0.2.1:443"), false},
		"the node to its pod":        {connection("172.30.0.8:41000", "10.244.1.2:80", "172.30.0.8:41000", "10.244.1.2:80"), false},
	} {
		if _, ok := ImportFlow[abi.Ip4](from, c.e, 1000, 5); ok != c.want {
			t.Errorf("%s: taken over %v, want %v", name, ok, c.want)
		}
	}
}

func TestTakenStates(t *testing.T) {
	const init = conntrack.TCPCloseInit
	for name, c := range map[string]struct {
		tcp    conntrack.TCP
		live   bool
		states [2]uint8
	}{
		"SYN sent":            {conntrack.TCP{State: conntrack.TCPSynSent}, true, [2]uint8{}},
		"answered":            {conntrack.TCP{State: conntrack.TCPSynRecv}, true, [2]uint8{abi.StateAnswered, abi.StateAnswered}},
		"established":         {conntrack.TCP{State: conntrack.TCPEstablished}, true, [2]uint8{abi.StateReplied, abi.StateReplied}},
		"closed by the first": {conntrack.TCP{State: conntrack.TCPFinWait, OrigFlags: init}, true, [2]uint8{abi.StateReplied | abi.StateFIN, abi.StateReplied}},
		"by the second":       {conntrack.TCP{State: conntrack.TCPCloseWait, RepFlags: init}, true, [2]uint8{abi.StateReplied, abi.StateReplied | abi.StateFIN}},
		"by both":             {conntrack.TCP{State: conntrack.TCPTimeWait}, true, [2]uint8{abi.StateReplied | abi.StateFIN | abi.StateClosing, abi.StateReplied | abi.StateFIN | abi.StateClosing}},
		"reset":               {conntrack.TCP{State: conntrack.TCPClose}, false, [2]uint8{}},
		"of a later kernel":   {conntrack.TCP{State: 99}, false, [2]uint8{}},
	} {
		e := connection("10.244.1.2:1", "10.244.2.2:2", "10.244.1.2:1", "10.244.2.2:2")
		e.TCP = c.tcp
		if states, live := importedStates(e); live != c.live || live && states != c.states {
			t.Errorf("%s: %v %v", name, states, live)
		}
	}
}

// What is exported to connection tracking and taken over from it is the flow that it was, in both
// directions and both ways round.
func TestThereAndBack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	from := takerOf()
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	port := func() uint16 { return uint16(1 + r.IntN(60000)) }
	taken := 0
	for range 5000 {
		proto := []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_ICMP, 50}[r.IntN(5)]
		addrs := []string{"10.244.1.2", "10.244.2.3", "10.96.0.1", "172.30.0.8", "172.30.0.9", "172.30.0.55", "192.0.2.80"}
		key := abi.FlowKey[abi.Ip4]{Saddr: abi.ToAddr[abi.Ip4](netip.MustParseAddr(pick(addrs...))), Daddr: abi.ToAddr[abi.Ip4](netip.MustParseAddr(pick(addrs...))), Proto: proto}
		after := abi.FlowKey[abi.Ip4]{Saddr: key.Saddr, Daddr: abi.ToAddr[abi.Ip4](netip.MustParseAddr(pick("10.244.1.2", "10.244.2.3"))), Proto: proto}
		switch proto {
		case unix.IPPROTO_ICMP:
			id, to, query := port(), port(), []uint16{8, 13, 15, 17}[r.IntN(4)]
			key.Sport, key.Dport, after.Sport, after.Dport = abi.Be16(id), abi.Be16(id+query), abi.Be16(to), abi.Be16(to+query)
			after.Daddr = key.Daddr
		case 50:
		default:
			key.Sport, key.Dport, after.Sport, after.Dport = abi.Be16(port()), abi.Be16(port()), abi.Be16(port()), abi.Be16(port())
		}
		if r.IntN(3) == 0 {
			after.Saddr = abi.ToAddr[abi.Ip4](netip.MustParseAddr("172.30.0.8"))
		}
		flags := uint8(0)
		if after != key {
			flags = abi.FlowRewrite
		}
		e, ok := ConntrackEntry(key, flowTo(after, abi.StateReplied, flags, abi.ActNeigh), time.Minute)
		back, ok2 := ConntrackEntry(after.Reversed(), flowTo(key.Reversed(), abi.StateReplied, flags|abi.FlowReply, abi.ActNeigh), time.Minute)
		if !ok || !ok2 || e != back {
			t.Fatalf("%+v to %+v is told as %+v, its answers as %+v", key, after, e, back)
		}
		f, ok := ImportFlow[abi.Ip4](from, e, 0, 0)
		if !ok {
			continue
		}
		taken++
		if f.Key != key || f.There.After(proto) != after || f.Back != after.Reversed() {
			t.Fatalf("%+v to %+v came back as %+v", key, after, f)
		}
	}
	if taken < 1000 {
		t.Errorf("only %d flows were taken over", taken)
	}
}

// What the node's stack sees of a translated connection while programs translate it.
func TestShadow(t *testing.T) {
	for name, c := range map[string]struct {
		e, want conntrack.Entry
		ok      bool
	}{
		"a pod and a process of the node": {connection("10.244.1.2:40000", "10.96.0.1:80", "10.244.1.2:40000", "172.30.0.8:9000"),
			connection("10.244.1.2:40000", "172.30.0.8:9000", "10.244.1.2:40000", "172.30.0.8:9000"), true},
		"the node and a Service": {connection("172.30.0.8:40000", "10.96.0.1:80", "172.30.0.8:40000", "10.244.2.3:8080"),
			connection("172.30.0.8:40000", "10.96.0.1:80", "172.30.0.8:40000", "10.96.0.1:80"), true},
		"two pods": {connection("10.244.1.2:40000", "10.96.0.1:80", "10.244.1.2:40000", "10.244.2.3:8080"), conntrack.Entry{}, false},
	} {
		got, ok := takerOf().Shadow(c.e)
		if ok != c.ok || ok && (got.Orig != c.want.Orig || got.Reply != c.want.Reply) {
			t.Errorf("%s: %+v %v", name, got, ok)
		}
	}
}

// TestTakenWays: what goes by another node goes by it again.
func TestTakenWays(t *testing.T) {
	const client = "172.30.0.55:50000"
	from := takerOf()
	node, far := netip.MustParseAddr("172.30.0.9"), netip.MustParseAddr("172.31.0.10")
	from.State.Addrs[node] = nodestate.Addr{Kind: nodestate.AddrNode, Node: node, NodePorts: true, SameLink: true}
	from.State.Addrs[far] = nodestate.Addr{Kind: nodestate.AddrNode, Node: far, NodePorts: true}
	from.State.Settings.Tunnel = nodestate.Tunnel{Port: 4789, VNI: 1, MTU: 1450}
	from.Route = func(to netip.Addr) (int, netip.Addr, bool) { return 2, to, to != far }
	routes := map[uint32]conntrack.NodeRoute{1: {Node: node}, 2: {Node: far}, 3: {Node: node, Tunnel: true, Came: true}, 4: {Node: node, HandsOn: true},
		5: {Node: far, HandsOn: true}, 6: {Node: netip.MustParseAddr("172.30.0.99"), HandsOn: true}}
	from.Predecessor.Route = func(mark uint32, six bool) (conntrack.NodeRoute, bool) { r, ok := routes[mark]; return r, ok && !six }
	taken, handed := connection(client, "172.30.0.9:30001", client, "10.244.1.2:8080"), connection(client, "172.30.0.8:30001", client, "172.30.0.8:30001")
	type goes struct {
		action  uint8
		ifindex uint32
		nexthop netip.Addr
		flags   uint8
	}
	outside := goes{abi.ActNeigh, 2, netip.MustParseAddr("172.30.0.55"), abi.FlowHandOn | abi.FlowReply}
	for mark, c := range map[uint32]struct {
		e           conntrack.Entry
		ok          bool
		there, here *goes
	}{
		1: {taken, true, nil, &goes{abi.ActNeigh, 2, node, abi.FlowReply | abi.FlowRewrite | abi.FlowViaNode}},
		2: {taken, true, nil, &goes{abi.ActTunnel, 0, far, abi.FlowReply | abi.FlowRewrite | abi.FlowViaNode}},
		3: {taken, true, nil, &goes{abi.ActTunnel, 0, node, abi.FlowReply | abi.FlowRewrite | abi.FlowViaNode | abi.FlowClamp}},
		4: {handed, true, &goes{abi.ActNeigh, 2, node, abi.FlowHandOn}, &outside},
		5: {handed, true, &goes{abi.ActTunnel, 0, far, abi.FlowHandOn}, &outside},
		6: {handed, false, nil, nil},
	} {
		c.e.Mark = mark
		f, ok := ImportFlow[abi.Ip4](from, c.e, 1000, 5)
		if ok != c.ok {
			t.Errorf("mark %d: taken over %v, want %v", mark, ok, c.ok)
		}
		for v, want := range map[*abi.FlowValue[abi.Ip4]]*goes{&f.There: c.there, &f.Here: c.here} {
			if got := (goes{v.Action, v.Ifindex, abi.FromAddr(v.Nexthop), v.Flags}); want != nil && got != *want {
				t.Errorf("mark %d: %+v, want %+v", mark, got, *want)
			}
		}
		if c.ok && (!f.Established || f.There.Svc.Proto == 0 || f.There.Epoch == 5) {
			t.Errorf("mark %d: %+v", mark, f.There)
		}
	}
}
