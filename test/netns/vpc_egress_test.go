// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// byEgressCNI gives a pod IPv4 as Amazon's egress-cni does in clusters of IPv6: by a further
// interface, with an address that pods of other nodes have, too, which is translated to the node's.
func (n *vpcNode) byEgressCNI(p *pod, number int) {
	run(n.vpc.t, `ip -n %[1]s link add v4if0 type veth peer name veth0a%[3]d netns %[2]s
ip -n %[1]s addr add 169.254.172.%[3]d/22 dev v4if0 noprefixroute; ip -n %[1]s link set v4if0 up
ip -n %[1]s route add 169.254.172.1 dev v4if0 scope link; ip -n %[1]s route add default via 169.254.172.1 dev v4if0
ip -n %[2]s link set veth0a%[3]d up; ip -n %[2]s addr add 169.254.172.1/32 dev veth0a%[3]d scope link
ip -n %[2]s route add 169.254.172.%[3]d dev veth0a%[3]d scope link
ip netns exec %[2]s iptables -t nat -A POSTROUTING -s 169.254.172.%[3]d -j SNAT --to-source %[4]s`,
		n.vpc.prefix+"-"+p.name, n.netns, number, n.addr)
}

// getIPv4 asks a host by IPv4, whatever the family of the test, and returns the answer; "" = there
// is none. timeout is in milliseconds, 0 = as long as it takes.
func (p *pod) getIPv4(to *host, nw string, timeout int) string {
	a := p.callIn(ipv4, request{Op: "get", Net: nw, Addr: to.addr.String() + ":7000", Timeout: timeout})
	name, from, _ := strings.Cut(a.Reply, " ")
	if a.Err != "" {
		return ""
	}
	if seen, _, err := net.SplitHostPort(from); err == nil {
		from = seen
	}
	return name + " " + from
}

// egressIPv4: what pods send by IPv4 there is bound by the policies that bind what they send by
// IPv6, and it leaves with the node's address. By that interface goes nothing else.
func (v *vpc) egressIPv4(t *testing.T, n *vpcNode, bound, free *pod, allowed, denied *host) {
	may := func(from *pod, to *host, nw string) {
		t.Helper()
		want(t, from.name+" to "+to.name+" by IPv4 and "+nw, from.getIPv4(to, nw, 0), to.name+" "+n.addr.String())
	}
	mayNot := func(from *pod, to *host, nw string) {
		t.Helper()
		if said := from.getIPv4(to, nw, 400); said != "" {
			t.Errorf("%s to %s by IPv4 and %s: got %q, want no answer", from.name, to.name, nw, said)
		}
	}
	for _, nw := range networks {
		for _, to := range []*host{allowed, denied} {
			may(bound, to, nw)
			may(free, to, nw)
		}
	}
	only := allow(bound.name, model.Peer{CIDR: netip.PrefixFrom(allowed.addr, 32)})
	only.AppliesIngress, only.AppliesEgress, only.Ingress, only.Egress = false, true, nil, only.Ingress
	v.cluster.Policies[only.ID()] = only
	v.apply()
	for _, nw := range networks {
		may(bound, allowed, nw)
		mayNot(bound, denied, nw)
		mayNot(bound, &n.host, nw)
		may(free, denied, nw)
	}
	only.Egress = nil
	v.apply()
	for _, nw := range networks {
		mayNot(bound, allowed, nw)
		may(free, allowed, nw)
	}
	delete(v.cluster.Policies, only.ID())
	v.apply()
	may(bound, denied, "tcp")

	// A pod that leads its other family by that interface reaches nobody.
	gateway := run(t, "ip -n %s -6 -br addr show dev veth0a2 scope link | awk '{ print $3 }' | cut -d/ -f1", n.netns)
	astray := fmt.Sprintf("%s/128 via %s dev v4if0", sixOf(allowed.addr.String()), gateway)
	run(t, "ip -n %s -6 route add %s", v.prefix+"-"+bound.name, astray)
	for _, nw := range networks {
		bound.refused(nw, allowed.addr.String()+":7000")
	}
	run(t, "ip -n %s -6 route del %s", v.prefix+"-"+bound.name, astray)
	bound.reaches(allowed.name, "tcp", allowed.addr.String()+":7000")
}

