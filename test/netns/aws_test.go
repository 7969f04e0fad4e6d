// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// TestOnAWS: with Amazon's CNI plugin and what its daemon writes, pods with addresses of a node's
// primary and of its secondary interface are taken over while they run, and have Services, policy
// and the client's address. All that a node sends leaves by the interface whose address it bears,
// or the network drops it. When Weir goes, that network goes on.
func TestOnAWS(t *testing.T) {
	t.Parallel()
	for _, plane := range planesOnAWS() {
		t.Run(plane+"-IPv4", testOnAWS)
	}
}

// planesOnAWS are the data planes of nodes there: nodes of both kinds together where WEIR_MATRIX
// asks for all.
func planesOnAWS() []string {
	if os.Getenv("WEIR_MATRIX") == "full" {
		return []string{"ebpf", "nft", "mixed", "crossed"}
	}
	return []string{"ebpf", "nft"}
}

// onAWS are two nodes in such a network, with two pods each: the first of the primary, the second
// of the secondary interface.
type onAWS struct {
	*vpc
	n1, n2        *vpcNode
	client, other *host // outside of the network, and in it
	a, b, c, d    *pod
}

func newOnAWS(t *testing.T) *onAWS {
	v := newVPC(t, ipv4)
	o := &onAWS{vpc: v, n1: v.newNode("n1", 1), n2: v.newNode("n2", 2), client: v.machine("client", "198.51.100.7"), other: v.machine("other", "10.0.0.250")}
	o.a, o.b, o.c, o.d = o.n1.newPod("a"), o.n1.newPod("b"), o.n2.newPod("c"), o.n2.newPod("d")
	for _, on := range []struct {
		p     *pod
		first string
	}{{o.a, "10.0.0.110"}, {o.b, "10.0.0.114"}, {o.c, "10.0.0.120"}, {o.d, "10.0.0.124"}} {
		want(t, "address of "+on.p.name, on.p.local.Addrs[0].String(), on.first)
	}
	for _, h := range []*host{o.client, o.other, &o.n1.host} {
		for _, nw := range networks {
			h.listen(nw, ":7000")
		}
	}
	for _, p := range []*pod{o.b, o.d} {
		p.lines(":6000")
	}
	for name, to := range map[string]*pod{"on-a": o.a, "on-b": o.b, "on-d": o.d} {
		port := map[string]uint16{"on-a": 30081, "on-b": 30082, "on-d": 30083}[name]
		v.service(name, fmt.Sprintf("10.96.0.%d", port-30000), port, to)
	}
	return o
}

