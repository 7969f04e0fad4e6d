// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// proxied is a port of a Service as kube-proxy sees it.
type proxied struct {
	clusterIP string
	nodePort  uint16
	backend   string
}

// kubeProxy writes the rules of kube-proxy 1.34 for Services with one endpoint each, port 80 ->
// 8080 for TCP and UDP. It is the text that kube-proxy makes, but for comments, for what no packet
// of the test meets, and for digests.
func (n *node) kubeProxy(mode string, all []proxied) {
	n.lan.t.Helper()
	text, restore := n.iptables(all), "iptables-nft-restore"
	if n.lan.family == ipv6 {
		restore = "ip6tables-nft-restore"
	}
	if mode == "nftables" {
		text, restore = n.nftables(all), "nft -f"
	}
	args := append([]string{"netns", "exec", n.netns}, strings.Fields(restore)...)
	cmd := exec.Command("ip", append(args, "/dev/stdin")...)
	cmd.Stdin = strings.NewReader(text)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		n.lan.t.Fatalf("%s: %v\n%s", restore, err, text)
	}
	n.alongside, n.rules = true, true
}

// noKubeProxy takes them away.
func (n *node) noKubeProxy(mode string) {
	n.lan.t.Helper()
	family := "ip"
	if n.lan.family == ipv6 {
		family = "ip6"
	}
	if mode == "nftables" {
		run(n.lan.t, "ip netns exec %s nft delete table %s kube-proxy", n.netns, family)
	} else {
		run(n.lan.t, "for t in nat filter; do ip netns exec %s %stables-nft -t $t -F; ip netns exec %s %stables-nft -t $t -X; done", n.netns, family, n.netns, family)
	}
	n.alongside, n.rules = false, false
}

func (n *node) iptables(all []proxied) string {
	fam := n.lan.family
	var nat, chains strings.Builder
	for i, s := range all {
		ip, to := fam.addr(s.clusterIP), net.JoinHostPort(fam.addr(s.backend), "8080")
		for _, nw := range networks {
			id := fmt.Sprintf("%s%d", strings.ToUpper(nw), i)
			for _, kind := range []string{"SVC", "EXT", "SEP"} {
				fmt.Fprintf(&chains, ":KUBE-%s-%s - [0:0]\n", kind, id)
			}
			fmt.Fprintf(&nat, "-A KUBE-SERVICES -d %s -p %s -m %s --dport 80 -j KUBE-SVC-%s\n", ip, nw, nw, id)
			fmt.Fprintf(&nat, "-A KUBE-NODEPORTS -p %s -m %s --dport %d -j KUBE-EXT-%s\n", nw, nw, s.nodePort, id)
			fmt.Fprintf(&nat, "-A KUBE-EXT-%s -j KUBE-MARK-MASQ\n-A KUBE-EXT-%s -j KUBE-SVC-%s\n", id, id, id)
			fmt.Fprintf(&nat, "-A KUBE-SVC-%s -j KUBE-SEP-%s\n", id, id)
			fmt.Fprintf(&nat, "-A KUBE-SEP-%s -s %s -j KUBE-MARK-MASQ\n", id, fam.addr(s.backend))
			fmt.Fprintf(&nat, "-A KUBE-SEP-%s -p %s -m %s -j DNAT --to-destination %s\n", id, nw, nw, to)
		}
	}
	return `*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
` + chains.String() + `-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
` + nat.String() + `-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
`
}

func (n *node) nftables(all []proxied) string {
	fam := n.lan.family
	ip, addr := "ip", "ipv4_addr"
	if fam == ipv6 {
		ip, addr = "ip6", "ipv6_addr"
	}
	var ips, ports, chains strings.Builder
	for i, s := range all {
		for _, nw := range networks {
			id := fmt.Sprintf("%s%d", nw, i)
			fmt.Fprintf(&ips, "%s . %s . 80 : goto service-%s,\n", fam.addr(s.clusterIP), nw, id)
			fmt.Fprintf(&ports, "%s . %d : goto external-%s,\n", nw, s.nodePort, id)
			fmt.Fprintf(&chains, "chain external-%s { jump mark-for-masquerade; goto service-%s; }\n", id, id)
			fmt.Fprintf(&chains, "chain service-%s { numgen random mod 1 vmap { 0 : goto endpoint-%s }; }\n", id, id)
			fmt.Fprintf(&chains, "chain endpoint-%s { %s saddr %s jump mark-for-masquerade; meta l4proto %s dnat to %s; }\n", id, ip, fam.addr(s.backend), nw,
				net.JoinHostPort(fam.addr(s.backend), "8080"))
		}
	}
	return strings.NewReplacer("$elements", ips.String(), "$ip", ip, "$addr", addr, "$node", fam.addr(n.addr.String()), "$ports", ports.String(), "$chains", chains.String()).Replace(`
table $ip kube-proxy {
	chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
	chain masquerading {
		meta mark and 0x4000 == 0 return
		meta mark set meta mark xor 0x4000
		masquerade fully-random
	}
	$chains
	map service-ips { type $addr . inet_proto . inet_service : verdict; elements = { $elements }; }
	map service-nodeports { type inet_proto . inet_service : verdict; elements = { $ports }; }
	chain services {
		$ip daddr . meta l4proto . th dport vmap @service-ips
		$ip daddr $node meta l4proto . th dport vmap @service-nodeports
	}
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
`)
}

