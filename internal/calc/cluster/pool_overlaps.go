// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/model"
)

// A pool says where pods are. One that covers what nodes reach each other and the API server by
// would lead that to pods: such a pool is refused as a whole, and the blocks that it has go on as
// far as they cover nothing of it.

// Covered is what no pool may cover, with the words that say so.
type Covered struct {
	// stale are the networks and addresses that this node depends on: what it is on, its gateways,
	// and API servers.
	own []coveredPrefix
	// others are other nodes' addresses and networks, and the ranges of cluster IPs. Nodes report
	// theirs themselves: so that no node takes a pool from others by reporting one, nodes go on
	// giving addresses of a pool that has blocks; it has no route as a whole.
	others []coveredPrefix
}

type coveredPrefix struct {
	netip.Prefix
	what, of string // "the address %s of node %s"
}

func (p coveredPrefix) String() string {
	if p.of != "" {
		return p.what + " " + p.text() + " of " + p.of
	}
	return p.what + " " + p.text()
}

func (p coveredPrefix) text() string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.Prefix.String()
}

func (c *Covered) Equal(o *Covered) bool {
	return slices.Equal(c.own, o.own) && slices.Equal(c.others, o.others)
}

// InputsCovered are the kinds that it is read from, with APIServerSlice.
const InputsCovered = model.KindNodes | model.KindLocal | model.KindSettings | model.KindServiceCIDRs | model.KindSlices

// CoveredBy reads it from a cluster.
func CoveredBy(c *View) *Covered {
	out := &Covered{}
	add := func(to *[]coveredPrefix, p netip.Prefix, what, of string) {
		if a := p.Addr(); p.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsUnspecified() {
			*to = append(*to, coveredPrefix{p.Masked(), what, of})
		}
	}
	single := func(to *[]coveredPrefix, a netip.Addr, what, of string) {
		if a = a.Unmap(); a.IsValid() {
			add(to, netip.PrefixFrom(a, a.BitLen()), what, of)
		}
	}
	for _, p := range c.Local.Subnets {
		add(&out.own, p, "the network", "this node")
	}
	for _, a := range c.Local.Gateways {
		single(&out.own, a, "the gateway", "this node")
	}
	if s := APIServersOf(c.Cluster); s != nil {
		for _, e := range s.Endpoints {
			for _, a := range e.Addrs {
				single(&out.own, a, "the API server", "")
			}
		}
	}
	for _, at := range c.Local.APIServers { // that this node reached: the cluster may not know of a load balancer before them
		if a := at.Addr().Unmap(); !model.Within(c.ServiceCIDRs, a) {
			single(&out.own, a, "the API server", "")
		}
	}
	for _, n := range c.Nodes {
		to, whose := &out.others, n.Name
		if n.Name == c.Local.Node {
			to = &out.own
		}
		for _, a := range n.Addrs {
			single(to, a, "the address", whose)
		}
		for _, p := range n.Subnets {
			add(&out.others, p, "the network", whose)
		}
	}
	for _, p := range c.ServiceCIDRs {
		add(&out.others, p, "the range of cluster IPs", "")
	}
	for _, all := range []*[]coveredPrefix{&out.own, &out.others} {
		slices.SortFunc(*all, func(a, b coveredPrefix) int {
			return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()), strings.Compare(a.what, b.what), strings.Compare(a.of, b.of))
		})
		*all = slices.CompactFunc(*all, func(a, b coveredPrefix) bool { return a.Prefix == b.Prefix })
	}
	return out
}

// overlapping returns the first of what a prefix overlaps, "" when it overlaps none.
func overlapping(all []coveredPrefix, p netip.Prefix, singles bool) string {
	for _, o := range all {
		if o.Overlaps(p) && (!singles || o.IsSingleIP()) {
			return o.String()
		}
	}
	return ""
}

