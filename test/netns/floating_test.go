// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// floats gives pods of the fixture's namespace floating addresses.
func (f *fixture) floats(p *pod, addr string) {
	f.cluster.Settings.FloatingIPs = true
	space := *f.cluster.Namespaces["default"]
	space.FloatingGrants = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	f.cluster.Namespaces["default"] = &space
	obj := *p.obj
	if obj.Floating = nil; addr != "" {
		obj.Floating = f.pairOf(netip.MustParseAddr(addr))
	}
	p.obj = &obj
	f.cluster.Pods.Put(p.obj)
}

// TestFloating: a pod is reached by its floating address with the client's own, by outside clients
// that are led to its node or to another one, by pods of both nodes, by nodes and by itself, and
// weir why says so. Open connections outlive a change of the data plane. Where the address goes to
// another pod, new connections follow.
func TestFloating(t *testing.T) { inBoth(t, testFloating) }

func testFloating(t *testing.T, fam family) {
	f := newFixture(t, fam)
	const floating = "10.244.200.7"
	f.floats(f.c, floating)
	for _, n := range f.nodes {
		n.explains()
	}
	f.apply()
	bits := map[bool]string{false: "/32", true: "/128"}[fam == ipv6]
	run(t, "ip -n %s route add %s%s via %s", f.client.netns, fam.addr(floating), bits, fam.addr("172.30.0.9"))
	run(t, "ip -n %s route add %s%s via %s", f.client2.netns, fam.addr(floating), bits, fam.addr("172.30.0.8"))
	at := floating + ":8080"
	for _, nw := range networks {
		want(t, nw+" from outside", f.client.reaches("c", nw, at), "172.30.0.55")
		want(t, nw+" from outside by another node", f.client2.reaches("c", nw, at), "172.30.0.62")
		want(t, nw+" from another node", f.a.reaches("c", nw, at), "10.244.1.2")
		want(t, nw+" from the same node", f.d.reaches("c", nw, at), "10.244.2.3")
		want(t, nw+" from itself", f.c.reaches("c", nw, at), "172.30.0.9")
		want(t, nw+" from a process of another node", f.n1.reaches("c", nw, at), "172.30.0.8")
		want(t, nw+" from a process of its node", f.n2.reaches("c", nw, at), "172.30.0.9")
		want(t, nw+" it begins with its own", f.c.reaches("a", nw, f.a.at("8080")), "10.244.2.2")
	}
	q := whywire.Request{Hook: whywire.FromWorkload, Source: netip.MustParseAddr(fam.addr("10.244.1.2")), Destination: netip.MustParseAddr(fam.addr(floating)),
		Protocol: model.ProtocolTCP, SourcePort: 50000, Port: 8080}
	answers := f.why(f.n1, q)
	if last := answers[len(answers)-1].Outcome; len(answers) != 2 || last.Verdict != whywire.Delivered || answers[0].Service == nil || !strings.Contains(answers[0].Service.Name, "floating address") {
		t.Errorf("weir why: %+v, %+v", answers[0].Service, last)
	}

	f.c.lines(":8081")
	other := map[string]string{"ebpf": "nft", "nft": "ebpf"}
	var all []*running
	all = append(all, f.client.stream(t, 1, 2, 20*time.Millisecond, "tcp", floating+":8081"), f.a.stream(t, 2, 2, 20*time.Millisecond, "tcp", floating+":8081"),
		f.client.stream(t, 3, 2, 20*time.Millisecond, "udp", floating+":8081"))
	none, mayBreak := 0, 1
	all = allGoOn(t, all, "before", &none)
	for _, n := range []*node{f.n2, f.n1} {
		when := n.goOver(t, other[f.dataplane()])
		all = allGoOn(t, all, when, &mayBreak)
	}
	for _, s := range all {
		s.end(t)
	}

	f.floats(f.c, "")
	f.floats(f.b, floating)
	f.apply()
	for _, nw := range networks {
		want(t, nw+" from another node after it moved", f.d.reaches("b", nw, at), "10.244.2.3")
		want(t, nw+" from outside by another node after it moved", f.client.reaches("b", nw, at), "172.30.0.55")
	}
}
