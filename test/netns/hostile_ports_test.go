// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/packet"
)

// What takes ports of the node's range for source NAT, by what the attacker does.
const (
	attackPorts    = "one pod takes the node's ports for source NAT towards a name server with unanswered datagrams"
	attackHeld     = "one pod takes the node's ports for source NAT towards a server with flows that are answered"
	attackQueries  = "one pod takes the node's identifiers for source NAT of ICMP queries"
	attackSYNs     = "one pod takes the node's ports for source NAT towards a server with SYNs that nobody answers"
	attackOutside  = "one client outside takes the node's ports for source NAT towards a name server by a node port"
	attackTogether = "two pods together take the node's ports for source NAT towards a name server"
)

// ports is how many source ports an attacker has: more than the node's range for source NAT.
const ports = 14000

// takePorts is what workers do for these tests.
func takePorts(r request) answer {
	switch r.Op {
	case "hold":
		return hold(r)
	case "drain":
		return drain(r)
	}
	return lookUps(r)
}

// drain sends a packet from each of r.Size source ports (of ICMP, with each of as many
// identifiers), r.From being the first, to r.Addr. UDP is sent by ordinary sockets, the rest as
// frames.
func drain(r request) answer {
	from, err := netip.ParseAddrPort(r.From)
	if err != nil {
		return fromErr(err)
	}
	to, err := netip.ParseAddrPort(r.Addr)
	if err != nil {
		return fromErr(err)
	}
	if r.Net == "udp" {
		return fromErr(drainUDP(from, to, r.Size))
	}
	s, err := newSender()
	if err != nil {
		return fromErr(err)
	}
	defer unix.Close(s.fd)
	p := packet.Packet{DstMAC: packet.MAC{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}, SrcMAC: packet.MAC(parseMAC(r.Name)), Type: packet.TypeIPv4, Kind: packet.TCP,
		DstPort: to.Port(), Flags: packet.SYN, Window: 1024, IP: packet.IPv4{Src: from.Addr(), Dst: to.Addr(), Proto: packet.ProtoTCP, TTL: 64}}
	if to.Addr().Is6() {
		p.Type = packet.TypeIPv6
	}
	if r.Net == "icmp" {
		p.Kind, p.IP.Proto, p.ICMPType = packet.Echo, packet.ProtoICMP, 8
		if to.Addr().Is6() {
			p.IP.Proto, p.ICMPType = packet.ProtoICMPv6, 128
		}
	}
	for i := range r.Size {
		p.SrcPort = from.Port() + uint16(i)
		if r.Net == "icmp" {
			p.ID = p.SrcPort
		}
		frame, err := p.Marshal()
		if err != nil {
			return fromErr(err)
		}
		if err := unix.Sendto(s.fd, frame, 0, &s.to); err != nil && err != unix.ENOBUFS {
			return fromErr(err)
		}
	}
	return answer{}
}

func drainUDP(from, to netip.AddrPort, n int) error {
	for i := range n {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from.Addr(), from.Port()+uint16(i))), net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		_, err = c.Write([]byte{0}) // no question that a name server answers
		c.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// question is a question for an address (RFC 1035, section 4.1).
