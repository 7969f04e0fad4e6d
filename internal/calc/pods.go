package calc

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// addrsConcern reports whether the table of addresses may change by these pods: those with an address
// outside the blocks of their node, now or before.
func addrsConcern(c *cluster, have map[netip.Addr]nodestate.Addr, names map[model.Name]struct{}) bool {
	for _, v := range have {
		if _, dirty := names[v.Owner]; dirty && v.Kind == nodestate.AddrPod {
			return true
		}
	}
	blocks := blockIndex(c)
	for name := range names {
		pod := c.Pods[name]
		if pod == nil || pod.Node == c.Local.Node {
			continue
		}
		for _, a := range pod.Addrs {
			if c.carried(a) && outsideBlocks(blocks, pod, a) {
				return true
			}
		}
	}
	return false
}
