// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	cilium "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

// alone is a policy that evaluates each packet by itself.
func alone(ingress, egress []model.Rule) *model.Policy {
	p := forHosts("alone", ingress, egress)
	p.ApplyOnForward, p.DoNotTrack, p.Order = true, true, 1
	return p
}

// sentFrom is a rule about TCP and UDP to everybody, from a port.
func (fam family) sentFrom(action model.Action, port uint16) model.Rule {
	r := fam.from(action, "", port)
	r.SourcePorts, r.Ports = r.Ports, []model.PortRange{{Protocol: model.ProtocolTCP, Last: 65535}, {Protocol: model.ProtocolUDP, Last: 65535}}
	return r
}

// all is a rule about everything of a network.
func (fam family) all(action model.Action, cidr string) model.Rule {
	return model.Rule{Action: action, Other: &model.Entity{InNets: true, Nets: []netip.Prefix{fam.prefix(cidr)}}}
}

// guardNode gives node n1 a host endpoint of all its interfaces.
func (f *fixture) guardNode(profiles ...string) {
	f.cluster.HostEndpoints["n1"] = &model.HostEndpoint{Name: "n1", Node: "n1", Interface: model.AllInterfaces, Labels: map[string]string{"role": "node"}, Profiles: profiles}
}

// leavesXDP waits until no program is in XDP of an interface: the kernel detaches a link a moment
// after nobody holds it any more.
func (n *node) leavesXDP(dev string) {
	n.t.Helper()
	await.That(n.t, "XDP of "+dev+" without a program", func() error {
		if id, mode := n.inXDP(dev); id != 0 {
			return fmt.Errorf("program %d is there (%s)", id, mode)
		}
		return nil
	})
}

// inXDP names the program in XDP of an interface of the node and its mode, as the kernel reports
// them; empty where there is none.
func (n *node) inXDP(dev string) (id uint32, mode string) {
	n.lan.t.Helper()
	n.in(func() error {
		l, err := netlink.LinkByName(dev)
		if err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached {
			id, mode = l.Attrs().Xdp.ProgId, map[uint32]string{1: dataplane.XDPNative, 2: dataplane.XDPGeneric}[l.Attrs().Xdp.AttachMode]
		}
		return err
	})
	return id, mode
}

// in calls f in the host's network namespace.
func (h *host) in(f func() error) {
	h.lan.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and it ends with the goroutine
		ns, err := os.Open("/run/netns/" + h.netns)
		if err == nil {
			if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
				err = f()
			}
			ns.Close()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		h.lan.t.Fatalf("in %s: %v", h.netns, err)
	}
}

// tracked counts the flows that the node has for a port of a protocol.
func (n *node) tracked(proto model.Protocol, port uint16) (count int) {
	n.lan.t.Helper()
	for _, table := range []string{"weir_flows", "weir_flows_new"} {
		n.eachFlow(n.lan.family, table, func(_, _ netip.Addr, rest [5]byte) {
			if model.Protocol(rest[4]) == proto && (uint16(rest[0])<<8|uint16(rest[1]) == port || uint16(rest[2])<<8|uint16(rest[3]) == port) {
				count++
			}
		})
	}
	return count
}

// TestUntracked: policy with doNotTrack evaluates each packet by itself, in XDP where it comes in,
// open connections too, whatever it is for; and where it leaves what the node itself sends, by
// whichever way, and not what pods send. What it allows of the node's own has no flow, and is not
// evaluated again; all else is evaluated as ever. With nftables it is so before connection
// tracking, which has flows all the same.
func TestUntracked(t *testing.T) { inBoth(t, testUntracked) }

