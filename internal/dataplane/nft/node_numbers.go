package nft

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// numbers gives other nodes the numbers by which marks name them, 1 to maxNodes. A node keeps its number while it is known:
// open flows have it in their ct marks. It is made from the node's address, so that a restart gives nearly all the same,
// and read back gives all.
type nodeNumbers struct {
	byNode map[netip.Addr]int
	taken  map[int]netip.Addr
}

func newNodeNumbers() *nodeNumbers {
	return &nodeNumbers{byNode: map[netip.Addr]int{}, taken: map[int]netip.Addr{}}
}

func (n *nodeNumbers) of(node netip.Addr) (int, bool) {
	num, ok := n.byNode[node]
	return num, ok
}

func (n *nodeNumbers) put(node netip.Addr, num int) {
	n.byNode[node], n.taken[num] = num, node
}

// follow gives numbers to a state's nodes and takes those of nodes that are gone.
func (n *nodeNumbers) follow(f table.Family, s *nodestate.State) {
	known := map[netip.Addr]bool{}
	for a, v := range s.Addrs {
		if v.Kind == nodestate.AddrNode && f.Has(a) && f.Has(v.Node) {
			known[v.Node] = true
		}
	}
	for node, num := range n.byNode {
		if !known[node] {
			delete(n.byNode, node)
			delete(n.taken, num)
		}
	}
	var fresh []netip.Addr
	for node := range known {
		if _, ok := n.byNode[node]; !ok {
			fresh = append(fresh, node)
		}
	}
	slices.SortFunc(fresh, netip.Addr.Compare)
	for _, node := range fresh {
		if len(n.taken) == maxNodes {
			return // those left have no way of their own back: see docs/design/nftables.md
		}
		num := int(hash32(node.AsSlice()))%maxNodes + 1
		for n.taken[num].IsValid() {
			num = num%maxNodes + 1
		}
		n.put(node, num)
	}
}

func hash32(b []byte) uint32 {
	h := fnv.New64a()
	h.Write(b)
	sum := h.Sum(nil)
	return binary.BigEndian.Uint32(sum) ^ binary.BigEndian.Uint32(sum[4:])
}
