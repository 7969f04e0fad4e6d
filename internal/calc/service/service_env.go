// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// ZoneLabel names the zone of a node (KEP-17, well-known labels).
const ZoneLabel = "topology.kubernetes.io/zone"

// serviceEnv are what all services depend on alongside themselves and their endpoints.
type serviceEnv struct {
	zone     string         // of this node; empty when it has none
	node     []netip.Addr   // this node's addresses in the API
	host     []netip.Addr   // this node's addresses on its interfaces
	excluded []netip.Prefix // bpfExcludeCIDRsFromNAT
}

func serviceEnvOf(c *cluster.View) serviceEnv {
	s := serviceEnv{excluded: c.Settings.ExcludeFromNAT, host: c.Local.HostAddrs}
	if own := c.Nodes[c.Local.Node]; own != nil {
		s.zone, s.node = own.Labels[ZoneLabel], own.Addrs
	}
	return s
}

func (s serviceEnv) equal(o serviceEnv) bool {
	return s.zone == o.zone && slices.Equal(s.node, o.node) && slices.Equal(s.host, o.host) && slices.Equal(s.excluded, o.excluded)
}

// sourceRanges returns the source ranges of one family. Where they admit this node, they admit the
// load balancer's own addresses too: a node that has one on an interface sends from it to itself,
// as kube-proxy found.
func (s serviceEnv) sourceRanges(c *cluster.View, svc *model.Service, lb []netip.Addr, fam int) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range svc.SourceRanges {
		if c.CarriedPrefix(p) && cluster.Family(p.Addr()) == fam {
			out = append(out, p.Masked())
		}
	}
	if slices.ContainsFunc(s.node, func(a netip.Addr) bool { return model.Within(out, a) }) {
		for _, a := range lb {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// onHost reports whether one of the backends is one of this node's own addresses.
func (s serviceEnv) onHost(list []nodestate.Backend) bool {
	return slices.ContainsFunc(list, func(b nodestate.Backend) bool { return slices.Contains(s.host, b.Addr) })
}

// restrict makes the frontends on the load balancer's addresses answer these ranges alone.
func (p *port) restrict(ranges []netip.Prefix, lb []netip.Addr) {
	if len(lb) == 0 {
		return
	}
	p.ranges = ranges
	for _, a := range lb {
		p.limited = append(p.limited, nodestate.Frontend{Addr: a, Port: p.id.Port, Proto: p.id.Proto})
	}
}
