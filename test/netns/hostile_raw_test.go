// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/packet"
)

// gatewayMAC is the MAC address of the host side of every pod's interface.
var gatewayMAC = [6]byte{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

// rawPod is a fixture in which the pod a sends frames of its own making.
type rawPod struct {
	*fixture
	family family
	at     map[string]*wire // a, b (on a's node), c (on the other node), client
}

func newRawPod(t *testing.T, fam family) *rawPod {
	r := &rawPod{fixture: newFixture(t, fam), family: fam, at: map[string]*wire{}}
	r.service("near", "10.96.0.1", 30001, r.b)
	r.apply()
	r.podsReachEachOther(t)
	for _, name := range []string{"a", "b", "c", "client"} {
		r.at[name] = newWire(t, r.prefix+"-"+name, "eth0")
	}
	return r
}

// port is an address of the test's family with a port, as text.
func (r *rawPod) port(addr string, port int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(r.family.addr(addr)), uint16(port)).String()
}

// frame is a packet from a's interface; see internal/packet for the text.
func (r *rawPod) frame(text string, args ...any) []byte {
	r.t.Helper()
	p, err := packet.Parse(fmt.Sprintf(text, args...))
	if err != nil {
		r.t.Fatal(err)
	}
	p.SrcMAC, p.DstMAC = packet.MAC(r.at["a"].mac), packet.MAC(gatewayMAC)
	b, err := p.Marshal()
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// arrives waits until an honest datagram of a, sent after what it sent before, arrives at b, c and
// the client.
func (r *rawPod) arrives() {
	r.t.Helper()
	for name, addr := range map[string]string{"b": "10.244.1.3", "c": "10.244.2.2", "client": "172.30.0.55"} {
		text := "plain to " + name + "."
		r.at["a"].control(r.at[name], r.frame("udp %s > %s ttl=64 data=%q", r.port("10.244.1.2", 6001), r.port(addr, 7777), text), text)
	}
}

// held fails the test when b, c or the client saw a frame with the text.
func (r *rawPod) held(text string) {
	r.t.Helper()
	r.arrives()
	for _, name := range []string{"b", "c", "client"} {
		if r.at[name].saw(text) {
			r.t.Errorf("%s: it arrived at %s", text, name)
		}
	}
}

// TestHostileSourcesOfPods: a pod sends with no address but its own.
func TestHostileSourcesOfPods(t *testing.T) { inBoth(t, testHostileSourcesOfPods) }

func testHostileSourcesOfPods(t *testing.T, fam family) {
	record(t, "a pod sends with the address of another pod, a node, a Service, a client or nobody", hostile.RawPod, fam)
	r := newRawPod(t, fam)
	for i, src := range []string{"10.244.1.3", "10.244.2.2", "172.30.0.8", "172.30.0.9", "10.96.0.1", "172.30.0.55", "127.0.0.1", "169.254.1.1", "0.0.0.0", "10.244.1.60", "192.0.2.9"} {
		for j, dst := range []string{"10.244.1.3", "10.244.2.2", "172.30.0.55", "172.30.0.9"} {
			r.at["a"].send(r.frame("udp %s > %s ttl=64 data=%q", r.port(src, 6100+i), r.port(dst, 7000+j), "hostile from "+src+"."))
		}
	}
	r.held("hostile from ")
}

// TestHostileLoopbackOfNode: what a node's processes offer on loopback addresses is for
// themselves, also where somebody lets the kernel route such addresses, as kube-proxy does for
// node ports (route_localnet, CVE-2020-8558).
func TestHostileLoopbackOfNode(t *testing.T) { inBoth(t, testHostileLoopbackOfNode) }

func testHostileLoopbackOfNode(t *testing.T, fam family) {
	record(t, "a pod sends to a loopback address of its node", hostile.RawPod, fam)
	record(t, "a host on the link sends to a loopback address of a node", hostile.Link, fam)
	r := newRawPod(t, fam)
	run(t, "ip netns exec %s sysctl -qw net.ipv4.conf.all.route_localnet=1", r.n1.netns)
	for _, at := range []string{"127.0.0.1:9100", "172.30.0.8:9100"} {
		if a := r.n1.call(request{Op: "door", Net: "udp", Addr: at}); a.Err != "" {
			t.Fatal(a.Err)
		}
	}
	senders := []struct {
		name, addr string
		at         *wire
		to         [6]byte
	}{{"pod", "10.244.1.2", r.at["a"], gatewayMAC}, {"host", "172.30.0.55", r.at["client"], r.n1.mac}}
	send := func(dst, what string) {
		for _, s := range senders {
			frame := r.frame("udp %s > %s ttl=64 data=%q", r.port(s.addr, 6000), r.port(dst, 9100), what+" "+s.name)
			copy(frame, s.to[:])
			copy(frame[6:], s.at.mac[:])
			s.at.send(frame)
		}
	}
	send("127.0.0.1", "hostile")
	var arrived map[string]int
	await.That(t, "honest datagrams of both", func() error {
		send("172.30.0.8", "plain")
		arrived = r.n1.call(request{Op: "arrivals"}).Arrived
		if arrived["plain pod"] == 0 || arrived["plain host"] == 0 {
			return fmt.Errorf("arrived: %v", arrived)
		}
		return nil
	})
	for _, s := range senders {
		if arrived["hostile "+s.name] > 0 {
			t.Errorf("a datagram of a %s arrived at the node's loopback address", s.name)
		}
	}
}

// TestHostileErrorsOfPods: a pod reports no errors about flows of others: none that make the path
// of another pod, or of its node, narrow.
func TestHostileErrorsOfPods(t *testing.T) { inBoth(t, testHostileErrorsOfPods) }

func testHostileErrorsOfPods(t *testing.T, fam family) {
	record(t, "a pod forges an ICMP error about a flow of other pods or of its node", hostile.RawPod, fam)
	r := newRawPod(t, fam)
	for _, f := range []struct {
		from *worker
		request
	}{
		{r.b.worker, request{Addr: r.c.at("8080"), From: "10.244.1.3:6300"}},
		{r.n1.worker, request{Addr: "172.30.0.55:7000", From: "172.30.0.8:6301"}},
		{r.a.worker, request{Addr: r.c.at("8080"), From: "10.244.1.2:6302"}}, // its own, for comparison
	} {
		f.Op, f.Net, f.ID = "open", "udp", 1
		if a := f.from.call(f.request); a.Err != "" {
			t.Fatal(a.Err)
		}
	}
	kind, mtu := "error type=3 code=4 rest=600", "mtu 600"
	if fam == ipv6 {
		kind, mtu = "error type=2 code=0 rest=1280", "mtu 1280"
	}
	report := func(to, src, dst string) {
		r.at["a"].send(r.frame("icmp %s > %s %s ttl=64 [udp %s > %s ttl=64]", fam.addr("10.244.1.2"), fam.addr(to), kind, src, dst))
	}
	ip := map[family]string{ipv4: "ip", ipv6: "ip -6"}[fam]
	narrow := func(ns, dst string) bool {
		return strings.Contains(run(t, "%s -n %s route get %s", ip, ns, fam.addr(dst)), mtu)
	}
	for _, q := range []struct{ to, src, dst string }{
		{"10.244.1.3", r.port("10.244.1.3", 6300), r.port("10.244.2.2", 8080)},
		{"10.244.2.2", r.port("10.244.2.2", 8080), r.port("10.244.1.3", 6300)},
		{"172.30.0.8", r.port("172.30.0.8", 6301), r.port("172.30.0.55", 7000)},
		{"172.30.0.55", r.port("172.30.0.55", 7000), r.port("172.30.0.8", 6301)},
	} {
		report(q.to, q.src, q.dst)
	}
	r.arrives()
	await.That(t, "what it reports of its own flow", func() error {
		report("10.244.2.2", r.port("10.244.2.2", 8080), r.port("10.244.1.2", 6302))
		if !narrow(r.prefix+"-c", "10.244.1.2") {
			return errors.New("does not arrive")
		}
		return nil
	})
	for ns, dst := range map[string]string{r.prefix + "-b": "10.244.2.2", r.prefix + "-c": "10.244.1.3", r.n1.netns: "172.30.0.55", r.client.netns: "172.30.0.8"} {
		if narrow(ns, dst) {
			t.Errorf("%s: the pod made the path to %s narrow", ns, dst)
		}
	}
}

// TestHostileResetOfPods: a pod ends no connection of others by resets in the name of its ends,
// not even with the right sequence numbers.
func TestHostileResetOfPods(t *testing.T) { inBoth(t, testHostileResetOfPods) }

func testHostileResetOfPods(t *testing.T, fam family) {
	record(t, "a pod ends a connection of other pods by a reset in the name of its end", hostile.RawPod, fam)
	r := newRawPod(t, fam)
	r.at["c"].seen = nil
	if a := r.b.call(request{Op: "open", Net: "tcp", Addr: r.c.at("8080"), From: "10.244.1.3:6400", ID: 1}); a.Err != "" {
		t.Fatal(a.Err)
	}
	const said = "who are you?"
	if !r.at["c"].saw(said) {
		t.Fatal("what b says is not seen")
	}
	b, c := r.port("10.244.1.3", 6400), r.port("10.244.2.2", 8080)
	for _, frame := range r.at["c"].seen {
		p, err := packet.Unmarshal(frame)
		if err != nil || p.Kind != packet.TCP || p.SrcPort != 6400 || len(p.Payload) == 0 {
			continue
		}
		next := p.Seq + uint32(len(p.Payload))
		for _, at := range []uint32{next, next + 1} { // within the window; what is exactly expected ends it at once
			r.at["a"].send(r.frame("tcp %s > %s R seq=%d ttl=64", b, c, at))
		}
		for off := range uint32(200) { // the answer's length
			r.at["a"].send(r.frame("tcp %s > %s R seq=%d ttl=64", c, b, p.Ack+off))
		}
	}
	r.arrives()
	if a := r.b.call(request{Op: "talk", ID: 1}); a.Err != "" {
		t.Errorf("the connection of others ended: %s", a.Err)
	}
}

// TestHostileDHCPOfPods: no process of the node, and no other pod, hears what a pod sends to
// everybody, such as the offers of a DHCP server.
func TestHostileDHCPOfPods(t *testing.T) { inBoth(t, testHostileDHCPOfPods) }

func testHostileDHCPOfPods(t *testing.T, fam family) {
	record(t, "a pod answers as a DHCP server to everybody", hostile.RawPod, fam)
	r := newRawPod(t, fam)
	if a := r.n1.call(request{Op: "door", Net: "udp", Addr: ":68"}); a.Err != "" {
		t.Fatal(a.Err)
	}
	a := r.at["a"]
	everybody, names := []string{"255.255.255.255:68", "172.30.0.255:68", "224.0.0.1:68"}, []string{"10.244.1.2:67", "0.0.0.0:67"}
	if fam == ipv6 {
		everybody, names = []string{"[ff02::1]:68"}, []string{r.port("10.244.1.2", 67), "[fe80::1234]:67"}
	}
	for _, src := range names {
		for _, dst := range everybody {
			for _, mac := range [][6]byte{gatewayMAC, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
				frame := r.frame("udp %s > %s ttl=64 data=%q", src, dst, "hostile offer")
				copy(frame, mac[:])
				a.send(frame)
			}
		}
	}
	r.held("hostile offer")
	await.That(t, "an honest datagram", func() error {
		a.send(r.frame("udp %s > %s ttl=64 data=%q", r.port("10.244.1.2", 6000), r.port("172.30.0.8", 68), "plain"))
		arrived := r.n1.call(request{Op: "arrivals"}).Arrived
		if arrived["hostile offer"] > 0 {
			t.Fatal("a process of the node heard it")
		}
		if arrived["plain"] == 0 {
			return fmt.Errorf("arrived: %v", arrived)
		}
		return nil
	})
}

// TestHostileRouterOfPods: no node makes a pod its router, even where its kernel takes
// advertisements from the pod's interface.
func TestHostileRouterOfPods(t *testing.T) {
	t.Parallel()
	t.Run("IPv6", testHostileRouterOfPods)
	t.Run("nft-IPv6", testHostileRouterOfPods)
}

func testHostileRouterOfPods(t *testing.T) {
	record(t, "a pod makes itself the router of its node and other pods by advertisements", hostile.RawPod, ipv6)
	r := newRawPod(t, ipv6)
	run(t, "ip netns exec %s sysctl -qw net.ipv6.conf.%s.accept_ra=2", r.n1.netns, r.a.local.Interface)
	// RFC 4861, section 4.2: a router for 1,800 s, with the prefix 2001:db8::/64, on the link and
	// for addresses of one's own.
	advertisement := "400018000000000000000000" + "030440c0000007080000070800000000" + "20010db8000000000000000000000000"
	a := r.at["a"]
	a.send(r.frame("ip fe80::1234 > ff02::1 proto=58 ttl=255 data=0x8600%04x%s", sumOf(t, "fe80::1234", "ff02::1", "86000000"+advertisement), advertisement))
	r.held("hostile")
	if got := run(t, "ip -6 -n %s route show dev %s", r.n1.netns, r.a.local.Interface); strings.Contains(got, "proto ra") {
		t.Errorf("the node took the pod for a router: %s", got)
	}
	if got := run(t, "ip -6 -n %s addr show dev %s", r.n1.netns, r.a.local.Interface); strings.Contains(got, "2001:db8:") {
		t.Errorf("the node took an address from the pod: %s", got)
	}
}

// sumOf is the checksum of a message of ICMPv6 (RFC 4443, section 2.3).
func sumOf(t *testing.T, src, dst, message string) uint16 {
	t.Helper()
	b, err := hex.DecodeString(message)
	if err != nil {
		t.Fatal(err)
	}
	from, to := netip.MustParseAddr(src).As16(), netip.MustParseAddr(dst).As16()
	sum := uint32(len(b)) + packet.ProtoICMPv6
	for _, part := range [][]byte{from[:], to[:], b} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
