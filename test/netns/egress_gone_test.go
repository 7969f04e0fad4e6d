// SPDX-License-Identifier: Apache-2.0

package netns

import "testing"

// TestEgressSourceGone holds what a change of the table does for a moment with nftables: a flow has
// got a gateway of this node in one hook, and in the next one nothing knows its address any more.
// It leaves with no address then, and with the gateway's as soon as that is there again.
func TestEgressSourceGone(t *testing.T) { inNFTables(t, testEgressSourceGone) }

func testEgressSourceGone(t *testing.T, fam family) {
	f := egressFixture(t, fam)
	out, talker := f.listener(), f.talker(f.a)
	f.gateways("b")
	f.apply()
	if got := out.hears(talker, 0); !f.addrsOf("b")[got] {
		t.Fatalf("flow 0 came from %s", got)
	}
	f.n1.driver.kill()
	table := map[family]string{ipv4: "ip", ipv6: "ip6"}[fam]
	run(t, "ip netns exec %s nft flush map %s weir egress-sources", f.n1.netns, table)
	for flow := range 20 {
		talker.send(1 + flow)
	}
	out.hears(talker, 0) // what was sent before that has arrived, or never will
	out.wrong(f)
	for flow := range 20 {
		if out.last[1+flow].IsValid() {
			t.Errorf("flow %d came from %s, whose address nothing knew", 1+flow, out.last[1+flow])
		}
	}
	f.n1.driver.start()
	f.apply()
	if got := out.hears(talker, 30); !f.addrsOf("b")[got] {
		t.Errorf("flow 30 came from %s", got)
	}
}