func question() []byte {
	return append([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x04test\x00"), 0, 1, 0, 1)
}

// lookUps asks a name server r.Size questions, each from another socket, as a resolver does: again
// after a second, three times in all. Again of the answer is how many were answered.
func lookUps(r request) answer {
	a, buf := answer{}, make([]byte, 512)
	for range r.Size {
		c, err := net.Dial("udp", r.Addr)
		if err != nil {
			return fromErr(err)
		}
		for range 3 {
			c.SetDeadline(time.Now().Add(time.Second))
			if _, err := c.Write(question()); err != nil {
				break
			}
			if _, err := c.Read(buf); err == nil {
				a.Again++
				break
			}
		}
		c.Close()
	}
	return a
}

// crowd is a node with an attacker, a, a second one, and neighbours, and a name server outside.
type crowd struct {
	*fixture
	second     *pod
	neighbours []*pod
}

func newCrowd(t *testing.T, fam family) *crowd {
	c := &crowd{fixture: newFixture(t, fam)}
	c.second = c.n1.newPod("second", nil)
	c.neighbours = []*pod{c.b}
	for i := range 3 {
		c.neighbours = append(c.neighbours, c.n1.newPod(fmt.Sprint("neighbour", i), nil))
	}
	if a := c.client.call(request{Op: "dns", Addr: ":53", From: "192.0.2.1"}); a.Err != "" {
		t.Fatal(a.Err)
	}
	c.apply()
	return c
}

// attack lets a pod send from all its ports.
func (c *crowd) attack(p *pod, nw, to string) {
	c.t.Helper()
	mac := p.local.MAC
	a := p.call(request{Op: "drain", Net: nw, Addr: to, From: netip.AddrPortFrom(p.local.Addrs[0], 30000).String(), Size: ports,
		Name: net.HardwareAddr(mac[:]).String()})
	if a.Err != "" {
		c.t.Fatalf("the attacker: %s", a.Err)
	}
}

// resolves fails the test unless all questions of every neighbour are answered.
func (c *crowd) resolves() {
	c.t.Helper()
	const questions = 20
	for _, p := range c.neighbours {
		if a := p.call(request{Op: "lookups", Addr: "172.30.0.55:53", Size: questions}); a.Err != "" || a.Again != questions {
			c.t.Errorf("%s: %d of %d questions are answered (%s)", p.name, a.Again, questions, a.Err)
		}
	}
}

// record notes an attack, with the data plane and the family of the subtest.
func record(t *testing.T, attack, actor string, fam family) {
	plane, of := hostile.EBPF, hostile.IPv4
	if strings.Contains(t.Name(), "/nft-") {
		plane = hostile.NFTables
	}
	if fam == ipv6 {
		of = hostile.IPv6
	}
	hostile.Record(t, attack, actor, plane, of)
}

// TestHostilePortsUnanswered: a pod that sends unanswered datagrams from many ports takes none from
// its neighbours, whether they ask afterwards or meanwhile.
func TestHostilePortsUnanswered(t *testing.T) { inBoth(t, testHostilePortsUnanswered) }

func testHostilePortsUnanswered(t *testing.T, fam family) {
	record(t, attackPorts, hostile.Pod, fam)
	c := newCrowd(t, fam)
	c.attack(c.a, "udp", "172.30.0.55:53")
	c.resolves()
	if c.apply(); !slices.Equal(c.n1.driver.last.Spent, []string{"10.244.1.2"}) {
		t.Errorf("who used up its ports is %v", c.n1.driver.last.Spent)
	}
}

// TestHostilePortsTogether: nor do two.
func TestHostilePortsTogether(t *testing.T) { inBoth(t, testHostilePortsTogether) }

func testHostilePortsTogether(t *testing.T, fam family) {
	record(t, attackTogether, hostile.Pod, fam)
	c := newCrowd(t, fam)
	c.attack(c.a, "udp", "172.30.0.55:53")
	c.attack(c.second, "udp", "172.30.0.55:53")
	c.resolves()
}

// TestHostilePortsOutside: nor does a client outside, or another node's pod, by the node port of a
// Service whose backend is the name server.
func TestHostilePortsOutside(t *testing.T) { inBoth(t, testHostilePortsOutside) }

func testHostilePortsOutside(t *testing.T, fam family) {
	record(t, attackOutside, hostile.Link, fam)
	c := newCrowd(t, fam)
	c.service("names", "10.96.0.1", 30053)
	c.slices("names", 53, []model.ServiceEndpoint{{Addrs: []netip.Addr{netip.MustParseAddr("172.30.0.55")}, Ready: true, Serving: true}})
	c.apply()
	if a := c.client2.call(request{Op: "lookups", Addr: "172.30.0.8:30053", Size: 1}); a.Err != "" || a.Again != 1 {
		t.Fatalf("the node port is not answered: %s", a.Err)
	}
	a := c.client2.call(request{Op: "drain", Net: "udp", Addr: "172.30.0.8:30053", From: netip.AddrPortFrom(c.client2.addr, 30000).String(), Size: ports})
	if a.Err != "" {
		t.Fatalf("the attacker: %s", a.Err)
	}
	c.resolves()
}

// TestHostilePortsHeld: a pod whose flows are answered keeps no more than its share of the ports;
// what it has open goes on.
func TestHostilePortsHeld(t *testing.T) { inBoth(t, testHostilePortsHeld) }

func testHostilePortsHeld(t *testing.T, fam family) {
	record(t, attackHeld, hostile.Pod, fam)
	c := newCrowd(t, fam)
	if a := c.a.call(request{Op: "open", Net: "udp", Addr: "172.30.0.55:7000", ID: 1}); a.Err != "" {
		t.Fatal(a.Err)
	}
	a := c.a.call(request{Op: "hold", From: netip.AddrPortFrom(c.a.local.Addrs[0], 20000).String(), Addr: "172.30.0.55:53", Size: ports})
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	t.Logf("%d flows were answered", a.Again)
	if a.Again < 500 {
		t.Errorf("a pod gets %d flows to one server, which is too few for honest ones", a.Again)
	}
	c.resolves()
	if a := c.a.call(request{Op: "talk", ID: 1}); a.Err != "" {
		t.Errorf("what the pod had open ends: %s", a.Err)
	}
}

// hold asks a name server twice from each of r.Size source ports, r.From being the first, so that
// its flows are established. It ends where nobody has answered for a while; Again of the answer is
// how many ports were answered.
func hold(r request) answer {
	from, err := netip.ParseAddrPort(r.From)
	if err != nil {
		return fromErr(err)
	}
	a, buf := answer{}, make([]byte, 256)
	for i, silent := 0, 0; i < r.Size && silent < 50; i++ {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from.Addr(), from.Port()+uint16(i))), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(r.Addr)))
		if err != nil {
			return fromErr(err)
		}
		answers := 0
		for range 2 {
			c.SetDeadline(time.Now().Add(50 * time.Millisecond))
			if _, err := c.Write(question()); err == nil {
				if _, err = c.Read(buf); err == nil {
					answers++
				}
			}
		}
		c.Close()
		silent++
		if answers == 2 {
			silent = 0
			a.Again++
		}
	}
	return a
}

