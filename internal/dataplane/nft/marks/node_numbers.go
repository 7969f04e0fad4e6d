// SPDX-License-Identifier: Apache-2.0

package marks

import (
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Numbers gives other nodes the numbers by which marks name them, 1 to MaxNodes. A node keeps its
// number while it is known: open flows have it in their ct marks. It is made from the node's
// address, so that a restart gives nearly all the same, and read back gives all.
type Numbers struct {
	ByNode map[netip.Addr]int
	Taken  map[int]netip.Addr
}

// NewNumbers are of no node yet.
func NewNumbers() *Numbers {
	return &Numbers{ByNode: map[netip.Addr]int{}, Taken: map[int]netip.Addr{}}
}

// Of is the number of a node.
func (n *Numbers) Of(node netip.Addr) (int, bool) {
	num, ok := n.ByNode[node]
	return num, ok
}

func (n *Numbers) put(node netip.Addr, num int) {
	n.ByNode[node], n.Taken[num] = num, node
}

// Follow gives numbers to a state's nodes and takes those of nodes that are gone.
func (n *Numbers) Follow(f table.Family, s *nodestate.State) {
	known := map[netip.Addr]bool{}
	for a, v := range s.Addrs {
		if v.Kind == nodestate.AddrNode && f.Has(a) && f.Has(v.Node) {
			known[v.Node] = true
		}
	}
	for node, num := range n.ByNode {
		if !known[node] {
			delete(n.ByNode, node)
			delete(n.Taken, num)
		}
	}
	var fresh []netip.Addr
	for node := range known {
		if _, ok := n.ByNode[node]; !ok {
			fresh = append(fresh, node)
		}
	}
	slices.SortFunc(fresh, netip.Addr.Compare)
	for _, node := range fresh {
		if len(n.Taken) == MaxNodes {
			return // those left have no return path of their own: see docs/design/nftables.md
		}
		num := int(table.Hash32(node.AsSlice()))%MaxNodes + 1
		for n.Taken[num].IsValid() {
			num = num%MaxNodes + 1
		}
		n.put(node, num)
	}
}

// Adopt takes the numbers of nodes that are in the kernel: their marks, by address.
func (n *Numbers) Adopt(marks iter.Seq2[string, string]) {
	for k, v := range marks {
		a, err := netip.ParseAddr(k)
		mark, err2 := strconv.Atoi(v)
		num := mark >> NodeShift
		if err != nil || err2 != nil || num < 1 || num > MaxNodes || n.Taken[num].IsValid() {
			continue
		}
		n.put(a, num)
	}
}
