// SPDX-License-Identifier: Apache-2.0

// Package names is policy by domain name of the nftables data plane: answers of trusted DNS servers
// to pods whose policy has names go by way of the agent, by a queue that holds nothing up when there
// is no agent. The agent writes what they say into the set Told of the family's table, which policy
// asks (internal/dataplane/nft/policy), and lets them go on. The rules that lead answers to the
// queue, and note which were asked for, are tables of their own.
package names

import (
	"slices"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Sets of a family's table.
const (
	// Told has what pods were told: pod . address . number of the pattern. Number 0 is there as long
	// as any is.
	Told = "told"
	// Began has the connections that a name allowed, with the pattern's number, for as long as
	// connection tracking has them.
	Began = "began-by-name"
)

const (
	toldSize  = 1 << 19
	beganSize = 1 << 16
)

// AddSets are the sets that every node has.
func AddSets(f table.Family, t *table.Table) {
	table.AddSet(f, t, Told, table.Set{Key: "$addr . $addr . classid", Learned: true, Size: toldSize})
	table.AddSet(f, t, Began, table.Set{Key: "ct id . meta priority", TypeOf: true, Learned: true, Lasting: true, Size: beganSize})
}

// Numbers are those by which a table knows the patterns of a state. A pattern whose number another
// one has already, by a chance of one in two thousand millions for each pair, has none.
func Numbers(n *nodestate.Names) map[nodestate.NameID]uint32 {
	ids := make([]nodestate.NameID, 0, len(n.Texts))
	for id := range n.Texts {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	out, taken := map[nodestate.NameID]uint32{}, map[uint32]bool{}
	for _, id := range ids {
		if num := number(id); !taken[num] {
			out[id], taken[num] = num, true
		}
	}
	return out
}

// number is of 31 bits and not 0: what is above means something else where policy is evaluated.
func number(id nodestate.NameID) uint32 {
	return max(uint32(id)&0x7fffffff, 1)
}

// NumberText writes a number as rules and elements have it.
func NumberText(n uint32) string { return expr.PriorityText(uint16(n>>16), uint16(n)) }