// TestBesideKubeProxy: the nftables driver leaves Services to a kube-proxy of either mode, and
// takes them over, live: connections stay, and policy sees who asks and who is asked, whoever
// translates. What kube-proxy's rules say is distinguished from what Weir's say by their endpoints.
func TestBesideKubeProxy(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"iptables", "nftables"} {
		t.Run(mode+"/nft-IPv4", func(t *testing.T) { testBesideKubeProxy(t, ipv4, mode) })
		t.Run(mode+"/nft-IPv6", func(t *testing.T) { testBesideKubeProxy(t, ipv6, mode) })
	}
}

func testBesideKubeProxy(t *testing.T, fam family, mode string) {
	f := newFixture(t, fam)
	f.service("near", "10.96.0.1", 30001, f.a)
	f.service("far", "10.96.0.2", 30002, f.c)
	block := func(cidr string) model.Peer { return model.Peer{CIDR: fam.prefix(cidr)} }
	pod := func(app string) model.Peer {
		return model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp(app)}}
	}
	// What comes by a node port of another node has that node's address.
	f.put(allow("b", block("172.30.0.55/32"), pod("a"), pod("c")))
	f.put(allow("d", block("172.30.0.8/32"), pod("a")))
	f.apply()
	want(t, "before", f.a.reaches("c", "tcp", "10.96.0.2:80"), "10.244.1.2")
	f.a.opens(1, "10.96.0.2:80")
	f.client.opens(1, "172.30.0.8:30001")
	f.n1.opens(1, "10.96.0.2:80")
	talks := func(what string, id int, workers ...*worker) {
		t.Helper()
		for _, w := range workers {
			if a := w.call(request{Op: "talk", ID: id}); a.Err != "" {
				t.Errorf("%s, %s: a connection from before: %s", what, w.name, a.Err)
			}
		}
	}

	theirs := []proxied{{"10.96.0.1", 30001, "10.244.1.3"}, {"10.96.0.2", 30002, "10.244.2.3"}} // b and d
	for _, n := range f.nodes {
		n.kubeProxy(mode, theirs)
	}
	f.apply()
	talks("beside", 1, f.a.worker, f.client.worker, f.n1.worker)
	for _, nw := range networks {
		want(t, nw+" pod to a pod elsewhere", f.a.reaches("d", nw, "10.96.0.2:80"), "10.244.1.2")
		want(t, nw+" pod to a pod here", f.a.reaches("b", nw, "10.96.0.1:80"), "10.244.1.2")
		want(t, nw+" pod elsewhere", f.c.reaches("b", nw, "10.96.0.1:80"), "10.244.2.2")
		want(t, nw+" node", f.n1.reaches("d", nw, "10.96.0.2:80"), "172.30.0.8")
		want(t, nw+" client", f.client.reaches("b", nw, "172.30.0.8:30001"), "172.30.0.8")
		want(t, nw+" client by another node", f.client.reaches("d", nw, "172.30.0.8:30002"), "172.30.0.8")
		f.client2.refused(nw, "172.30.0.8:30001")
		f.d.refused(nw, "10.96.0.1:80")
		f.b.refused(nw, "10.96.0.2:80")
		want(t, nw+" outside, translated", f.a.reaches("client", nw, "172.30.0.55:7000"), "172.30.0.8")
	}
	f.a.opens(2, "10.96.0.2:80")
	f.client.opens(2, "172.30.0.8:30002")
	f.n1.opens(2, "10.96.0.2:80")

	// It is gone, and its rules stay for a while: Weir's come first.
	for _, n := range f.nodes {
		n.alongside = false
	}
	f.apply()
	taken := func(what string) {
		t.Helper()
		talks(what, 1, f.a.worker, f.client.worker, f.n1.worker)
		talks(what, 2, f.a.worker, f.client.worker, f.n1.worker)
		for _, nw := range networks {
			want(t, what+", "+nw+" pod", f.a.reaches("c", nw, "10.96.0.2:80"), "10.244.1.2")
			want(t, what+", "+nw+" node", f.n1.reaches("c", nw, "10.96.0.2:80"), "172.30.0.8")
			f.client.reaches("a", nw, "172.30.0.8:30001")
			f.client.reaches("c", nw, "172.30.0.8:30002")
		}
	}
	taken("its rules are left")
	for _, n := range f.nodes {
		n.noKubeProxy(mode)
	}
	f.apply()
	taken("its rules are gone")

	// Rules that are not known of yet translate what would be handed on: it is theirs.
	for _, n := range f.nodes {
		n.kubeProxy(mode, theirs)
		n.alongside, n.rules = false, false
	}
	f.apply()
	for _, nw := range networks {
		want(t, nw+", rules that are not known of", f.client.reaches("d", nw, "172.30.0.8:30002"), "172.30.0.8")
	}
}
