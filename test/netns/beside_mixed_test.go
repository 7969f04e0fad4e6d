// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// TestMixedBesideKubeProxy: a node with nftables leaves Services to a kube-proxy, and translates
// what nodes with eBPF and nftables hand on to it all the same, with the client's address. All else
// is the kube-proxy's, which is recognized by the endpoint that its rules name.
func TestMixedBesideKubeProxy(t *testing.T) {
	inMixed(t, func(t *testing.T, f *fixture) {
		mode := "iptables" // with each family, each way there and each way back
		if f.cluster.Settings.DSR == (f.family == ipv6) {
			mode = "nftables"
		}
		testMixedBesideKubeProxy(t, f, mode)
	})
}

func testMixedBesideKubeProxy(t *testing.T, f *fixture, mode string) {
	const vip = "203.0.113.9"
	n3 := f.newNode("n3", "172.30.0.10") // with nftables, and Weir's Services at first
	run(t, "ip -n %s route add default via %s", n3.netns, f.family.addr("172.30.0.1"))
	e := n3.newPod("e", nil)
	for _, nw := range networks {
		e.listen(nw, ":8080")
	}
	f.service("near", "10.96.0.1", 30001, f.b)
	f.service("far", "10.96.0.2", 30002, f.c).ExternalIPs = f.pairOf(netip.MustParseAddr(vip))
	f.service("hashed", "10.96.0.3", 30003, f.c).Maglev = true
	f.echoService("bulk", "10.96.0.4", 30004, f.c)
	f.c.listen("tcp", ":8090")
	f.put(allow("c", model.Peer{CIDR: f.family.prefix("172.30.0.55/32")}, model.Peer{Pods: &model.Selector{Namespace: "default"}}))
	f.apply()
	f.asks(vip, f.n1)
	open := map[int]string{1: "172.30.0.8:30002", 2: vip + ":80", 3: "172.30.0.10:30002"}
	for id, to := range open {
		f.client.opens(id, to)
	}
	talks := func(what string) {
		t.Helper()
		for id, to := range open {
			if a := f.client.call(request{Op: "talk", ID: id}); a.Err != "" || a.Reply[:1] != "c" {
				t.Errorf("%s: a connection to %s: %q (%s)", what, to, a.Reply, a.Err)
			}
		}
	}
	handedOn := func(what string) {
		t.Helper()
		talks(what)
		for _, nw := range networks {
			what := what + ", " + nw
			want(t, what+" by eBPF", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
			want(t, what+" by eBPF, external IP", f.client.reaches("c", nw, vip+":80"), "172.30.0.55")
			want(t, what+" by eBPF, consistent hashing", f.client.reaches("c", nw, "172.30.0.8:30003"), "172.30.0.55")
			want(t, what+" by nftables", f.client.reaches("c", nw, "172.30.0.10:30002"), "172.30.0.55")
			f.client2.refused(nw, "172.30.0.8:30002") // by policy, which sees the client
		}
		f.client.bulk(what+": more than a packet, both ways", "172.30.0.8:30004")
	}
	handedOn("before")

	// d and e are nobody's endpoints but the kube-proxies'.
	theirs := func(backend string) []proxied {
		return []proxied{{"10.96.0.1", 30001, backend}, {"10.96.0.2", 30002, backend}}
	}
	f.n2.kubeProxy(mode, theirs("10.244.2.3"))
	f.apply()
	handedOn("beside")
	for _, nw := range networks {
		want(t, nw+" client of its own node port", f.client.reaches("d", nw, "172.30.0.9:30002"), "172.30.0.9")
		want(t, nw+" pod", f.c.reaches("d", nw, "10.96.0.1:80"), "10.244.2.2")
		want(t, nw+" process of the node", f.n2.reaches("d", nw, "10.96.0.1:80"), "172.30.0.9")
		want(t, nw+" pod of the node with eBPF", f.a.reaches("c", nw, "10.96.0.2:80"), "10.244.1.2")
		want(t, nw+" node port of another node", f.d.reaches("b", nw, "172.30.0.8:30001"), "172.30.0.9")
	}
	// A process of another node that has a kube-proxy: what it asks of this node is sent by a node,
	// and not handed on.
	n3.kubeProxy(mode, theirs("10.244.3.2"))
	f.apply()
	for _, nw := range networks {
		want(t, nw+" process of another node", n3.reaches("d", nw, "172.30.0.9:30002"), "172.30.0.9")
		want(t, nw+" its own node port", n3.reaches("e", nw, "172.30.0.10:30002"), "172.30.0.10")
	}
	// The backend leaves: what is handed on no more is nobody's here, and begins anew elsewhere.
	f.endpoints("far", f.b)
	f.apply()
	for _, nw := range networks {
		want(t, nw+" the backend is another", f.client.reaches("b", nw, "172.30.0.8:30002"), "172.30.0.55")
	}
	f.endpoints("far", f.c)
	f.apply()
	n3.noKubeProxy(mode)
	f.n2.noKubeProxy(mode)
	f.apply()
	handedOn("without it again")
	for _, nw := range networks {
		want(t, nw+" client of its own node port", f.client.reaches("c", nw, "172.30.0.9:30002"), "172.30.0.55")
	}
}
