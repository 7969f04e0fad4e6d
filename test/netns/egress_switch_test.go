// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// TestEgressSwitch: the client's node and the gateways' change their data planes, under open
// connections by gateways on both, which go on; and of what a client sends all the time nothing
// leaves otherwise.
func TestEgressSwitch(t *testing.T) {
	inEBPF(t, func(t *testing.T, fam family) {
		f := egressFixture(t, fam)
		for _, n := range []*node{f.n1, f.n2} {
			n.startLive("ebpf")
		}
		id := 0
		opens := func(n int) {
			t.Helper()
			for range n {
				id++
				f.a.opens(id, outside+":7000")
			}
		}
		f.gateways("c")
		f.apply()
		opens(2)
		f.gateways("bc")
		f.apply()
		opens(8)
		talks := func(when string) {
			t.Helper()
			for i := 1; i <= id; i++ {
				if a := f.a.call(request{Op: "talk", ID: i}); a.Err != "" {
					t.Errorf("%s: connection %d: %s", when, i, a.Err)
				}
			}
		}
		talks("before")
		out := f.listener()
		stop := f.talksAllTheTime(f.talker(f.a))
		for _, step := range []struct {
			n     *node
			plane string
		}{{f.n1, "nft"}, {f.n2, "nft"}, {f.n1, "ebpf"}, {f.n2, "ebpf"}} {
			when := step.n.goOver(t, step.plane)
			out.read()
			talks(when)
		}
		stop()
		out.read()
		if out.wrong(f) == 0 {
			t.Logf("all that came came by gateways: %v", out.by)
		}
	})
}

// TestEgressDSCP: what leaves by a gateway on another node, or on the pod's own, bears the DSCP
// that the pod gives its packets, whichever data plane the nodes have.
func TestEgressDSCP(t *testing.T) {
	for name, fam := range map[string]family{"ebpf-IPv4": ipv4, "nft-IPv6": ipv6, "crossed-IPv4": ipv4} {
		t.Run(name, func(t *testing.T) { testEgressDSCP(t, fam) })
	}
}

func testEgressDSCP(t *testing.T, fam family) {
	const ef = 46<<2 | 2
	f := egressFixture(t, fam)
	f.countDatagrams(f.client.worker)
	f.limited(&model.QoS{DSCP: 46 + 1})
	f.leavesByGateways(f.a)
	for _, g := range []*pod{f.b, f.c} {
		f.gateways(g.name)
		f.apply()
		n, got, class, _ := f.datagrams(f.a.worker, f.client.worker, f.client.addr.String()+":8095", 50, 200)
		if got < n-mostLost || class != ef {
			t.Errorf("by gateway %s: %d of %d arrived, traffic class %#x, want %#x", g.name, got, n, class, ef)
		}
	}
}
