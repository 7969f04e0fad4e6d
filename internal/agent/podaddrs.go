package agent

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// refusePodAddr says why a pod cannot have an address, "" when it can: it is a node's, a gateway's or a Service's.
func (c *cluster) refusePodAddr(a netip.Addr) string {
	snap := c.snapshot()
	switch {
	case slices.Contains(snap.gateways, a):
		return "it is the address of a gateway"
	case model.Within(snap.serviceCIDRs, a):
		return "it is in a range of cluster IPs"
	case snap.state == nil:
		return ""
	}
	switch v := snap.state.Addrs[a]; v.Kind {
	case nodestate.AddrHost:
		return "it is an address of this machine"
	case nodestate.AddrNode:
		return "it is an address of node " + v.Owner.Name
	}
	return ""
}