// TestOnAWSEgressIPv6: in clusters of IPv4, what pods send by IPv6 by an interface of egress-cni
// passes where the node carries IPv6, as policy says, and otherwise not.
func TestOnAWSEgressIPv6(t *testing.T) {
	t.Parallel()
	for _, plane := range planesOnAWS() {
		t.Run(plane+"-IPv4", func(t *testing.T) {
			v := newVPC(t, ipv4)
			n := v.newNode("n1", 1)
			p := n.newPod("a")
			for _, nw := range networks {
				n.listen(nw, ":7000")
			}
			const own = "fd00:99::1"
			run(t, `ip -n %[1]s link add v6if0 type veth peer name veth0b2 netns %[2]s; ip -n %[2]s link set veth0b2 up
ip -n %[1]s addr add fd00::ac:2/118 dev v6if0 nodad; ip -n %[1]s link set v6if0 up
ip -n %[2]s addr add fe80::99/64 dev veth0b2 nodad; ip -n %[2]s addr add %[3]s/128 dev lo; ip -n %[2]s -6 route add fd00::ac:2 dev veth0b2
ip -n %[1]s -6 route add default via fe80::99 dev v6if0`, v.prefix+"-a", n.netns, own)
			found := n.node.local
			n.node.local = func(l *model.Local) {
				found(l)
				l.HostAddrs = append(l.HostAddrs, netip.MustParseAddr(own))
			}
			is := func(when string, reached bool) {
				t.Helper()
				timeout := 400
				if reached {
					timeout = 0
				}
				for _, nw := range networks {
					if a := p.call(request{Op: "get", Net: nw, Addr: "[" + own + "]:7000", Timeout: timeout}); (a.Err == "") != reached {
						t.Errorf("%s, by %s: %q, %s; want %v", when, nw, a.Reply, a.Err, reached)
					}
				}
			}
			is("without Weir", true)
			v.apply()
			is("the node does not carry IPv6", false)
			v.cluster.Pools["six"] = &model.Pool{Name: "six", CIDR: netip.MustParsePrefix("fd00::ac:0/118"), VXLAN: model.EncapNever, Disabled: true, BlockBits: 122, Workload: true}
			v.cluster.Settings.IPv6Support = true
			v.apply()
			is("the node carries IPv6", true)
			isolated := allow("a")
			isolated.AppliesIngress, isolated.AppliesEgress, isolated.Ingress = false, true, nil
			v.cluster.Policies[isolated.ID()] = isolated
			v.apply()
			is("isolated", false)
		})
	}
}

// TestSwitchOnAWSIPv6: nodes change their data planes in a cluster of IPv6, in both directions, and
// connections go on that are open since before Weir, those that egress-cni translates among them.
func TestSwitchOnAWSIPv6(t *testing.T) {
	t.Parallel()
	v := newVPC(t, ipv6)
	n1, n2 := v.newNode("n1", 1), v.newNode("n2", 2)
	client, other := v.machine("client", "198.51.100.7"), v.machine("other", "10.0.0.250")
	a, b, d := n1.newPod("a"), n1.newPod("b"), n2.newPod("d")
	n1.byEgressCNI(a, 2)
	for _, w := range []*worker{a.worker, d.worker, client.worker} {
		w.lines(":6000")
	}
	const every = 50 * time.Millisecond
	var open []*running
	for i, nw := range networks {
		open = append(open, a.stream(t, 10*i+1, 2, every, nw, d.at("6000")), d.stream(t, 10*i+1, 2, every, nw, a.at("6000")), b.stream(t, 10*i+1, 2, every, nw, a.at("6000")),
			a.stream(t, 10*i+2, 2, every, nw, "198.51.100.7:6000"), other.stream(t, 10*i+1, 2, every, nw, a.at("6000")), n1.stream(t, 10*i+1, 2, every, nw, d.at("6000")))
	}
	broken := 0
	allGoOn(t, open, "without Weir", &broken)
	v.apply()
	allGoOn(t, open, "taken over", &broken)
	for _, plane := range []string{"nft", "ebpf", "nft", "ebpf"} {
		for _, n := range []*vpcNode{n1, n2} {
			allGoOn(t, open, n.goOver(t, plane), &broken)
		}
	}
	for _, s := range open {
		s.end(t)
	}
}