// Overlap says what of the nodes' a pool covers, "" when nothing. One that is for load balancers
// alone may be a part of the network that nodes are on, whose neighbours are answered for it: only
// single addresses count.
func (c *Covered) Overlap(p *model.Pool) string {
	if p.CIDR.Bits() == 0 {
		return "everything"
	}
	singles := p.LoadBalancer && !p.Workload
	return cmp.Or(overlapping(everywhere, p.CIDR, false), overlapping(c.own, p.CIDR, singles), overlapping(c.others, p.CIDR, singles))
}

// everywhere are the networks that mean something else on every machine or link.
var everywhere = []coveredPrefix{
	{netip.MustParsePrefix("0.0.0.0/8"), "this host's network", ""},
	{netip.MustParsePrefix("127.0.0.0/8"), "the loopback network", ""},
	{netip.MustParsePrefix("169.254.0.0/16"), "the link-local network", ""},
	{netip.MustParsePrefix("224.0.0.0/3"), "the multicast and reserved addresses", ""},
	{netip.MustParsePrefix("::/127"), "the unspecified and the loopback address", ""},
	{netip.MustParsePrefix("fe80::/10"), "the link-local network", ""},
	{netip.MustParsePrefix("ff00::/8"), "the multicast addresses", ""},
}

// BlocksIn returns the blocks of a pool that are routed although it is not.
func (c *Covered) BlocksIn(all *View, p *model.Pool) []netip.Prefix {
	var out []netip.Prefix
	for _, b := range all.Blocks {
		if b.Node != LoadBalancers && b.CIDR.IsValid() && b.CIDR.Bits() >= p.CIDR.Bits() && p.CIDR.Contains(b.CIDR.Addr()) && !c.Forbids(b.CIDR) {
			out = append(out, b.CIDR.Masked())
		}
	}
	return out
}

// needs reports whether a prefix covers what this node depends on.
func (c *Covered) needs(p netip.Prefix) bool {
	return p.Bits() == 0 || overlapping(everywhere, p, false) != "" || overlapping(c.own, p, false) != ""
}

// Forbids reports whether nothing may be routed to a prefix: it covers what this node depends on,
// or another node's address.
func (c *Covered) Forbids(p netip.Prefix) bool {
	return c.needs(p) || overlapping(c.others, p, true) != ""
}

// InUse reports whether a pool has a block, or a pod of this node an address of it.
func InUse(c *View, p *model.Pool) bool {
	for _, b := range c.Blocks {
		if b.CIDR.IsValid() && p.CIDR.Overlaps(b.CIDR) {
			return true
		}
	}
	for a := range c.Local.Endpoints {
		if p.CIDR.Contains(a) {
			return true
		}
	}
	return false
}

// PoolOverlap is a pool that covers what nodes need.
type PoolOverlap struct {
	Pool string
	CIDR netip.Prefix
	What string
	// Gives says that nodes go on giving addresses of it: it had blocks before.
	Gives bool
}

// PoolOverlaps returns those of a cluster.
func PoolOverlaps(all *model.Cluster) []PoolOverlap {
	c := ViewOf(all)
	c.Covered = CoveredBy(c)
	return PoolOverlapsIn(c)
}

// PoolOverlapsIn returns those of a view. Another CNI plugin's pools may be the nodes' own network:
// they only say which addresses pods may have, and nothing is routed by one that covers nodes.
func PoolOverlapsIn(c *View) []PoolOverlap {
	if c.Settings.Chained {
		return nil
	}
	var out []PoolOverlap
	for _, p := range c.Pools {
		if !p.CIDR.IsValid() {
			continue
		}
		if what := c.Covered.Overlap(p); what != "" {
			out = append(out, PoolOverlap{Pool: p.Name, CIDR: p.CIDR, What: what,
				Gives: p.LoadBalancer && !p.Workload || !c.Covered.needs(p.CIDR) && InUse(c, p)})
		}
	}
	slices.SortFunc(out, func(a, b PoolOverlap) int { return cmp.Compare(a.Pool, b.Pool) })
	return out
}