func testUntracked(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.service("near", "10.96.0.1", 30001, f.b)
	f.n1.listen("tcp", ":22")
	f.n1.echo(f.n1.addr)
	f.guardNode()
	f.put(forHosts("nodes", []model.Rule{fam.from(model.Allow, "", 9000)}, []model.Rule{fam.from(model.Allow, "172.30.0.55/32", 7000), fam.from(model.Allow, "", 8080)}))
	f.apply()
	f.client.opens(1, "172.30.0.8:9000")
	f.client2.opens(1, "172.30.0.8:9000")
	f.client2.opens(2, "172.30.0.8:22")
	if id, _ := f.n1.inXDP("eth0"); id != 0 || f.n1.driver.last.Arrival != nil {
		t.Errorf("program %d is in XDP, and no policy asks for it (%v)", id, f.n1.driver.last.Arrival)
	}
	if a := f.client.call(request{Op: "exchange", Addr: "172.30.0.8:8081", From: "172.30.0.55:19000", Size: 100, Timeout: 1000}); a.Err == "" {
		t.Error("UDP to port 8081 passes, which no policy allows")
	}

	f.put(alone([]model.Rule{fam.from(model.Allow, "172.30.0.55/32", 8081), fam.all(model.Deny, "172.30.0.62/32")},
		[]model.Rule{fam.sentFrom(model.Allow, 8081), fam.from(model.Deny, "172.30.0.55/32", 7000), fam.from(model.Deny, f.c.local.Addrs[0].String()+"/32", 8080)}))
	f.apply()
	programs := f.n1.dataplane() == "ebpf"
	if programs {
		want(t, "XDP of eth0", f.n1.driver.last.Arrival["eth0"], dataplane.XDPNative)
		if id, mode := f.n1.inXDP("eth0"); id == 0 || mode != dataplane.XDPNative {
			t.Errorf("program %d is in XDP of eth0, %q", id, mode)
		}
	}
	late := f.n1.driver.last.Late
	// Denied: everything of client2 but failsafe ports, open connections and Services included.
	for _, nw := range networks {
		f.client2.refused(nw, "172.30.0.8:9000")
		f.client2.refused(nw, "172.30.0.8:30001")
		want(t, nw+" to the node", f.client.reaches("n1", nw, "172.30.0.8:9000"), "172.30.0.55")
		want(t, nw+" to a pod by a node port", f.client.reaches("b", nw, "172.30.0.8:30001"), "172.30.0.55")
		// What the node sends, by the uplink and by weir0; pods do as ever.
		f.n1.refused(nw, "172.30.0.55:7000")
		f.n1.refused(nw, f.c.at("8080"))
		f.n1.reaches("d", nw, f.d.at("8080"))
		f.a.reaches("client", nw, "172.30.0.55:7000")
		f.a.reaches("c", nw, f.c.at("8080"))
		f.c.reaches("a", nw, f.a.at("8080"))
	}
	for _, open := range []struct {
		w       *worker
		id      int
		allowed bool
	}{{f.client.worker, 1, true}, {f.client2.worker, 1, false}, {f.client2.worker, 2, true}} {
		a := open.w.call(request{Op: "talk", ID: open.id, Timeout: 1000})
		if (a.Err == "") != open.allowed {
			t.Errorf("%s: connection %d, opened before: %q (%s), allowed: %t", open.w.name, open.id, a.Reply, a.Err, open.allowed)
		}
	}
	f.client2.reaches("n1", "tcp", "172.30.0.8:22") // a failsafe port
	f.apply()
	if n := f.n1.driver.last.Late - late; n != 0 {
		t.Errorf("%d packets were evaluated behind XDP", n)
	}
	if d := f.n1.driver.last.Dropped; d[reason.UntrackedIngress] == 0 || d[reason.UntrackedEgress] == 0 {
		t.Errorf("dropped: %v", d)
	}
	// Allowed: whole datagrams and fragments, and nothing is remembered of them.
	e := exchanges{port: 20000}
	e.datagrams(t, "to the node", f.client.worker, f.client.addr, "172.30.0.8:8081", false)
	if e.again > 1 {
		t.Errorf("%d of %d datagrams were sent again", e.again, e.sent)
	}
	if a := f.client2.call(request{Op: "exchange", Addr: "172.30.0.8:8081", From: "172.30.0.62:19000", Size: 4000, Timeout: 1000}); a.Err == "" {
		t.Error("fragments of client2 pass")
	}
	if programs {
		if n := f.n1.tracked(model.ProtocolUDP, 8081); n != 0 {
			t.Errorf("%d flows of what is not tracked", n)
		}
		if n := f.n1.tracked(model.ProtocolUDP, 9000); n == 0 {
			t.Error("no flow of what is")
		}
	}

	// Answers are packets too, and what the tracked policies do not allow either ends there.
	f.put(alone([]model.Rule{fam.from(model.Allow, "172.30.0.55/32", 8081)}, nil))
	f.apply()
	if a := f.client.call(request{Op: "exchange", Addr: "172.30.0.8:8081", From: "172.30.0.55:19000", Size: 100, Timeout: 1000}); a.Err == "" {
		t.Error("an answer passes that nothing allows")
	}
	f.client2.reaches("n1", "tcp", "172.30.0.8:9000")

	delete(f.cluster.Policies, alone(nil, nil).ID())
	f.apply()
	f.n1.leavesXDP("eth0")
	if len(f.n1.driver.last.Arrival) != 0 {
		t.Errorf("the driver still reports XDP: %v", f.n1.driver.last.Arrival)
	}
	f.client2.reaches("n1", "tcp", "172.30.0.8:9000")
	f.n1.reaches("client", "tcp", "172.30.0.55:7000")
}

