// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/watch"
)

// ipamInputs are what ipam.Config is made from.
type ipamInputs struct {
	order        []string
	reservations map[string]*watch.Reservation
	settings     watch.IPAMConfig
}

func (c *cluster) configureIPAM(b *watch.Batch, ownNode bool) {
	in := &c.ipamConf
	if len(b.Pools) > 0 {
		in.order = b.PoolOrder
	}
	for name, r := range b.Reservations {
		if r == nil {
			delete(in.reservations, name)
		} else {
			in.reservations[name] = r
		}
	}
	if b.IPAM != nil {
		in.settings = *b.IPAM
		c.dirty.Add(model.KindLocal)
	}
	if !b.Full && !ownNode && len(b.Pools) == 0 && len(b.Reservations) == 0 && b.IPAM == nil {
		return
	}
	if b.Full { // before a block is taken of a pool that covers what nodes need
		c.refreshLocal()
		c.noteOverlaps(calc.PoolOverlaps(c.model))
	}
	c.configurePools()
}

// configurePools gives the allocator the pools that it takes addresses of.
func (c *cluster) configurePools() {
	in := &c.ipamConf
	conf := ipam.Config{MaxBlocks: in.settings.MaxBlocks}
	for _, name := range in.order {
		if p := c.model.Pools[name]; p != nil {
			conf.Pools = append(conf.Pools, *p)
		}
	}
	for _, r := range in.reservations {
		conf.Reservations = append(conf.Reservations, r.CIDRs...)
	}
	if n := c.model.Nodes[c.node]; n != nil {
		conf.NodeLabels = n.Labels
		conf.NoIPv4 = !n.NodeAddr().IsValid() && n.NodeAddr6().IsValid()
	}
	c.withoutOverlaps(&conf)
	c.setPools(conf)
}

// withoutOverlaps takes the pools that cover what nodes need out of those that addresses are given
// of, and the nodes' own addresses out of those that may be given.
func (c *cluster) withoutOverlaps(conf *ipam.Config) {
	for i := range conf.Pools {
		p := &conf.Pools[i]
		if slices.ContainsFunc(c.overlaps, func(o calc.PoolOverlap) bool { return o.Pool == p.Name && !o.Gives }) {
			p.Disabled = true
		}
	}
	if len(c.overlaps) == 0 {
		return
	}
	for _, n := range c.model.Nodes {
		for _, a := range n.Addrs {
			conf.Reservations = append(conf.Reservations, netip.PrefixFrom(a, a.BitLen()))
		}
	}
}

// noteOverlaps is called with the pools that cover what nodes need. It reports whether they are
// others than before.
func (c *cluster) noteOverlaps(overlaps []calc.PoolOverlap) bool {
	if slices.Equal(c.overlaps, overlaps) {
		return false
	}
	c.overlaps = overlaps
	for _, p := range problems.Overlaps(overlaps) {
		c.log.Error("a pool covers what nodes need", "problem", p.String())
	}
	c.mu.Lock()
	c.snap.overlaps = overlaps
	c.mu.Unlock()
	return true
}

// refusePodAddr says why a pod cannot have an address, "" when it can: it is a node's, a gateway's
// or a Service's.
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
