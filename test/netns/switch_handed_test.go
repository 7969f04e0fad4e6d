// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strings"
	"testing"
	"time"
)

// TestSwitchHandedOn: of what one node hands on to the other no datagram is lost while either of
// them changes its data plane, by the link with answers through the node that was asked, and by the
// tunnel with answers directly to the client. WEIR_SWITCH makes it longer.
func TestSwitchHandedOn(t *testing.T) {
	t.Parallel()
	for name, fam := range map[string]family{"IPv4": ipv4, "IPv6": ipv6} {
		for path, routed := range map[string]bool{"link": false, "tunnel": true} {
			t.Run(name+"/"+path, func(t *testing.T) { testSwitchHandedOn(t, fam, routed) })
		}
	}
}

func testSwitchHandedOn(t *testing.T, fam family, routed bool) {
	f := newFixture(t, fam)
	conns, turns := 8, 6 // datagrams are lost in moments: there are few connections, which say much
	if strictSwitch() {
		conns, turns = 24, 18
	}
	f.service("near", "10.96.0.1", 30001, f.b)
	f.service("far", "10.96.0.2", 30002, f.c)
	f.linesAt("near")
	f.linesAt("far")
	for _, w := range []*worker{f.b.worker, f.c.worker} {
		w.lines(":8081")
	}
	f.routed, f.cluster.Settings.DSR = routed, routed
	f.apply()
	dropped := queueDrops(t)
	var all []*running
	for i, to := range []string{"172.30.0.8:30002", "172.30.0.9:30001"} {
		all = append(all, f.client.stream(t, i+1, conns, 10*time.Millisecond, "udp", to))
	}
	none := 0
	all = allGoOn(t, all, "before", &none)
	for i := range turns {
		step := []struct {
			n     *node
			plane string
		}{{f.n1, "nft"}, {f.n1, "ebpf"}, {f.n2, "nft"}, {f.n1, "nft"}, {f.n1, "ebpf"}, {f.n2, "ebpf"}}[i%6]
		when := step.n.goOver(t, step.plane)
		if all = allGoOn(t, all, when, &none); t.Failed() {
			t.FailNow()
		}
	}
	sum := 0
	for _, s := range all {
		r := s.end(t)
		t.Logf("%s: %d exchanges, longest %v (from %s), %d lost %s", s.what, r.Exchanges, r.Longest.Round(time.Millisecond), r.LongestAt, r.Lost, strings.Join(r.LostAt, ", "))
		sum += r.Lost
	}
	if full := queueDrops(t) - dropped; sum > full {
		t.Errorf("%d datagrams were lost; full queues dropped %d packets of the whole machine", sum, full)
	}
}
