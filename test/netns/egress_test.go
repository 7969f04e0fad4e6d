// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodeprobe"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// outside is who pods talk to out of the cluster: the fixture's client.
const outside = "172.30.0.55"

// egressFixture is one in which pod a leaves the cluster by gateways alone, and b, c and d may be
// gateways, whose addresses the network outside knows. The nodes answer `weir why`.
func egressFixture(t *testing.T, fam family) *fixture {
	f := newFixture(t, fam)
	f.cluster.Settings.Egress = model.EgressPerNamespaceOrPerPod
	f.grants("all()")
	for name, p := range f.cluster.Pools {
		pool := *p
		pool.NATOutgoing = false
		f.cluster.Pools[name] = &pool
	}
	for i, n := range f.nodes {
		node := *f.cluster.Nodes[n.name]
		node.Gateways = true
		f.cluster.Nodes[n.name] = &node
		run(t, "ip -n %s route add %s via %s", f.client.netns, fam.prefix(fmt.Sprintf("10.244.%d.0/26", i+1)), fam.addr(n.addr.String()))
		n.driver.leads = true
		n.explains()
	}
	f.leavesByGateways(f.a)
	return f
}

// grants selects the namespaces whose pods may leave by gateways.
func (f *fixture) grants(clients string) {
	space := *f.cluster.Namespaces["default"]
	space.EgressClients = clients
	f.cluster.Namespaces["default"] = &space
}

// leavesByGateways makes a pod a client of the gateways.
func (f *fixture) leavesByGateways(p *pod) {
	obj := *p.obj
	obj.Egress = &model.EgressClient{Selector: "egress == 'red'"}
	p.obj = &obj
	f.cluster.Pods.Put(p.obj)
}

// gateways makes those of b, c and d that are named gateways that are ready, and the others not.
func (f *fixture) gateways(ready string) {
	for _, p := range []*pod{f.b, f.c, f.d} {
		obj := *p.obj
		obj.Gateway = &model.EgressGateway{Ready: strings.Contains(ready, p.name), Labels: map[string]string{"egress": "red"}}
		p.obj = &obj
		f.cluster.Pods.Put(p.obj)
	}
}

// talker sends datagrams out of a pod, each on its own flow.
type talker struct {
	t        *testing.T
	wire     *wire
	src, dst netip.Addr
}

func (f *fixture) talker(p *pod) *talker {
	ns := f.prefix + "-" + p.name
	return &talker{t: f.t, wire: newWire(f.t, ns, "eth0"), src: netip.MustParseAddr(f.family.addr(p.local.Addrs[0].String())), dst: netip.MustParseAddr(f.family.addr(outside))}
}

// send sends one of a flow, which its payload names.
func (k *talker) send(flow int) {
	frame := datagramFrom(k.t, uint16(10000+flow), k.wire.mac, [6]byte{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}, k.src, k.dst, fmt.Sprintf("flow %05d", flow))
	if err := unix.Sendto(k.wire.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: k.wire.index}); err != nil {
		k.t.Errorf("sending a frame: %v", err)
	}
}

// listener is outside, and sees who sends there.
type listener struct {
	wire *wire
	by   map[netip.Addr]int // datagrams of talkers, by their source
	last map[int]netip.Addr // the source of a flow's last one
}

func (f *fixture) listener() *listener { return f.listenerOf(f.client) }

func (f *fixture) listenerOf(h *host) *listener {
	w := newWire(f.t, h.netns, "eth0")
	if err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		f.t.Fatal(err)
	}
	return &listener{wire: w, by: map[netip.Addr]int{}, last: map[int]netip.Addr{}}
}

// read takes what has come in; none may be missing.
func (l *listener) read() {
	l.wire.t.Helper()
	buf := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(l.wire.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			l.wire.t.Fatalf("reading a frame: %v", err)
		}
		if sender, ok := from.(*unix.SockaddrLinklayer); ok && sender.Pkttype != unix.PACKET_OUTGOING {
			l.note(buf[:n])
		}
	}
	lost, err := unix.GetsockoptTpacketStats(l.wire.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil || lost.Drops > 0 {
		l.wire.t.Fatalf("frames that nobody looked at: %+v, %v", lost, err)
	}
}