// TestHostilePortsSYNs: a flood of SYNs that nobody answers takes no port from the neighbours'
// connections.
func TestHostilePortsSYNs(t *testing.T) { inBoth(t, testHostilePortsSYNs) }

func testHostilePortsSYNs(t *testing.T, fam family) {
	record(t, attackSYNs, hostile.RawPod, fam)
	c := newCrowd(t, fam)
	// The server answers none of the attacker's, so that each keeps its port for as long as it can.
	tables := map[family]string{ipv4: "iptables", ipv6: "ip6tables"}[fam]
	run(t, "ip netns exec %s %s -A INPUT -p tcp --dport 7000 -m tcp --tcp-option 2 -j ACCEPT; ip netns exec %s %s -A INPUT -p tcp --syn --dport 7000 -j DROP",
		c.client.netns, tables, c.client.netns, tables)
	c.attack(c.a, "tcp", "172.30.0.55:7000")
	for _, p := range c.neighbours {
		for range 5 {
			if a := p.get("tcp", "172.30.0.55:7000", 8000); a.Err != "" {
				t.Errorf("%s is not answered: %s", p.name, a.Err)
			}
		}
	}
}

// TestHostilePortsQueries: a flood of echo requests takes no identifier from the neighbours'.
func TestHostilePortsQueries(t *testing.T) { inBoth(t, testHostilePortsQueries) }

func testHostilePortsQueries(t *testing.T, fam family) {
	record(t, attackQueries, hostile.RawPod, fam)
	c := newCrowd(t, fam)
	for range 2 { // the first of them end soon
		c.attack(c.a, "icmp", "172.30.0.55:0")
	}
	ping := map[family]string{ipv4: "ping -4", ipv6: "ping -6"}[fam]
	for _, p := range c.neighbours {
		run(t, "ip netns exec %s-%s %s -n -c 20 -i 0.01 -W 5 %s | grep ' 0%% packet loss'", c.prefix, p.name, ping, fam.addr("172.30.0.55"))
	}
}