// TestUntrackedTunnel: where nothing may come in, pods still meet those of other nodes through the
// tunnel, neighbours are found, and failsafe ports are open.
func TestUntrackedTunnel(t *testing.T) { inBoth(t, testUntrackedTunnel) }

func testUntrackedTunnel(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.encapsulate(model.EncapAlways)
	f.service("near", "10.96.0.1", 30001, f.b)
	f.n1.listen("tcp", ":22")
	f.guardNode(model.ProfileDefaultAllow)
	f.put(alone([]model.Rule{{Action: model.Deny}}, []model.Rule{{Action: model.Deny}}))
	f.apply()
	if f.n1.dataplane() == "ebpf" {
		want(t, "XDP of eth0", f.n1.driver.last.Arrival["eth0"], dataplane.XDPNative)
	}
	for _, nw := range networks {
		f.a.reaches("c", nw, f.c.at("8080"))
		f.c.reaches("b", nw, f.b.at("8080"))
		f.client.refused(nw, "172.30.0.8:9000")
		f.client.refused(nw, "172.30.0.8:30001")
		f.n2.refused(nw, "172.30.0.8:9000")
		f.n1.refused(nw, "172.30.0.55:7000")
		f.n1.reaches("a", nw, f.a.at("8080"))
	}
	f.client.reaches("n1", "tcp", "172.30.0.8:22")
}

// TestUntrackedStaysInForce: while no agent runs what was denied stays so; the next one takes the
// link over as it is. With the last such policy, and with a change of the data plane, it goes.
func TestUntrackedStaysInForce(t *testing.T) {
	t.Parallel()
	for name, fam := range map[string]family{"IPv4": ipv4, "IPv6": ipv6} {
		t.Run(name, func(t *testing.T) { testUntrackedStaysInForce(t, fam) })
	}
}

func testUntrackedStaysInForce(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.guardNode(model.ProfileDefaultAllow)
	p := alone([]model.Rule{fam.all(model.Deny, "172.30.0.62/32")}, nil)
	f.put(p)
	f.apply()
	pin := filepath.Join(f.n1.driver.bpffs, "weir", "links", fmt.Sprintf("%d-arrive", f.n1.uplink))
	linkID := func() link.ID {
		t.Helper()
		l, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		info, err := l.Info()
		if err != nil {
			t.Fatal(err)
		}
		return info.ID
	}
	before := linkID()
	program, _ := f.n1.inXDP("eth0")
	f.n1.driver.kill()
	f.client2.refused("udp", "172.30.0.8:9000")
	f.client.reaches("n1", "udp", "172.30.0.8:9000")
	f.n1.driver.start()
	f.n1.apply()
	if after := linkID(); after != before {
		t.Errorf("link %d was %d: there was a moment without", after, before)
	}
	if now, mode := f.n1.inXDP("eth0"); now == program || now == 0 || mode != dataplane.XDPNative {
		t.Errorf("program %d (%s) was %d", now, mode, program)
	}
	f.client2.refused("udp", "172.30.0.8:9000")

	f.n1.switchTo("nft")
	f.n1.leavesXDP("eth0")
	f.n1.switchTo("ebpf")
	if id, _ := f.n1.inXDP("eth0"); id == 0 {
		t.Error("no program is in XDP after the return")
	}
	f.client2.refused("udp", "172.30.0.8:9000")

	// The policy goes while nobody looks.
	f.n1.driver.kill()
	delete(f.cluster.Policies, p.ID())
	f.n1.driver.start()
	f.n1.apply()
	f.n1.leavesXDP("eth0") // what an agent before left
	f.client2.reaches("n1", "udp", "172.30.0.8:9000")
}