func (l *listener) note(frame []byte) {
	var src netip.Addr
	var l4 []byte
	switch {
	case len(frame) >= 52 && binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP && frame[23] == unix.IPPROTO_UDP:
		src, l4 = netip.AddrFrom4([4]byte(frame[26:])), frame[34:]
	case len(frame) >= 72 && binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IPV6 && frame[20] == unix.IPPROTO_UDP:
		src, l4 = netip.AddrFrom16([16]byte(frame[22:])), frame[54:]
	}
	if len(l4) < 18 || binary.BigEndian.Uint16(l4[2:]) != 7777 {
		return
	}
	flow, err := strconv.Atoi(string(l4[13:18]))
	if err != nil || string(l4[8:13]) != "flow " {
		return
	}
	l.by[src]++
	l.last[flow] = src
}

// hears waits until a flow's datagram has come, which the talker may have to repeat: neighbours are
// asked for first.
func (l *listener) hears(k *talker, flow int) netip.Addr {
	l.wire.t.Helper()
	delete(l.last, flow)
	await.That(l.wire.t, fmt.Sprintf("what flow %d sends arrives outside", flow), func() error {
		if l.read(); l.last[flow].IsValid() {
			return nil
		}
		k.send(flow)
		return errors.New("nothing came")
	})
	return l.last[flow]
}

// addrs are the addresses of those pods of b, c and d that are named.
func (f *fixture) addrsOf(names string) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, p := range []*pod{f.b, f.c, f.d} {
		if strings.Contains(names, p.name) {
			out[netip.MustParseAddr(f.family.addr(p.local.Addrs[0].String()))] = true
		}
	}
	return out
}

// wrong counts what came from others than the gateways.
func (l *listener) wrong(f *fixture) (n int) {
	gateways := f.addrsOf("bcd")
	for src, count := range l.by {
		if !gateways[src] {
			n += count
			l.wire.t.Errorf("%d datagrams came from %s, which is no gateway", count, src)
		}
	}
	return n
}

// TestEgressGateways: while gateways change a hundred times, here and on another node, and the
// agents start anew, a client sends all the time: outside nothing is seen with an address that no
// gateway has. Flows stay with a gateway as long as it is there, and `weir why` names it.
func TestEgressGateways(t *testing.T) {
	inAll(t, testEgressGateways)
}

const egressFlows = 24

func testEgressGateways(t *testing.T, fam family) {
	f := egressFixture(t, fam)
	out, talker := f.listener(), f.talker(f.a)
	f.gateways("")
	f.apply()
	for flow := range egressFlows {
		talker.send(flow)
	}
	f.egressWhy(t, "")
	for _, g := range []*pod{f.b, f.c} {
		f.gateways(g.name)
		f.apply()
		want(t, "a connection by "+g.name, f.a.reaches("client", "tcp", outside+":7000"), g.local.Addrs[0].String())
		want(t, "a datagram by "+g.name, f.a.reaches("client", "udp", outside+":7000"), g.local.Addrs[0].String())
		if got := out.hears(talker, 0); !f.addrsOf(g.name)[got] {
			t.Errorf("with gateway %s alone: %s", g.name, got)
		}
		f.egressWhy(t, g.name)
	}
	stop := f.talksAllTheTime(talker)
	r := rand.New(rand.NewPCG(1, 2))
	ready := "c"
	for i := range 100 {
		before := ready
		for ready == before {
			ready = []string{"", "b", "c", "d", "bc", "bd", "cd", "bcd", "bcd"}[r.IntN(9)]
		}
		f.gateways(ready)
		switch i {
		case 40:
			f.n1.driver.kill()
			f.n1.driver.start()
		case 60:
			f.n2.driver.kill()
			f.n2.driver.start()
		}
		f.apply()
		out.read() // or frames would be lost before somebody looks at them
	}
	stop()
	f.gateways("bcd")
	f.apply()
	f.flowsStay(t, out, talker)
	out.read()
	total := 0
	for src := range f.addrsOf("bcd") {
		if total += out.by[src]; out.by[src] == 0 {
			t.Errorf("nothing came by %s", src)
		}
	}
	t.Logf("%d datagrams came by gateways, %d by others", total, out.wrong(f))
}

