// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/packet"
)

// Attacks of machines that are behind an interface of a node that is no uplink: containers'
// bridges, virtual machines, a VPN.
const (
	attackBehind     = "a machine behind another interface of a node, such as a container's or a virtual machine's, sends with the address of a pod"
	attackBehindOpen = "a machine behind another interface of a node injects into an open connection of pods"
)

// TestHostileSourcesBehindNodes: what the stack forwards from interfaces that are no uplinks bears
// no pod's address.
func TestHostileSourcesBehindNodes(t *testing.T) { inBoth(t, testHostileSourcesBehindNodes) }

func testHostileSourcesBehindNodes(t *testing.T, fam family) {
	record(t, attackBehind, hostile.Link, fam)
	record(t, attackBehindOpen, hostile.Link, fam)
	r := newRawPod(t, fam)
	r.newNetns("machine")
	bits := map[family]int{ipv4: 24, ipv6: 120}[fam]
	run(t, "ip link add dock0 netns %s type veth peer name eth0 netns %s-machine; ip -n %s addr add %s/%d dev dock0; ip -n %s link set dock0 up; "+
		"ip netns exec %s sysctl -qw net.ipv4.conf.dock0.rp_filter=2; ip -n %s-machine addr add %s/%d dev eth0; ip -n %s-machine link set eth0 up; "+
		"ip -n %s-machine route add default via %s",
		r.n1.netns, r.prefix, r.n1.netns, fam.addr("192.168.77.1"), bits, r.n1.netns, r.n1.netns, r.prefix, fam.addr("192.168.77.2"), bits, r.prefix,
		r.prefix, fam.addr("192.168.77.1"))
	machine := newWire(t, r.prefix+"-machine", "eth0")
	r.at["machine"] = machine
	router := parseMAC(run(t, "ip netns exec %s cat /sys/class/net/dock0/address", r.n1.netns))
	frame := func(src, dst string, port int, text string) []byte {
		p, err := packet.Parse(fmt.Sprintf("udp %s > %s ttl=64 data=%q", r.port(src, port), r.port(dst, 7777), text))
		if err != nil {
			t.Fatal(err)
		}
		p.SrcMAC, p.DstMAC = packet.MAC(machine.mac), packet.MAC(router)
		b, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const a, b, c, d = "10.244.1.2", "10.244.1.3", "10.244.2.2", "10.244.2.3"
	honest := func(when string) {
		for name, dst := range map[string]string{"b": b, "c": c} {
			text := "plain to " + name + " " + when + "."
			machine.control(r.at[name], frame("192.168.77.2", dst, 6000, text), text)
		}
	}
	honest("before")
	for _, ends := range [][2]string{{a, b}, {a, c}, {c, b}, {d, b}, {d, c}, {"10.244.1.60", b}, {"10.244.2.60", b}} {
		machine.send(frame(ends[0], ends[1], 6100, "hostile "+ends[0]+" to "+ends[1]+"."))
	}
	// Connections that are open: of a with b on this node, and of c with b from another one.
	open := frame(c, b, 6200, "honest c.")
	copy(open, gatewayMAC[:])
	copy(open[6:], r.at["c"].mac[:])
	r.at["c"].control(r.at["b"], open, "honest c.")
	r.at["a"].control(r.at["b"], r.frame("udp %s > %s ttl=64 data=%q", r.port(a, 6200), r.port(b, 7777), "honest a."), "honest a.")
	for _, src := range []string{a, c} {
		machine.send(frame(src, b, 6200, "hostile open "+src+"."))
	}
	honest("after")
	for _, name := range []string{"b", "c"} {
		for _, text := range []string{"hostile 10", "hostile open 10"} {
			if r.at[name].saw(text) {
				t.Errorf("%q: it arrived at %s", text, name)
			}
		}
	}
	r.podsReachEachOther(t)
}
