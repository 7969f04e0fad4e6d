// SPDX-License-Identifier: Apache-2.0

package service

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Reachable yields the addresses of Services that are in force on this node, those of one family
// and Service once: what was refused, or is another Service's, is not among them.
func (s *Services) Reachable(c *cluster.View, frontends nodestate.Map[nodestate.Frontend, nodestate.Service]) iter.Seq[cluster.ServiceAddr] {
	return func(yield func(cluster.ServiceAddr) bool) {
		for src, ports := range s.ports {
			svc := c.Services[src.Name]
			if src.HostPorts || svc == nil {
				continue
			}
			seen := map[netip.Addr]bool{}
			for _, p := range ports {
				for _, f := range p.frontends {
					if v, in := frontends.Get(f); !in || v.ID != p.id || f.Addr.IsUnspecified() || seen[f.Addr] {
						continue
					}
					seen[f.Addr] = true
					a := cluster.ServiceAddr{Addr: f.Addr, Kind: cluster.BalancerIP, Local: svc.ExternalLocal}
					switch {
					case slices.Contains(p.internal, f):
						a.Kind = cluster.ClusterIP
					case !slices.Contains(svc.LBIPs, f.Addr):
						a.Kind = cluster.ExternalIP
					}
					a.Here, a.Ready = s.ready(c, svc, cluster.Family(f.Addr))
					if !yield(a) {
						return
					}
				}
			}
		}
	}
}

// ready reports whether a Service has ready endpoints in a family, on this node and anywhere.
func (s *Services) ready(c *cluster.View, svc *model.Service, fam int) (here, anywhere bool) {
	for _, name := range s.slices[svc.Name] {
		sl := c.Slices[name]
		if sl == nil || !cluster.IsAuthoritative(c.Cluster, sl) {
			continue
		}
		for i := range sl.Endpoints {
			e := &sl.Endpoints[i]
			if !e.Ready && !svc.PublishNotReady {
				continue
			}
			for _, a := range c.CarriedOf(e.Addrs, fam) {
				local := e.Node == c.Local.Node
				if local && s.stale.isStale(a) {
					continue
				}
				here, anywhere = here || local, true
			}
		}
	}
	return here, anywhere
}