// TestUntrackedBesideAnotherProgram: where somebody else has XDP, it stays his; the policy is in
// force behind it.
func TestUntrackedBesideAnotherProgram(t *testing.T) {
	t.Parallel()
	for name, fam := range map[string]family{"IPv4": ipv4, "IPv6": ipv6} {
		t.Run(name, func(t *testing.T) { testUntrackedBesideAnotherProgram(t, fam) })
	}
}

func testUntrackedBesideAnotherProgram(t *testing.T, fam family) {
	f := newFixture(t, fam)
	foreign, err := cilium.NewProgram(&cilium.ProgramSpec{Name: "foreign", Type: cilium.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	put := func(fd int) {
		t.Helper()
		f.n1.in(func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetXdpFd(l, fd)
		})
	}
	put(foreign.FD())
	its, _ := f.n1.inXDP("eth0")
	f.guardNode(model.ProfileDefaultAllow)
	p := alone([]model.Rule{fam.from(model.Allow, "172.30.0.55/32", 9000), fam.all(model.Deny, "172.30.0.62/32")}, []model.Rule{fam.sentFrom(model.Allow, 9000)})
	f.put(p)
	f.apply()
	if why := f.n1.driver.last.Arrival["eth0"]; !strings.Contains(why, "busy") {
		t.Errorf("of XDP is said: %q", why)
	}
	evaluated := func() {
		t.Helper()
		for _, nw := range networks {
			f.client2.refused(nw, "172.30.0.8:9000")
			f.client.reaches("n1", nw, "172.30.0.8:9000")
		}
	}
	evaluated()
	if n := f.n1.tracked(model.ProtocolUDP, 9000); n != 0 {
		t.Errorf("%d flows of what is not tracked", n)
	}
	f.apply()
	if a := f.n1.driver.last; a.Late == 0 || a.Dropped[reason.UntrackedIngress] == 0 {
		t.Errorf("%d packets evaluated behind XDP, dropped: %v", a.Late, a.Dropped)
	}
	if now, _ := f.n1.inXDP("eth0"); now != its || its == 0 {
		t.Errorf("program %d is in XDP, %d was", now, its)
	}
	delete(f.cluster.Policies, p.ID())
	f.apply()
	if now, _ := f.n1.inXDP("eth0"); now != its {
		t.Errorf("program %d is in XDP without a policy, %d was", now, its)
	}
	f.client2.reaches("n1", "udp", "172.30.0.8:9000")

	f.put(p)
	put(-1) // it goes, and the next agent takes the place
	f.n1.driver.kill()
	f.n1.driver.start()
	f.apply()
	want(t, "XDP of eth0", f.n1.driver.last.Arrival["eth0"], dataplane.XDPNative)
	evaluated()
}

// TestUntrackedGeneric: on a device whose driver has no XDP the kernel's generic one runs the
// program.
func TestUntrackedGeneric(t *testing.T) {
	t.Parallel()
	for name, fam := range map[string]family{"IPv4": ipv4, "IPv6": ipv6} {
		t.Run(name, func(t *testing.T) { testUntrackedGeneric(t, fam) })
	}
}

func testUntrackedGeneric(t *testing.T, fam family) {
	f := newFixture(t, fam)
	near, far := fam.addr("172.30.9.1"), fam.addr("172.30.9.9")
	aside := f.newNetns("aside")
	run(t, "ip -n %[1]s link add eth1 type bridge; ip -n %[1]s link set eth1 up; ip link add port1 netns %[1]s type veth peer name eth0 netns %[2]s; "+
		"ip -n %[1]s link set port1 master eth1 up; ip -n %[2]s link set eth0 up", f.n1.netns, aside)
	fam.ip(t, f.n1.netns, "addr add %s/%d dev eth1", near, fam.bits()-8)
	fam.ip(t, aside, "addr add %s/%d dev eth0", far, fam.bits()-8)
	fam.ip(t, aside, "route add default via %s", near)
	w := f.startWorker("aside", aside, "")
	f.guardNode(model.ProfileDefaultAllow)
	f.put(alone([]model.Rule{fam.from(model.Deny, "172.30.9.0/24", 9000)}, nil))
	f.apply()
	want(t, "XDP of eth1", f.n1.driver.last.Arrival["eth1"], dataplane.XDPGeneric)
	want(t, "XDP of eth0", f.n1.driver.last.Arrival["eth0"], dataplane.XDPNative)
	late := f.n1.driver.last.Late
	f.n1.listen("tcp", ":9001")
	for _, nw := range networks {
		w.refused(nw, "172.30.9.1:9000")
	}
	w.reaches("n1", "tcp", "172.30.9.1:9001")
	f.client.reaches("n1", "tcp", "172.30.0.8:9000")
	f.apply()
	if a := f.n1.driver.last; a.Late != late || a.Dropped[reason.UntrackedIngress] == 0 {
		t.Errorf("%d packets evaluated behind XDP, dropped: %v", a.Late-late, a.Dropped)
	}
}

// TestUntrackedFlood: what floods a port that doNotTrack policy denies ends in XDP, each packet
// counted by its rule, and leaves no flow; what floods one that it allows leaves none either.
func TestUntrackedFlood(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) { testUntrackedFlood(t, ipv4) })
	t.Run("IPv6", func(t *testing.T) { testUntrackedFlood(t, ipv6) })
}