// talksAllTheTime sends on old flows and new ones until it is told to stop.
func (f *fixture) talksAllTheTime(k *talker) (stop func()) {
	end, done := make(chan struct{}), sync.WaitGroup{}
	done.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			case <-time.After(200 * time.Microsecond):
			}
			k.send(i % egressFlows)
			k.send(egressFlows + i%20000)
		}
	})
	return func() { close(end); done.Wait() }
}

// flowsStay: of three gateways one goes. Its flows begin anew by the others, whose own flows stay,
// and which keep them when it comes back.
func (f *fixture) flowsStay(t *testing.T, out *listener, k *talker) {
	t.Helper()
	hear := func() map[int]netip.Addr {
		got := map[int]netip.Addr{}
		for flow := 30000; flow < 30000+egressFlows; flow++ {
			got[flow] = out.hears(k, flow)
		}
		return got
	}
	start := time.Now()
	first := hear()
	f.gateways("bd")
	f.apply()
	second := hear()
	f.gateways("bcd")
	f.apply()
	third := hear()
	gone, by := f.addrsOf("c"), map[netip.Addr]int{}
	for flow, was := range first {
		by[was]++
		if now := second[flow]; gone[now] || !gone[was] && now != was {
			t.Errorf("flow %d left by %s, and when %v went by %s", flow, was, gone, now)
		}
		// Unanswered, a flow is over after a while: then the one that came back may have it.
		if now := third[flow]; now != second[flow] && time.Since(start) < 10*time.Second {
			t.Errorf("flow %d left by %s, and when another gateway came by %s", flow, second[flow], now)
		}
	}
	if len(by) != 3 {
		t.Errorf("%d flows use %d of 3 gateways: %v", egressFlows, len(by), by)
	}
}

// egressWhy: `weir why` names the gateway at each node of the way.
func (f *fixture) egressWhy(t *testing.T, gateway string) {
	t.Helper()
	answers := f.why(f.n1, whywire.Request{Hook: whywire.FromWorkload, Source: netip.MustParseAddr(f.family.addr("10.244.1.2")), Destination: netip.MustParseAddr(f.family.addr(outside)),
		Protocol: model.ProtocolTCP, SourcePort: 50000, Port: 443})
	last := answers[len(answers)-1].Outcome
	if gateway == "" {
		if len(answers) != 1 || last.Verdict != whywire.Dropped || last.Reason != "NO_GATEWAY" {
			t.Errorf("without a gateway: %+v", last)
		}
		return
	}
	var addr string
	for a := range f.addrsOf(gateway) {
		addr = a.String()
	}
	named := fmt.Sprintf("default/%s (%s)", gateway, addr)
	if last.Verdict != whywire.Left || last.Gateway != named || !strings.Contains(last.Text, "by egress gateway "+named+", with the address "+addr) {
		t.Errorf("by gateway %s: %+v", gateway, last)
	}
	if wanted := map[string]int{"b": 1, "c": 2}[gateway]; len(answers) != wanted {
		t.Errorf("by gateway %s: %d nodes answer, want %d", gateway, len(answers), wanted)
	}
	if first := answers[0].Outcome; len(answers) == 2 && (first.Verdict != whywire.SentOn || first.Gateway != addr || first.Tunnel != whywire.VXLAN) {
		t.Errorf("by gateway %s, the client's node: %+v", gateway, first)
	}
}

