// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

const (
	narrow   = 1280 // bytes that fit the link between the routers
	tunnelIn = 1450 // bytes that fit the tunnel
	farAddr  = "172.28.0.2"
)

// behindTwoRouters makes a host behind two routers, the first of which is the nodes' default
// gateway: switch - r1 - (MTU 1280) - r2 - far.
func (f *fixture) behindTwoRouters() *host {
	r1, r2, far := f.newNetns("r1"), f.newNetns("r2"), f.newNetns("far")
	f.hosts++
	run(f.t, "ip link add eth0 netns %s type veth peer name p%d netns %s-sw; ip -n %s-sw link set p%d master br0 up; "+
		"ip link add eth1 netns %s type veth peer name eth0 netns %s; ip link add eth1 netns %s type veth peer name eth0 netns %s",
		r1, f.hosts, f.prefix, f.prefix, f.hosts, r1, r2, r2, far)
	for _, l := range []struct {
		netns, dev, addr string
		mtu              int
	}{{r1, "eth0", "172.30.0.1/24", 1500}, {r1, "eth1", "172.29.0.1/24", narrow}, {r2, "eth0", "172.29.0.2/24", narrow},
		{r2, "eth1", "172.28.0.1/24", 1500}, {far, "eth0", farAddr + "/24", 1500}} {
		run(f.t, "ip -n %s link set %s mtu %d up; ip -n %s addr add %s dev %s", l.netns, l.dev, l.mtu, l.netns, l.addr, l.dev)
		if f.family == ipv6 {
			p := netip.MustParsePrefix(l.addr)
			run(f.t, "ip -n %s addr add %s/%d dev %s nodad", l.netns, six(p.Addr()), p.Bits()+96, l.dev)
		}
	}
	run(f.t, "ip netns exec %s sysctl -qw net.ipv4.ip_forward=1; ip netns exec %s sysctl -qw net.ipv4.ip_forward=1; "+
		"ip -n %s route add default via 172.29.0.2; ip -n %s route add default via 172.29.0.1; ip -n %s route add default via 172.28.0.1",
		r1, r2, r1, r2, far)
	// However often they are asked.
	for _, r := range []string{r1, r2, far} {
		run(f.t, "ip netns exec %s sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0", r)
	}
	if f.family == ipv6 {
		run(f.t, "ip netns exec %s sysctl -qw net.ipv6.conf.all.forwarding=1; ip netns exec %s sysctl -qw net.ipv6.conf.all.forwarding=1; "+
			"ip -n %s route add default via %s; ip -n %s route add default via %s; ip -n %s route add default via %s",
			r1, r2, r1, sixOf("172.29.0.2"), r2, sixOf("172.29.0.1"), far, sixOf("172.28.0.1"))
	}
	return &host{worker: f.startWorker("far", far, ""), lan: f.lan, netns: far}
}

// bulk fails the test unless much data goes to addr and comes back.
func (w *worker) bulk(what, addr string) {
	w.t.Helper()
	if a := w.call(request{Op: "bulk", Net: "tcp", Addr: addr, Size: 400_000}); a.Err != "" {
		w.t.Errorf("%s: %s -> %s: %s", what, w.name, addr, a.Err)
	}
}

// learns sends datagrams in packets of 1,500 bytes that must not be fragmented, and fails the test
// unless the sender learns what fits, and that it fits.
func (w *worker) learns(what, addr string, mtu int) {
	w.t.Helper()
	headers := 28 + w.family.headerMore()
	a := w.call(request{Op: "probe", Net: "udp", Addr: addr, Size: 1500 - headers, DF: true, Timeout: 20_000})
	if a.MTU != mtu {
		w.t.Errorf("%s: %s -> %s learnt an MTU of %d (%s), want %d", what, w.name, addr, a.MTU, a.Err, mtu)
	}
	a = w.call(request{Op: "probe", Net: "udp", Addr: addr, Size: mtu - headers, DF: true, Timeout: 20_000})
	if a.Err != "" {
		w.t.Errorf("%s: %s -> %s: a datagram of %d bytes: %s", what, w.name, addr, mtu, a.Err)
	}
}

// TestPathMTU: somewhere on each path less fits than the sender's interface takes. Senders learn
// it.
func TestPathMTU(t *testing.T) { inBoth(t, testPathMTU) }

func testPathMTU(t *testing.T, fam family) {
	tunnelIn := tunnelIn - fam.headerMore()
	inModes(t, fam, func(t *testing.T, mode mode) {
		f := newFixture(t, fam)
		far := f.behindTwoRouters()
		f.routed = mode.routed
		f.cluster.Settings.DSR = mode.dsr
		f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
		f.service("far", "10.96.0.2", 30002, f.c)
		f.service("near", "10.96.0.3", 30003, f.a)
		if mode.routed {
			f.encapsulate(model.EncapAlways)
		}
		f.apply()
		for _, w := range []*worker{f.a.worker, f.c.worker, far.worker, f.n1.worker} {
			w.listen("tcp", ":8090")
		}
		far.listen("udp", ":8080")
		f.echoService("bulk", "10.96.0.4", 30004, f.c)
		f.apply()

		f.a.bulk("out, translated", farAddr+":8090")
		f.a.learns("out, translated", farAddr+":8080", narrow)
		f.n1.bulk("node to outside", farAddr+":8090")
		far.bulk("node port, backend elsewhere", "172.30.0.8:30004")
		far.bulk("node port, backend there", "172.30.0.9:30004")
		f.a.bulk("Service", "10.96.0.4:80")
		f.n1.bulk("node to Service", "10.96.0.4:80")
		f.a.bulk("pod", f.c.at("8090"))
		f.n1.bulk("node to pod", f.c.at("8090"))
		if !mode.routed {
			return
		}
		f.a.learns("pod, tunnel", f.c.at("8080"), tunnelIn)
		f.a.learns("Service, tunnel", "10.96.0.2:80", tunnelIn)
		f.client.learns("node port, handed on by the tunnel", "172.30.0.8:30002", tunnelIn)
		if a := f.a.call(request{Op: "probe", Net: "udp", Addr: f.d.at("8080"), Size: 1500 - 28, Timeout: 20_000}); a.Err != "" {
			t.Errorf("a datagram that may be fragmented, through the tunnel: %s", a.Err)
		}
	})
}

// TestFragmentsOnTheWay: the node's own route takes less than a pod sends, and the pod allows to
// fragment.
func TestFragmentsOnTheWay(t *testing.T) {
	f := newFixture(t, ipv4)
	far := f.behindTwoRouters()
	far.listen("udp", ":8080")
	run(t, "ip -n %s route replace default via 172.30.0.1 mtu lock 1200", f.n1.netns)
	f.apply()
	if a := f.a.call(request{Op: "probe", Net: "udp", Addr: farAddr + ":8080", Size: 1400, Timeout: 20_000}); a.Err != "" || !strings.Contains(a.Reply, "172.30.0.8") {
		t.Errorf("a datagram that may be fragmented: %q (%s)", a.Reply, a.Err)
	}
	f.a.learns("one that may not", farAddr+":8080", 1200)
}

// echoService is a Service whose TCP port leads to the port that talks at length.
func (f *fixture) echoService(name, clusterIP string, nodePort uint16, backends ...*pod) {
	s := f.service(name, clusterIP, nodePort, backends...)
	for _, slice := range f.cluster.Slices {
		for i := range slice.Ports {
			if slice.Service == s.Name {
				slice.Ports[i].Port = 8090
			}
		}
	}
}
