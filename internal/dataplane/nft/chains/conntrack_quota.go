// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Connection tracking has one table for the whole node (nf_conntrack_max). So that one pod does not
// fill it, rules bound how fast a pod begins connections, and the driver counts those of each pod
// while more than half of the table is used. `ct count` would do both in the kernel, but it walks a
// pod's whole list for a new connection, and leaves TCP connections out that are closed and stay in
// the table for two minutes.
const (
	podBeginsChain  = "pod-begins"  // may a pod begin a connection?
	PodPressedChain = "pod-pressed" // the same while the table fills
	MapShares       = "shares"      // pods' addresses → what applies to them while the table fills
	setBegun        = "begun"       // pods' addresses with their rate
	setBegunPressed = "begun-pressed"
	// A pod begins 1/begunPart of the table at once, and then 1/begunRate of it in a second; while
	// more than half of the table is used, 1/pressedPart and 1/pressedRate. The first is more than
	// a node can carry for long: a closed connection of TCP stays for 120 s.
	begunPart, begunRate     = 32, 16
	pressedPart, pressedRate = 256, 1024
	// begunSize is for how many addresses of pods there are rates.
	begunSize = 65536
)

// connectionShareChains make the chains and sets by which pods are held to their shares of a table
// of so many connections; 0 = there is no limit, or it is not known.
func connectionShareChains(f table.Family, t *table.Table, s *nodestate.State, connections uint32) {
	refuse := expr.DenyName(reason.Share, 0)
	table.AddSet(f, t, MapShares, table.Set{Key: "$addr", Value: "verdict"})
	var begins, pressed []string
	if connections > 0 {
		part := func(n uint32) uint32 { return max(connections/n, 1) }
		within := func(set string, burst, rate uint32) []string {
			return []string{
				fmt.Sprintf("update @%s { $ip saddr timeout 1m limit rate %d/second burst %d packets } return", set, part(rate), part(burst)),
				"$ip saddr != @" + set + " return", // there is no room to count it
				"goto " + refuse}
		}
		begins = append([]string{"$ip saddr vmap @" + MapShares}, within(setBegun, begunPart, begunRate)...)
		pressed = within(setBegunPressed, pressedPart, pressedRate)
	}
	t.Chains[podBeginsChain] = table.Chain{Rules: expr.Expand(f, s, begins...)}
	t.Chains[PodPressedChain] = table.Chain{Rules: expr.Expand(f, s, pressed...)}
	for _, name := range []string{setBegun, setBegunPressed} {
		table.AddSet(f, t, name, table.Set{Key: "$addr", Learned: true, Size: begunSize})
	}
	t.Chains[refuse] = table.Chain{Rules: []string{"counter", "drop"}}
}
