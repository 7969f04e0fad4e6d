// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// TestMaglevIngressLost: of two nodes that a client's packets may come by, one goes. With
// consistent hashing open connections go on by the other, and it chooses the same backends.
func TestMaglevIngressLost(t *testing.T) { inBoth(t, testMaglevIngressLost) }

func testMaglevIngressLost(t *testing.T, fam family) {
	const vip = "203.0.113.9"
	inModes(t, fam, func(t *testing.T, mode mode) {
		f := newFixture(t, fam)
		n3 := f.newNode("n3", "172.30.0.10")
		run(t, "ip -n %s route add default via %s", n3.netns, fam.addr("172.30.0.1"))
		backends := []*pod{n3.newPod("e", nil), n3.newPod("g", nil), f.c}
		for _, p := range backends[:2] {
			p.listen("tcp", ":8080")
			p.listen("udp", ":8080")
		}
		s := f.service("web", "10.96.0.9", 0, backends...)
		s.Maglev, s.ExternalIPs = true, []netip.Addr{netip.MustParseAddr(fam.addr(vip))}
		f.routed, f.cluster.Settings.DSR = mode.routed, mode.dsr
		f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
		f.apply()
		by := func(n *node) {
			run(t, "ip -n %s route replace %s via %s", f.client.netns, fam.addr(vip), fam.addr(n.addr.String()))
		}
		ask := func(port int) string {
			a := f.client.call(request{Op: "get", Net: "udp", Addr: vip + ":80", From: fmt.Sprintf("172.30.0.55:%d", port)})
			if a.Err != "" {
				t.Errorf("from port %d: %s", port, a.Err)
			}
			return a.Reply
		}
		const connections, datagrams = 6, 12
		by(f.n1)
		opened, chosen, names := map[int]string{}, map[int]string{}, map[string]bool{}
		for id := range connections {
			a := f.client.call(request{Op: "open", Net: "tcp", Addr: vip + ":80", From: fmt.Sprintf("172.30.0.55:%d", 42000+id), ID: id})
			if a.Err != "" {
				t.Fatalf("connection %d: %s", id, a.Err)
			}
			opened[id] = a.Reply
		}
		for i := range datagrams {
			chosen[i] = ask(43000 + i)
			names[chosen[i]] = true
		}
		// The first node is lost, with all that it knew.
		run(t, "ip -n %s link set eth0 down", f.n1.netns)
		by(f.n2)
		for id, before := range opened {
			if a := f.client.call(request{Op: "talk", ID: id}); a.Err != "" || a.Reply != before {
				t.Errorf("connection %d: %q (%s), was %q", id, a.Reply, a.Err, before)
			}
		}
		for i, before := range chosen {
			want(t, "backend", ask(43000+i), before)
		}
		if len(names) < 2 {
			t.Errorf("all %d were led to one of three backends", datagrams)
		}
	})
}
