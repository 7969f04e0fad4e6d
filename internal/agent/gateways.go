package agent

import (
	"net/netip"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
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
	for _, p := range overlapProblems(overlaps) {
		c.log.Error("a pool covers what nodes need", "problem", p.String())
	}
	c.mu.Lock()
	c.snap.overlaps = overlaps
	c.mu.Unlock()
	return true
}

// overlapProblems says what is not in force of pools that cover what nodes need.
func overlapProblems(overlaps []calc.PoolOverlap) []weirv1.Problem {
	var out []weirv1.Problem
	for _, o := range overlaps {
		message := "covers " + o.What + ": the pool is refused; it is not routed but for blocks that it has already, and no address of it is given"
		if o.Gives {
			message = "covers " + o.What + ": it is not routed but for its blocks"
		}
		out = append(out, weirv1.Problem{Object: "IPPool " + o.Pool, Field: "spec.cidr", Value: o.CIDR.String(), Message: message,
			Action: "make a pool with a network of its own, move its pods there, and delete this one"})
	}
	return out
}
