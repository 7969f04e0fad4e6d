// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/nodestate"
)

func sixFrontend(f nodestate.Frontend) nodestate.Frontend {
	f.Addr = six(f.Addr)
	return f
}

func sixState(s *nodestate.State) *nodestate.State {
	out := nodestate.New()
	out.Settings = s.Settings
	out.Settings.Node, out.Settings.Node6, out.Settings.IPv6 = netip.Addr{}, six(s.Settings.Node), true
	out.Settings.DSROptOut = sixes(s.Settings.DSROptOut)
	if out.Settings.Tunnel.MTU > 0 { // what fits after the headers is the same
		out.Settings.Tunnel.MTU += 40
	}
	out.Settings.PoolRoutes = map[netip.Prefix]int{}
	for p, mtu := range s.Settings.PoolRoutes {
		out.Settings.PoolRoutes[sixPrefix(p)] = mtu
	}
	out.Settings.NodeRoutes = map[netip.Prefix]int{}
	for p, mtu := range s.Settings.NodeRoutes {
		out.Settings.NodeRoutes[sixPrefix(p)] = mtu
	}
	for a, v := range s.Addrs {
		v.Node = six(v.Node)
		out.Addrs[six(a)] = v
	}
	for k, list := range s.Gateways {
		out.Gateways[nodestate.GatewayKey{Client: six(k.Client), Group: k.Group}] = sixAddrs(list)
	}
	for a, to := range s.Floating {
		out.Floating[six(a)] = six(to)
	}
	for a, list := range s.Sources {
		out.Sources[six(a)] = nil
		for _, p := range list {
			out.Sources[six(a)] = append(out.Sources[six(a)], sixPrefix(p))
		}
	}
	for a, id := range s.Egress.Policies {
		out.Egress.Policies[six(a)] = id
	}
	for to, group := range s.Egress.Rules {
		out.Egress.Rules[nodestate.EgressDestination{Policy: to.Policy, CIDR: sixPrefix(to.CIDR)}] = group
	}
	out.Egress.Names, out.Egress.Missing = s.Egress.Names, s.Egress.Missing
	for p, r := range s.Routes {
		r.Node = six(r.Node)
		out.Routes[sixPrefix(p)] = r
	}
	for f, v := range s.Frontends.All() {
		v.ID = sixFrontend(v.ID)
		out.Frontends.Set(sixFrontend(f), v)
	}
	for id, list := range s.Backends.All() {
		list = slices.Clone(list)
		for i := range list {
			list[i].Addr = six(list[i].Addr)
		}
		out.Backends.Set(sixFrontend(id), list)
	}
	for id, list := range s.SourceRanges.All() {
		out.SourceRanges.Set(sixFrontend(id), sixes(list))
	}
	for a, c := range s.Peers.All() {
		out.Peers.Set(six(a), c)
	}
	for a, v := range s.Staged {
		out.Staged[six(a)] = v
	}
	for p, c := range s.PeerCIDRs {
		out.PeerCIDRs[sixPrefix(p)] = c
	}
	out.Rules = s.Rules
	mirrorPolicy(&out.Policy, s.Policy)
	for k, h := range s.HostEndpoints {
		if !k.IPv6 { // the mirror's counterpart of what is said of IPv4
			out.HostEndpoints[nodestate.HostInterface{IfIndex: k.IfIndex, IPv6: true}] = h
		}
	}
	for k, h := range s.HostStaged {
		if !k.IPv6 {
			out.HostStaged[nodestate.HostInterface{IfIndex: k.IfIndex, IPv6: true}] = h
		}
	}
	for a, v := range s.Announced {
		out.Announced[six(a)] = v
	}
	for cookie, client := range s.Clients {
		out.Clients[cookie] = nodestate.Client{IPv6: six(client.IPv4)}
	}
	return out
}
