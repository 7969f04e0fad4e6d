// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/await"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/packet"
)

// inIPIP is how many bytes fit into IP in IP on the test's link.
const inIPIP = 1480

// ipip makes the pool one of IP in IP.
func (f *fixture) ipip(mode model.EncapMode) {
	p := *f.cluster.Pools["default"]
	p.VXLAN, p.IPIP = model.EncapNever, mode
	f.cluster.Pools["default"] = &p
}

// hasIPIP reports whether the kernel has a device of IP in IP, without which nodes with nftables
// send VXLAN in its place.
func hasIPIP(t *testing.T) (has bool, why string) {
	t.Helper()
	ns := newLAN(t, ipv4).newNetns("probe")
	why = run(t, "ip -n %s link add probe type ipip external 2>&1 || true", ns)
	return why == "", why
}

// needIPIP skips a test where the kernel has no such device. make kernels plays it where it has.
func needIPIP(t *testing.T) {
	t.Helper()
	if has, why := hasIPIP(t); !has {
		t.Skipf("this kernel has no device of IP in IP: %s", why)
	}
}

// TestIPIP: pods, Services, node ports and the nodes' own processes reach pods of other nodes by IP
// in IP, with segments as large as the device takes at once, and senders learn what fits. With
// nftables, and with eBPF on one node and nftables on the other, where the kernel has the device.
func TestIPIP(t *testing.T) {
	for _, name := range []string{"ebpf-link", "ebpf-routed", "nft-link", "nft-routed", "mixed-link", "mixed-routed"} {
		t.Run(name, func(t *testing.T) {
			if !strings.HasPrefix(name, "ebpf") {
				needIPIP(t)
			}
			f := newFixture(t, ipv4)
			f.routed = strings.HasSuffix(name, "routed")
			f.ipip(model.EncapAlways)
			f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
			f.service("dns", "10.96.0.2", 30002, f.c)
			f.apply()
			for _, w := range []*worker{f.a.worker, f.c.worker, f.n1.worker} {
				w.listen("tcp", ":8090")
			}
			f.echoService("bulk", "10.96.0.4", 30004, f.c)
			f.apply()
			f.podsReachEachOther(t)
			f.policyHolds(t)
			f.a.bulk("pod", f.c.at("8090"))
			f.c.bulk("pod, the other way", f.a.at("8090"))
			f.a.bulk("Service", "10.96.0.4:80")
			f.n1.bulk("node to pod", f.c.at("8090"))
			f.n1.bulk("node to Service", "10.96.0.4:80")
			f.client.bulk("node port, backend elsewhere", "172.30.0.8:30004")
			f.client.bulk("node port, backend there", "172.30.0.9:30004")
			f.a.learns("pod", f.c.at("8080"), inIPIP)
			f.c.learns("pod, the other way", f.a.at("8080"), inIPIP)
			f.a.learns("Service", "10.96.0.2:80", inIPIP)
			if f.routed {
				f.client.learns("node port, handed on", "172.30.0.8:30002", inIPIP)
				for _, n := range f.nodes {
					if n.sentByVXLAN(t) > 0 {
						t.Errorf("node %s sent something by VXLAN", n.name)
					}
				}
				f.cluster.Settings.DSR = true
				f.apply()
				for _, nw := range networks {
					want(t, nw+" with direct server return", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
				}
			}
		})
	}
}

// TestIPIPLive: a pool's mode changes between none, IP in IP and VXLAN while connections are open.
// None is lost, and what is sent while both nodes know the same arrives.
func TestIPIPLive(t *testing.T) {
	for _, name := range []string{"ebpf-IPv4", "nft-IPv4", "mixed-IPv4"} {
		t.Run(name, func(t *testing.T) {
			if !strings.HasPrefix(name, "ebpf") {
				needIPIP(t)
			}
			f := newFixture(t, ipv4)
			f.apply()
			f.c.listen("tcp", ":8090")
			if a := f.a.call(request{Op: "open", Net: "tcp", Addr: f.c.at("8080"), ID: 1}); a.Err != "" {
				t.Fatal(a.Err)
			}
			for i, change := range []func(){
				func() { f.ipip(model.EncapAlways) }, func() { f.ipip(model.EncapNever); f.encapsulate(model.EncapAlways) }, func() { f.ipip(model.EncapAlways) },
				func() { f.ipip(model.EncapNever) }, func() { f.ipip(model.EncapAlways) },
			} {
				change()
				f.apply()
				if a := f.a.call(request{Op: "talk", ID: 1, Timeout: 20_000}); a.Err != "" {
					t.Errorf("after change %d the open connection says %s", i+1, a.Err)
				}
				f.a.bulk("a new connection", f.c.at("8090"))
			}
		})
	}
}

// TestIPIPSources: a node takes IP in IP from nodes alone, of those on the link from their MAC
// addresses, and what is inside has an address that lives there.
func TestIPIPSources(t *testing.T) {
	for _, name := range []string{"ebpf-IPv4", "nft-IPv4"} {
		t.Run(name, func(t *testing.T) {
			if !strings.HasPrefix(name, "ebpf") {
				needIPIP(t)
			}
			f := newFixture(t, ipv4)
			f.ipip(model.EncapAlways)
			f.apply()
			out, in := newWire(t, f.client.netns, "eth0"), newWire(t, f.prefix+"-a", "eth0")
			send := func(text string, outer netip.Addr, mac [6]byte, inner netip.Addr) {
				p, err := packet.IPIP(&packet.Packet{Type: packet.TypeIPv4, Kind: packet.UDP, IP: packet.IPv4{Src: inner, Dst: f.a.local.Addrs[0], Proto: packet.ProtoUDP, TTL: 64},
					SrcPort: 6000, DstPort: 7777, Payload: []byte(text)}, outer, f.n1.addr)
				if err != nil {
					t.Fatal(err)
				}
				out.send(tagged(t, *p, mac, f.n1.mac))
			}
			c, b := f.c.local.Addrs[0], f.b.local.Addrs[0]
			bad := []struct {
				text         string
				outer, inner netip.Addr
				mac          [6]byte
			}{
				{"of no node", f.client.addr, c, f.client.mac}, {"of nobody", netip.MustParseAddr("172.30.0.77"), c, f.client.mac},
				{"by another MAC address", f.n2.addr, c, f.client.mac}, {"of another node's pod", f.n2.addr, b, f.n2.mac},
				{"of an address of no pod", f.n2.addr, netip.MustParseAddr("10.244.7.7"), f.n2.mac}, {"of the node itself", f.n2.addr, f.n1.addr, f.n2.mac},
			}
			await.That(t, "what a node sends arrives", func() error {
				for _, x := range bad {
					send(x.text, x.outer, x.mac, x.inner)
				}
				send("of the node", f.n2.addr, f.n2.mac, c)
				if !in.saw("of the node") {
					return errors.New("it has not")
				}
				return nil
			})
			for _, x := range bad {
				if in.saw(x.text) {
					t.Errorf("what is %s was taken", x.text)
				}
			}
		})
	}
}

// publishNoIPIP has a node say that it cannot take IP in IP, or no longer.
func (n *node) publishNoIPIP(none bool) {
	with := *n.lan.cluster.Nodes[n.name]
	with.NoIPIP = none
	n.lan.cluster.Nodes[n.name] = &with
}

// TestIPIPReplaced: a node with nftables whose kernel has no device of IP in IP, and nodes with
// eBPF that send IP in IP to each other, send each other VXLAN: pods' packets, and what is handed
// on. A node goes over to nftables and back while connections are open.
func TestIPIPReplaced(t *testing.T) {
	for _, name := range []string{"mixed-link", "mixed-routed"} {
		t.Run(name, func(t *testing.T) {
			if has, _ := hasIPIP(t); has {
				t.Skip("this kernel has a device of IP in IP, which nodes with nftables use")
			}
			f := newFixture(t, ipv4)
			f.routed = strings.HasSuffix(name, "routed")
			f.ipip(model.EncapAlways)
			f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
			n3 := f.newNode("n3", "172.30.0.10")
			run(t, "ip -n %s route add default via 172.30.0.1", n3.netns)
			n3.driver.kill()
			n3.driver.plane, n3.driver.same = "ebpf", true
			n3.driver.start()
			e := n3.newPod("e", nil)
			for _, nw := range networks {
				e.listen(nw, ":8080")
			}
			f.service("near", "10.96.0.1", 30001, f.a)
			f.service("far", "10.96.0.2", 30002, f.c)
			f.service("third", "10.96.0.3", 30003, e)
			f.echoService("bulk", "10.96.0.4", 30004, f.c)
			f.c.listen("tcp", ":8090")
			f.a.listen("tcp", ":8090")
			f.apply()
			if !f.n2.driver.last.NoIPIP || f.n1.driver.last.NoIPIP || n3.driver.last.NoIPIP {
				t.Fatal("the node with nftables does not say that it takes no IP in IP, or one with eBPF does")
			}
			f.n2.publishNoIPIP(true)
			f.apply()
			all := func(when string) {
				t.Helper()
				f.podsReachEachOther(t)
				for _, nw := range networks {
					want(t, when+" pod of a third node", e.reaches("c", nw, f.c.at("8080")), "10.244.3.2")
					want(t, when+" Service", f.a.reaches("c", nw, "10.96.0.2:80"), "10.244.1.2")
					want(t, when+" Service, the other way", f.c.reaches("a", nw, "10.96.0.1:80"), "10.244.2.2")
					want(t, when+" handed on", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
					want(t, when+" handed on, the other way", f.client.reaches("a", nw, "172.30.0.9:30001"), "172.30.0.55")
				}
				f.client.bulk(when+" handed on", "172.30.0.8:30004")
				f.a.bulk(when+" pod", f.c.at("8090"))
				f.c.bulk(when+" pod, the other way", f.a.at("8090"))
			}
			all("at first")
			f.a.learns("pod", f.c.at("8080"), 1450)
			f.c.learns("pod, the other way", f.a.at("8080"), 1450)
			byIPIP := func(when string) {
				t.Helper()
				before := f.n1.sentByVXLAN(t) + n3.sentByVXLAN(t)
				for _, nw := range networks {
					want(t, when+" between nodes with eBPF", f.a.reaches("e", nw, e.at("8080")), "10.244.1.2")
					want(t, when+" handed on between them", f.client.reaches("e", nw, "172.30.0.8:30003"), "172.30.0.55")
				}
				if f.n1.sentByVXLAN(t)+n3.sentByVXLAN(t) > before {
					t.Errorf("%s: nodes with eBPF sent each other VXLAN", when)
				}
			}
			byIPIP("at first")

			for id, w := range map[int]struct {
				from *worker
				to   string
			}{1: {f.a.worker, f.c.at("8080")}, 2: {e.worker, f.a.at("8080")}, 3: {f.client.worker, "172.30.0.10:30001"}, 4: {f.client.worker, "172.30.0.8:30003"}} {
				if a := w.from.call(request{Op: "open", Net: "tcp", Addr: w.to, ID: id}); a.Err != "" {
					t.Fatal(a.Err)
				}
			}
			talk := func(when string) {
				t.Helper()
				for id, w := range map[int]*worker{1: f.a.worker, 2: e.worker, 3: f.client.worker, 4: f.client.worker} {
					if a := w.call(request{Op: "talk", ID: id, Timeout: 20_000}); a.Err != "" {
						t.Errorf("%s: open connection %d says %s", when, id, a.Err)
					}
				}
			}
			// A node says so before it goes over, and goes on to say so until it has gone back.
			f.n1.publishNoIPIP(true)
			f.apply()
			talk("before the change")
			f.n1.switchTo("nft")
			talk("after the change")
			all("after the change")
			f.n1.switchTo("ebpf")
			talk("after the way back")
			all("after the way back")
			f.n1.publishNoIPIP(false)
			f.apply()
			talk("at the end")
			byIPIP("at the end")
		})
	}
}
