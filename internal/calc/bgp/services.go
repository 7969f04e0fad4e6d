// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// OfServices reports whether addresses of Services are advertised.
func OfServices(c *cluster.View) bool { return len(c.AdvertisedRanges()) > 0 }

// services adds the addresses of Services: ranges as they are, unless they are one address, and
// on top of them those of Services that not every node is to be sent packets for. All nodes serve
// them, so what others advertise is no route of this one.
func (x *sessions) services(out *nodestate.BGP, addrs iter.Seq[cluster.ServiceAddr]) {
	ranges := x.c.AdvertisedRanges()
	out.Keep, out.Reflect = append(out.Keep, ranges...), append(out.Reflect, ranges...)
	if _, excluded := x.own.Labels[model.LabelNoBalancers]; excluded || len(ranges) == 0 {
		return
	}
	single := func(p netip.Prefix) bool { return p.IsSingleIP() }
	var whole []netip.Prefix
	if whole = append(whole, x.conf.ClusterIPs...); !x.conf.BalancersSingly {
		whole = append(whole, x.conf.BalancerIPs...)
	}
	for _, p := range slices.DeleteFunc(append(whole, x.conf.ExternalIPs...), single) {
		if x.c.CarriedPrefix(p) {
			out.Advertise = append(out.Advertise, p)
		}
	}
	of := map[cluster.ServiceKind][]netip.Prefix{cluster.ClusterIP: x.conf.ClusterIPs, cluster.ExternalIP: x.conf.ExternalIPs, cluster.BalancerIP: x.conf.BalancerIPs}
	nodes := map[netip.Addr]bool{} // a Service may name them, but they are the nodes'
	for _, n := range x.c.Nodes {
		for _, a := range n.Addrs {
			nodes[a] = true
		}
	}
	for s := range addrs {
		if !x.c.Carried(s.Addr) || !model.Within(of[s.Kind], s.Addr) || nodes[s.Addr] {
			continue
		}
		alone := s.Kind == cluster.BalancerIP && x.conf.BalancersSingly ||
			slices.ContainsFunc(of[s.Kind], func(p netip.Prefix) bool { return single(p) && p.Addr() == s.Addr })
		if s.Local && s.Here || !s.Local && alone && s.Ready {
			out.Advertise = append(out.Advertise, netip.PrefixFrom(s.Addr, s.Addr.BitLen()))
		}
	}
}

// gracefulShutdown asks routers to prefer every other way (RFC 8326).
const gracefulShutdown = "65535:0"

// tags says which communities the prefixes of out.Advertise get: those of prefixAdvertisements
// that they are within, of the node's own configuration where that has any, and of a node that is
// drained or goes that it does.
func (x *sessions) tags(out *nodestate.BGP) {
	conf, names := &x.conf, maps.Clone(x.conf.Communities)
	if own := x.c.BGPConfigs["node."+x.own.Name]; own != nil {
		if len(own.Tagged) > 0 {
			conf = own
		}
		if names == nil {
			names = map[string]string{}
		}
		maps.Copy(names, own.Communities)
	}
	tagged := map[netip.Prefix][]string{}
	if x.own.Cordoned || x.own.Leaving {
		for _, p := range out.Advertise {
			tagged[p] = []string{gracefulShutdown}
		}
	}
	for _, t := range conf.Tagged {
		var values []string
		for _, text := range t.Communities {
			switch value, known := names[text]; {
			case strings.Contains(text, ":"):
				values = append(values, text)
			case known:
				values = append(values, value)
			default:
				out.UnknownCommunities = append(out.UnknownCommunities, text)
			}
		}
		for _, p := range out.Advertise {
			if t.CIDR.Addr().Is4() == p.Addr().Is4() && t.CIDR.Bits() <= p.Bits() && t.CIDR.Contains(p.Addr()) && len(values) > 0 {
				tagged[p] = append(tagged[p], values...)
			}
		}
	}
	for _, p := range out.Advertise {
		if list := tagged[p]; list != nil {
			slices.Sort(list)
			out.Tags = append(out.Tags, nodestate.BGPTag{Prefix: p, Communities: slices.Compact(list)})
		}
	}
	slices.Sort(out.UnknownCommunities)
	out.UnknownCommunities = slices.Compact(out.UnknownCommunities)
}
