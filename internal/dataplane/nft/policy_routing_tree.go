package nft

import "golang.org/x/sys/unix"

// A packet with wayBit finds the rule of its node by three steps, as in a tree: the bits of the number choose a block, in it a
// smaller one, and in that the rule. So it meets some thirty rules among thousands of nodes. All of them stand behind the tables main and
// default, so that other packets, which find their route there, pass wayFirst alone.
const (
	wayRoot   = 40000 // the first step; wayRoot+1 is its end
	wayBlocks = 40010 // of the second step, two priorities each: its rules, and its end
	wayLeaves = 40100 // of the third
	wayEnd    = 41200 // what no rule of a node takes

	leafBits  = 4 // of a number, in a block of the third step
	blockBits = 4 // in one of the second
	wayMarked = wayBit | throughBit | nodeMask
)

// wayFirst leads packets with wayBit past the table local.
var wayFirst = wayRule{mark: wayBit, mask: wayBit, target: wayRoot}

// wayTree are the rules that lead marks to tables; none without marks.
func wayTree(tables map[uint32]int) map[wayRule]bool {
	rules := map[wayRule]bool{}
	if len(tables) == 0 {
		return rules
	}
	step := func(at int, mark uint32, bits int, to int) {
		rules[wayRule{priority: at, mark: mark, mask: wayBit | nodeMask&^(1<<(nodeShift+bits)-1), target: to}] = true
		rules[wayRule{priority: to + 1, target: wayEnd}] = true
	}
	for mark, table := range tables {
		number := int(mark & nodeMask >> nodeShift)
		block, leaf := wayBlocks+2*(number>>(leafBits+blockBits)), wayLeaves+2*(number>>leafBits)
		begin := func(bits int) uint32 { return wayBit | uint32(number>>bits<<bits)<<nodeShift }
		step(wayRoot, begin(leafBits+blockBits), leafBits+blockBits, block)
		step(block, begin(leafBits), leafBits, leaf)
		rules[wayRule{priority: leaf, mark: mark, mask: wayMarked, table: table}] = true
	}
	rules[wayFirst] = true
	rules[wayRule{priority: wayRoot + 1, target: wayEnd}] = true
	// A packet whose node is gone goes as the routes say. Rules of others, for what is not Weir's, are behind it by then.
	for i, table := range []int{unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN, unix.RT_TABLE_DEFAULT} {
		rules[wayRule{priority: wayEnd + i, mark: wayBit, mask: wayBit, table: table}] = true
	}
	return rules
}