func testOnAWS(t *testing.T) {
	o := newOnAWS(t)
	v, n1, n2, client, other, a, b, c, d := o.vpc, o.n1, o.n2, o.client, o.other, o.a, o.b, o.c, o.d
	// Open from before Weir until after it.
	open := []*running{a.stream(t, 1, 2, 50*time.Millisecond, "tcp", d.at("6000")), c.stream(t, 1, 2, 50*time.Millisecond, "tcp", b.at("6000")),
		a.stream(t, 2, 2, 50*time.Millisecond, "tcp", b.at("6000")), other.stream(t, 1, 2, 50*time.Millisecond, "tcp", b.at("6000"))}
	broken := 0
	allGoOn(t, open, "without Weir", &broken)
	v.apply()
	allGoOn(t, open, "taken over", &broken)
	t.Run("pods and Services", func(t *testing.T) {
		v.podsAndServices(t, []*pod{a, b, c, d}, map[*pod]uint16{a: 30081, b: 30082, d: 30083})
	})
	t.Run("outside", func(t *testing.T) {
		for _, nw := range networks {
			for p, leaves := range map[*pod]string{a: "10.0.0.10", b: "10.0.0.10", c: "10.0.0.20", d: "10.0.0.20"} {
				want(t, p.name+" to outside by "+nw, p.reaches("client", nw, "198.51.100.7:7000"), leaves) // translated by that network
				want(t, p.name+" to a machine by "+nw, p.reaches("other", nw, "10.0.0.250:7000"), p.local.Addrs[0].String())
				want(t, p.name+" to another node by "+nw, p.reaches("n1", nw, "10.0.0.10:7000"), p.local.Addrs[0].String())
				want(t, "a machine to "+p.name+" by "+nw, other.reaches(p.name, nw, p.local.Addrs[0].String()+":8080"), "10.0.0.250")
				n1.reaches(p.name, nw, p.local.Addrs[0].String()+":8080")
				n2.reaches(p.name, nw, p.local.Addrs[0].String()+":8080")
			}
		}
	})
	t.Run("node ports", func(t *testing.T) { v.nodePorts(t, client, []string{"10.0.0.10", "10.0.0.20"}) })
	t.Run("load balancer's addresses", func(t *testing.T) {
		ips := map[*pod]string{b: "203.0.113.9", d: "203.0.113.10"}
		for p, ip := range ips {
			v.cluster.Services[model.Name{Namespace: "default", Name: "on-" + p.name}].LBIPs = []netip.Addr{netip.MustParseAddr(ip)}
		}
		v.apply()
		for p, ip := range ips {
			for _, nw := range networks {
				want(t, "a to "+ip+" by "+nw, a.reaches(p.name, nw, ip+":80"), a.local.Addrs[0].String())
				n2.reaches(p.name, nw, ip+":80")
				client.refused(nw, ip+":80") // the network leads it nowhere
			}
			// A route of the network leads it to the primary interface of a node.
			run(t, "ip -n %s route add %s/32 dev eni1; ip -n %s neigh replace %s lladdr %s dev eni1 nud permanent", v.router, ip, v.router, ip, run(t, "ip netns exec %s cat /sys/class/net/eth0/address", n1.netns))
			for _, nw := range networks {
				want(t, "client to "+ip+" by "+nw, client.reaches(p.name, nw, ip+":80"), "198.51.100.7")
			}
		}
	})
	t.Run("DSR", func(t *testing.T) {
		// The network takes what nodes send with other nodes' addresses: its check is off.
		run(t, "for f in $(ip netns exec %[1]s sh -c 'ls /proc/sys/net/ipv4/conf'); do ip netns exec %[1]s sysctl -qw net.ipv4.conf.$f.rp_filter=0; done", v.router)
		v.cluster.Settings.DSR = true
		v.apply()
		v.nodePorts(t, client, []string{"10.0.0.10", "10.0.0.20"})
		v.cluster.Settings.DSR = false
		v.apply()
		run(t, "for f in $(ip netns exec %[1]s sh -c 'ls /proc/sys/net/ipv4/conf'); do ip netns exec %[1]s sysctl -qw net.ipv4.conf.$f.rp_filter=1; done", v.router)
	})
	t.Run("policy", func(t *testing.T) {
		only := allow("d", model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("a")}})
		v.cluster.Policies[only.ID()] = only
		v.apply()
		a.reaches("d", "tcp", d.at("8080"))
		a.reaches("d", "tcp", "10.96.0.83:80")
		for _, nw := range networks {
			b.refused(nw, d.at("8080"))
			b.refused(nw, "10.96.0.83:80")
			c.refused(nw, d.at("8080"))
			other.refused(nw, d.at("8080"))
			client.refused(nw, "10.0.0.10:30083")
		}
		n2.reaches("d", "tcp", d.at("8080")) // as the kubelet's probes
		delete(v.cluster.Policies, only.ID())
		v.apply()
		b.reaches("d", "tcp", d.at("8080"))
	})
	t.Run("a pod's start and end", func(t *testing.T) {
		e := v.podStarts(t, n1, a, d)
		d.reaches("e", "tcp", e.at("8080"))
		n1.plugin("DEL", "e", v.prefix+"-e", n1.results["e"])
		v.cluster.Pods.Delete(e.obj.Name)
		v.apply()
		if rules := run(t, "ip -n %s rule", n1.netns); strings.Contains(rules, e.local.Addrs[0].String()) {
			t.Errorf("the plugin left rules of a pod that is gone:\n%s", rules)
		}
	})
	allGoOn(t, open, "with Weir", &broken)
	n1.clean(t)
	n2.clean(t)
	allGoOn(t, open, "without Weir again", &broken)
	for _, p := range []*pod{a, b} {
		want(t, p.name+" to d without Weir", p.reaches("d", "tcp", d.at("8080")), p.local.Addrs[0].String())
		want(t, p.name+" to outside without Weir", p.reaches("client", "tcp", "198.51.100.7:7000"), "10.0.0.10")
	}
	for _, s := range open {
		s.end(t)
	}
}

