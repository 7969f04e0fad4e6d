package agent

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/ipam"
)

// withoutOverlaps takes the pools that cover what nodes need out of those that addresses are given of, and the nodes' own addresses out of those that may
// be given.
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

// noteOverlaps is called with the pools that cover what nodes need. It reports whether they are others than before.
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