// TestEgressFirstPacket: pods send from the moment on in which CNI's ADD ends: before the node
// knows what they are, and then as clients of gateways. Outside nothing is seen but what came by a
// gateway.
func TestEgressFirstPacket(t *testing.T) {
	inAll(t, func(t *testing.T, fam family) {
		f := egressFixture(t, fam)
		f.gateways("bc")
		f.apply()
		out := f.listener()
		for i := range 8 {
			p := f.n1.newPod(fmt.Sprint("new", i), map[string]string{"app": "new"})
			known := p.obj
			f.cluster.Pods.Delete(known.Name)
			f.apply() // the node has the interface, and does not know the pod
			k := f.talker(p)
			stop := f.talksAllTheTime(k)
			for range egressFlows { // what it would send is on its way
				k.send(40000 + i)
			}
			f.cluster.Pods.Put(known)
			f.leavesByGateways(p)
			f.apply()
			stop()
			if got := out.hears(k, 30000+i); !f.addrsOf("bc")[got] {
				t.Errorf("pod %d leaves by %s", i, got)
			}
		}
		if out.wrong(f) == 0 {
			t.Logf("all that came from 8 pods came by gateways: %v", out.by)
		}
	})
}

// TestEgressNodeDown: the node of a gateway is cut off, as when it dies. By what a prober says the
// client's node has its flows begin anew by the other gateway.
func TestEgressNodeDown(t *testing.T) {
	inAll(t, func(t *testing.T, fam family) {
		f := egressFixture(t, fam)
		f.gateways("bc")
		f.apply()
		out, talker := f.listener(), f.talker(f.a)
		probed := f.n1.state().Probed
		if len(probed) == 0 {
			t.Fatal("n2 is not probed")
		}
		found := make(chan map[netip.Addr]bool, 100)
		prober := nodeprobe.New(nodeprobe.Config{Log: slog.New(slog.DiscardHandler), Down: func(down map[netip.Addr]bool) { found <- down }})
		prober.Update(probed)
		ns := nettest.Open(t, "/run/netns/"+f.n1.netns)
		ctx, cancel := context.WithCancel(context.Background())
		var probes sync.WaitGroup
		probes.Go(func() { ns.Do(t, "probing", func() error { return prober.Run(ctx) }) })
		t.Cleanup(func() { cancel(); probes.Wait() })
		by := map[netip.Addr]int{}
		for flow := range egressFlows {
			by[out.hears(talker, 30000+flow)]++
		}
		if len(by) != 2 {
			t.Fatalf("flows leave by %v", by)
		}
		run(t, "ip -n %s link set eth0 down", f.n2.netns)
		cut := time.Now()
		for down := false; !down; {
			select {
			case now := <-found:
				f.n1.local = func(l *model.Local) { l.Down = now }
				down = len(now) == len(probed) // in all of its families
			case <-time.After(await.Patience):
				t.Fatal("n2 is not taken as down")
			}
		}
		f.n1.apply()
		t.Logf("out after %v", time.Since(cut))
		for flow := range egressFlows {
			if got := out.hears(talker, 30000+flow); !f.addrsOf("b")[got] {
				t.Errorf("flow %d leaves by %s", flow, got)
			}
		}
	})
}

// keptIn: of what a client sends nothing arrives outside; what pod b sends, which is no client,
// does.
func (f *fixture) keptIn(t *testing.T, out *listener, client *talker) {
	t.Helper()
	other := f.talker(f.b)
	for flow := range 200 {
		client.send(flow)
	}
	if got := out.hears(other, 30000); got != other.src {
		t.Errorf("a pod that is no client leaves as %s", got)
	}
	delete(out.by, other.src)
	if len(out.by) > 0 {
		t.Errorf("what came of the client's: %v", out.by)
	}
}

const attackEgress = "an annotation leads a pod out by gateways whose namespace did not grant them to its own"

// TestHostileEgressGrant: whoever annotates pods borrows no gateway's address: its namespace says
// whose pods may have it.
func TestHostileEgressGrant(t *testing.T) {
	inEither(t, func(t *testing.T, fam family) {
		record(t, attackEgress, hostile.Tenant, fam)
		f := egressFixture(t, fam)
		f.grants("projectcalico.org/name == 'other'")
		f.gateways("bc")
		f.apply()
		out, client := f.listener(), f.talker(f.a)
		f.keptIn(t, out, client)
		f.egressWhy(t, "")
		f.grants("projectcalico.org/name == 'default'")
		f.apply()
		if got := out.hears(client, 30001); !f.addrsOf("bc")[got] {
			t.Errorf("with a grant it leaves by %s", got)
		}
	})
}