// podStarts starts a pod, which reaches nobody, and nobody it, before the API has its address.
func (v *vpc) podStarts(t *testing.T, n *vpcNode, a, d *pod) *pod {
	t.Helper()
	e := n.newPod("e")
	v.cluster.Pods.Delete(e.obj.Name)
	v.apply()
	e.refused("tcp", d.at("8080")) // the API says of nobody that he has this address
	a.refused("tcp", e.at("8080"))
	v.cluster.Pods.Put(e.obj)
	v.apply()
	want(t, "e to d", e.reaches("d", "tcp", d.at("8080")), e.local.Addrs[0].String())
	return e
}

// TestOnAWSIPv6: in clusters of IPv6 the plugin gives pods addresses of the primary interface, and
// nothing is translated on the way out. Pods are reached, and reach others, with their own
// addresses, and so are Services; policy is in force, for what they send by IPv4 (egress-cni) as
// well, and the network goes on when Weir goes.
func TestOnAWSIPv6(t *testing.T) {
	t.Parallel()
	for _, plane := range planesOnAWS() {
		t.Run(plane+"-IPv6", func(t *testing.T) {
			v := newVPC(t, ipv6)
			n1, n2 := v.newNode("n1", 1), v.newNode("n2", 2)
			client, other := v.machine("client", "198.51.100.7"), v.machine("other", "10.0.0.250")
			a, b, d := n1.newPod("a"), n1.newPod("b"), n2.newPod("d")
			n1.byEgressCNI(a, 2)
			n1.byEgressCNI(b, 3)
			n2.byEgressCNI(d, 2)
			for _, h := range []*host{client, other, &n1.host} {
				for _, nw := range networks {
					h.listen(nw, ":7000")
				}
			}
			d.lines(":6000")
			broken := 0
			open := []*running{a.stream(t, 1, 2, 50*time.Millisecond, "tcp", d.at("6000")), other.stream(t, 1, 2, 50*time.Millisecond, "udp", d.at("6000"))}
			allGoOn(t, open, "without Weir", &broken)
			ports := map[*pod]uint16{a: 30081, b: 30082, d: 30083}
			for to, port := range ports {
				v.service("on-"+to.name, fmt.Sprintf("10.96.0.%d", port-30000), port, to)
			}
			v.apply()
			allGoOn(t, open, "taken over", &broken)
			v.podsAndServices(t, []*pod{a, b, d}, ports)
			v.nodePorts(t, client, []string{"10.0.0.10", "10.0.0.20"})
			for _, nw := range networks {
				for _, p := range []*pod{a, d} {
					own := p.local.Addrs[0].String()
					want(t, p.name+" to outside by "+nw, p.reaches("client", nw, "198.51.100.7:7000"), own)
					want(t, p.name+" to a machine by "+nw, p.reaches("other", nw, "10.0.0.250:7000"), own)
					want(t, p.name+" to another node by "+nw, p.reaches("n1", nw, "10.0.0.10:7000"), own)
					want(t, "a machine to "+p.name+" by "+nw, other.reaches(p.name, nw, p.at("8080")), "10.0.0.250")
					n1.reaches(p.name, nw, p.at("8080"))
				}
			}
			only := allow("d", model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("a")}})
			v.cluster.Policies[only.ID()] = only
			v.apply()
			for _, nw := range networks {
				a.reaches("d", nw, d.at("8080"))
				b.refused(nw, d.at("8080"))
				b.refused(nw, "10.96.0.83:80")
				other.refused(nw, d.at("8080"))
				client.refused(nw, "10.0.0.10:30083")
			}
			n2.reaches("d", "tcp", d.at("8080")) // as the kubelet's probes
			delete(v.cluster.Policies, only.ID())
			v.apply()
			v.egressIPv4(t, n1, a, b, client, other)
			v.podStarts(t, n1, a, d)
			n1.clean(t)
			n2.clean(t)
			want(t, "a to d without Weir", a.reaches("d", "tcp", d.at("8080")), a.local.Addrs[0].String())
			want(t, "a by IPv4 without Weir", a.getIPv4(other, "tcp", 0), "other 10.0.0.10")
		})
	}
}