func testUntrackedFlood(t *testing.T, fam family) {
	const count = 5000
	f := newFixtureAlone(t, fam)
	f.newClient("router", "172.30.0.1") // where answers to nobody end
	f.service("near", "10.96.0.1", 30001, f.b)
	f.cluster.Settings.FailsafeIn, f.cluster.Settings.FailsafeOut = nil, nil // some of the flood bears their ports
	f.guardNode(model.ProfileDefaultAllow)
	f.put(alone([]model.Rule{fam.from(model.Allow, "11.0.0.0/8", 5353), fam.all(model.Deny, "11.0.0.0/8")}, []model.Rule{fam.sentFrom(model.Allow, 5353)}))
	f.n1.listen("udp", ":5353")
	f.apply()
	f.client.opens(1, "172.30.0.8:9000")
	f.apply()
	late := f.n1.driver.last.Late
	mac := packet.MAC(f.n1.mac).String()
	flood := func(kind, to string) {
		t.Helper()
		if a := f.client2.call(request{Op: "flood", Net: kind, Addr: to, Name: mac, Size: count}); a.Err != "" {
			t.Fatal(a.Err)
		}
	}
	dropped := func() uint64 {
		f.n1.apply()
		return f.n1.driver.last.Dropped[reason.UntrackedIngress]
	}
	for _, c := range []struct{ kind, to string }{{"syn", "172.30.0.8:9000"}, {"ack", "172.30.0.8:9000"}, {"udp", "172.30.0.8:9000"}, {"syn", "172.30.0.8:30001"}} {
		before := dropped()
		flood(c.kind, c.to)
		await.That(t, c.kind+" to "+c.to+" dropped", func() error {
			if n := dropped() - before; n < count*9/10 || n > count { // a busy CPU's queue drops some
				return fmt.Errorf("%d of %d", n, count)
			}
			return nil
		})
	}
	if n := f.n1.driver.last.Late - late; n != 0 {
		t.Errorf("%d packets came through XDP unevaluated", n)
	}
	flood("udp", "172.30.0.8:5353")
	if got := f.client.call(request{Op: "talk", ID: 1}); got.Err != "" {
		t.Errorf("an open connection: %s", got.Err)
	}
	f.client.reaches("b", "tcp", "172.30.0.8:30001")
	for _, table := range []string{"weir_flows", "weir_flows_new"} {
		flooded := 0
		f.n1.eachFlow(fam, table, func(src, dst netip.Addr, _ [5]byte) {
			if src.As4()[0] == 11 || dst.As4()[0] == 11 {
				flooded++
			}
		})
		if flooded != 0 {
			t.Errorf("%s: %d entries of the flood", table, flooded)
		}
	}
}
