// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/marks"
)

// A packet with RoutedBit finds the rule of its node by three steps, as in a tree: the bits of the
// number choose a block, in it a smaller one, and in that the rule. So it meets some thirty rules
// among thousands of nodes. All of them come after the tables main and default, so that other
// packets, which find their route there, pass firstRule alone.
const (
	treeRoot   = 40000 // the first step; treeRoot+1 is its end
	treeBlocks = 40010 // of the second step, two priorities each: its rules, and its end
	treeLeaves = 40100 // of the third
	treeEnd    = 41200 // what no rule of a node takes

	leafBits  = 4 // of a number, in a block of the third step
	blockBits = 4 // in one of the second
)

// firstRule leads packets with RoutedBit past the table local.
var firstRule = policyRule{mark: marks.RoutedBit, mask: marks.RoutedBit, target: treeRoot}

// ruleTree are the rules that lead marks to tables. Without marks there are none, unless packets
// with RoutedBit are for nobody's node, too (marks.RoutesNumber).
func ruleTree(tables map[uint32]int, nobodys bool) map[policyRule]bool {
	rules := map[policyRule]bool{}
	if len(tables) == 0 && !nobodys {
		return rules
	}
	step := func(at int, mark uint32, bits int, to int) {
		rules[policyRule{priority: at, mark: mark, mask: marks.RoutedBit | marks.NodeMask&^(1<<(marks.NodeShift+bits)-1), target: to}] = true
		rules[policyRule{priority: to + 1, target: treeEnd}] = true
	}
	for mark, table := range tables {
		number := int(mark & marks.NodeMask >> marks.NodeShift)
		block, leaf := treeBlocks+2*(number>>(leafBits+blockBits)), treeLeaves+2*(number>>leafBits)
		begin := func(bits int) uint32 { return marks.RoutedBit | uint32(number>>bits<<bits)<<marks.NodeShift }
		step(treeRoot, begin(leafBits+blockBits), leafBits+blockBits, block)
		step(block, begin(leafBits), leafBits, leaf)
		rules[policyRule{priority: leaf, mark: mark, mask: marks.RoutedMask, table: table}] = true
	}
	rules[firstRule] = true
	rules[policyRule{priority: treeRoot + 1, target: treeEnd}] = true
	// A packet whose node is gone goes as the routes say. Rules of others, for what is not Weir's,
	// are behind it by then.
	for i, table := range []int{unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN, unix.RT_TABLE_DEFAULT} {
		rules[policyRule{priority: treeEnd + i, mark: marks.RoutedBit, mask: marks.RoutedBit, table: table}] = true
	}
	return rules
}