// TestSwitchOnAWS: nodes there change their data planes, in both directions, and connections of all
// kinds go on, whatever the interface of the pod's address: within the network, to outside with
// that network's source NAT, from outside to node ports, handed on between nodes too, and to
// Services.
func TestSwitchOnAWS(t *testing.T) {
	t.Parallel()
	o := newOnAWS(t)
	o.client.lines(":6000")
	for port, to := range map[uint16]*pod{30092: o.b, 30093: o.d} {
		name := "lines-" + to.name
		o.service(name, fmt.Sprintf("10.96.0.%d", port-30000), port, to)
		o.slices(name, 6000, []model.ServiceEndpoint{{Addrs: to.local.Addrs, Node: to.obj.Node, Ready: true, Serving: true}})
	}
	o.apply()
	const every = 50 * time.Millisecond
	var open []*running
	for i, nw := range networks {
		for _, from := range []*pod{o.a, o.b} {
			open = append(open, from.stream(t, 10*i+1, 2, every, nw, o.d.at("6000")), from.stream(t, 10*i+2, 2, every, nw, "198.51.100.7:6000"),
				from.stream(t, 10*i+3, 2, every, nw, "10.96.0.93:80"))
		}
		open = append(open, o.a.stream(t, 10*i+4, 2, every, nw, o.b.at("6000")), o.other.stream(t, 10*i+1, 2, every, nw, o.b.at("6000")),
			o.client.stream(t, 10*i+1, 2, every, nw, "10.0.0.10:30092"), o.client.stream(t, 10*i+2, 2, every, nw, "10.0.0.20:30092"),
			o.client.stream(t, 10*i+3, 2, every, nw, "10.0.0.10:30093"), o.n1.stream(t, 10*i+1, 2, every, nw, o.b.at("6000")))
	}
	broken := 0
	allGoOn(t, open, "at the beginning", &broken)
	for _, plane := range []string{"nft", "ebpf", "nft", "ebpf"} {
		for _, n := range []*vpcNode{o.n1, o.n2} {
			allGoOn(t, open, n.goOver(t, plane), &broken)
			o.nodePorts(t, o.client, []string{"10.0.0.10", "10.0.0.20"})
			for _, p := range []*pod{o.a, o.b} {
				want(t, p.name+" to outside", p.reaches("client", "tcp", "198.51.100.7:7000"), "10.0.0.10")
			}
		}
	}
	for _, s := range open {
		s.end(t)
	}
}

// podsAndServices: every pod reaches every other one, and the Services, with its own address.
func (v *vpc) podsAndServices(t *testing.T, pods []*pod, ports map[*pod]uint16) {
	for _, from := range pods {
		own := from.local.Addrs[0].String()
		for _, nw := range networks {
			for _, to := range pods {
				if to != from {
					want(t, from.name+" to "+to.name+" by "+nw, from.reaches(to.name, nw, to.at("8080")), own)
				}
			}
			for to, port := range ports {
				if to == from {
					continue
				}
				want(t, from.name+" to the Service of "+to.name+" by "+nw, from.reaches(to.name, nw, fmt.Sprintf("10.96.0.%d:80", port-30000)), own)
				want(t, from.name+" to the node port of "+to.name+" by "+nw, from.reaches(to.name, nw, fmt.Sprintf("10.0.0.20:%d", port)), own)
			}
		}
	}
}

// nodePorts: a client outside is seen with its own address, whichever node and interface has the
// backend.
func (v *vpc) nodePorts(t *testing.T, client *host, nodes []string) {
	for _, at := range nodes {
		for port, server := range map[uint16]string{30081: "a", 30082: "b", 30083: "d"} {
			for _, nw := range networks {
				addr := netip.AddrPortFrom(netip.MustParseAddr(at), port).String()
				want(t, "client to "+addr+" by "+nw, client.reaches(server, nw, addr), "198.51.100.7")
			}
		}
	}
}
