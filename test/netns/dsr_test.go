// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// behindRouters puts a client into a subnet of its own, 172.29.0.0/24. It reaches the nodes by
// router r1, and one node reaches it so, too; the other one reaches it by router r2, which lets
// nothing through whose beginning it did not see.
func (f *fixture) behindRouters(t *testing.T, near, far *node) *worker {
	t.Helper()
	l := f.lan
	run(t, "ip -n %s-sw link add br1 type bridge; ip -n %s-sw link set br1 up", l.prefix, l.prefix)
	for i, name := range []string{"r1", "r2"} {
		ns := l.newNetns(name)
		for j, link := range []string{"eth0", "eth1"} {
			run(t, "ip link add %s netns %s type veth peer name %s%d netns %s-sw; ip -n %s-sw link set %s%d master br%d up; "+
				"ip -n %s addr add 172.%d.0.%d/24 dev %s; ip -n %s link set %s up",
				link, ns, name, j, l.prefix, l.prefix, name, j, j, ns, 30-j, i+1, link, ns, link)
			if l.family == ipv6 {
				run(t, "ip -n %s addr add %s/120 dev %s nodad; ip netns exec %s sysctl -qw net.ipv6.conf.all.forwarding=1",
					ns, sixOf(fmt.Sprintf("172.%d.0.%d", 30-j, i+1)), link, ns)
			}
		}
		run(t, "ip netns exec %s sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0 "+
			"net.ipv4.conf.eth1.rp_filter=0", ns)
	}
	run(t, `ip netns exec %s-r2 nft 'table inet f { chain forward { type filter hook forward priority 0; iifname "eth0" ct state { new, invalid } counter drop; }; }'`,
		l.prefix)
	ns := l.newNetns("behind")
	run(t, "ip link add eth0 netns %s type veth peer name behind netns %s-sw; ip -n %s-sw link set behind master br1 up; "+
		"ip -n %s addr add 172.29.0.55/24 dev eth0; ip -n %s link set eth0 up; ip -n %s route add default via 172.29.0.1",
		ns, l.prefix, l.prefix, ns, ns, ns)
	run(t, "ip -n %s route add 172.29.0.0/24 via 172.30.0.1; ip -n %s route add 172.29.0.0/24 via 172.30.0.2", near.netns, far.netns)
	if l.family == ipv6 {
		run(t, "ip -n %s addr add %s/120 dev eth0 nodad; ip -n %s route add default via %s", ns, sixOf("172.29.0.55"), ns, sixOf("172.29.0.1"))
		run(t, "ip -n %s route add %s via %s; ip -n %s route add %s via %s", near.netns, l.family.prefix("172.29.0.0/24"), sixOf("172.30.0.1"),
			far.netns, l.family.prefix("172.29.0.0/24"), sixOf("172.30.0.2"))
	}
	return f.startWorker("behind", ns, "")
}

// TestDSRFallsBack: a firewall between drops what the backend's node sends directly to the client.
// The first connection takes one repeated SYN, further ones nothing; without the fallback none ever
// comes about.
func TestDSRFallsBack(t *testing.T) {
	inBoth(t, func(t *testing.T, fam family) {
		for name, routed := range map[string]bool{"one link": false, "through the tunnel": true} {
			if !plays(t, fam, either(routed)) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				f := newFixture(t, fam)
				f.routed, f.cluster.Settings.DSR = routed, true
				f.fallsBack(t, f.n1, f.n2, f.c)
			})
		}
	})
}

// TestMixedDSRFallsBack: it is so, too, where the node that is asked and the backend's have
// different data planes.
func TestMixedDSRFallsBack(t *testing.T) {
	t.Parallel()
	for name, fam := range map[string]family{"mixed-IPv4": ipv4, "mixed-IPv6": ipv6} {
		for _, standard := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/standard hands on=%v", name, standard), func(t *testing.T) {
				f := newFixture(t, fam)
				f.routed, f.cluster.Settings.DSR = fam == ipv6, true // once by the link, once through the tunnel
				if standard {
					f.fallsBack(t, f.n2, f.n1, f.b)
				} else {
					f.fallsBack(t, f.n1, f.n2, f.c)
				}
			})
		}
	}
}

// fallsBack asks one node for a pod of another one, whose direct answers do not arrive.
func (f *fixture) fallsBack(t *testing.T, asked, far *node, backend *pod) {
	frontend := fmt.Sprintf("%s:30002", asked.addr)
	f.service("far", "10.96.0.2", 30002, backend)
	client := f.behindRouters(t, asked, far)

	patience := f.cluster.Settings.DSRTimes.Patience
	f.cluster.Settings.DSRTimes.Patience = time.Hour
	f.apply()
	if a := client.get("tcp", frontend, 4000); a.Err == "" {
		t.Fatalf("the firewall lets asymmetric packets through: %q", a.Reply)
	}
	if a := client.get("udp", frontend, 400); a.Err == "" {
		t.Fatalf("the firewall lets asymmetric datagrams through: %q", a.Reply)
	}
	if got := far.driver.last.Fallen; len(got) != 0 {
		t.Errorf("%v fell back although nobody could", got)
	}

	f.cluster.Settings.DSRTimes.Patience = patience
	f.apply()
	a := client.get("tcp", frontend)
	if a.Err != "" || !strings.HasPrefix(a.Reply, backend.name) || a.Again == 0 {
		t.Fatalf("first connection: %q, %s, %d segments sent again", a.Reply, a.Err, a.Again)
	}
	t.Logf("the first connection sent %d segments again", a.Again)
	// A machine that is held up for a second sends a SYN again whose answer is in flight.
	for tries := 1; ; tries++ {
		a = client.get("tcp", frontend)
		if a.Err == "" && a.Again == 0 {
			break
		}
		if a.Err != "" || tries == 5 {
			t.Fatalf("connection %d after the first: %q, %s, %d segments sent again", tries, a.Reply, a.Err, a.Again)
		}
	}
	want(t, "another connection", client.reaches(backend.name, "tcp", frontend), "172.29.0.55")
	want(t, "datagrams", client.reaches(backend.name, "udp", frontend), "172.29.0.55")
	want(t, "a client with a direct path", f.client.reaches(backend.name, "tcp", frontend), "172.30.0.55")
	f.apply()
	if got := far.driver.last.Fallen; !slices.Equal(got, []string{"172.29.0.55"}) {
		t.Errorf("the node says that %v fell back, want 172.29.0.55", got)
	}
}
