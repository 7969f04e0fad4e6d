// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// remotePrefixesOf are the prefixes and addresses that live on other nodes which marks can name,
// with their numbers. There are none where nothing may be handed on: policy with applyOnForward
// evaluates what passes the node by the backend, which the other node chooses, and a kube-proxy
// translates, as do the rules that one left.
func remotePrefixesOf(f table.Family, s *nodestate.State, n *marks.Numbers) map[netip.Prefix]int {
	out := map[netip.Prefix]int{}
	if expr.AppliesToForwarded(s, f.Six) || s.Settings.KubeProxy || s.Settings.ProxyRules {
		return out
	}
	add := func(p netip.Prefix, node netip.Addr) {
		if num, ok := n.Of(node); ok && f.Has(p.Addr()) {
			out[p] = num
		}
	}
	for p, r := range s.Routes {
		if r.Node.IsValid() {
			add(p.Masked(), r.Node)
		}
	}
	for a, v := range s.Addrs {
		switch v.Kind {
		case nodestate.AddrNode, nodestate.AddrPod:
			add(netip.PrefixFrom(a, a.BitLen()), v.Node)
		case nodestate.AddrHost, nodestate.AddrEndpoint: // here, whatever the block says
			if f.Has(a) {
				out[netip.PrefixFrom(a, a.BitLen())] = 0
			}
		}
	}
	return out
}

// home is the number of the node where an address lives; 0 = it is none that marks can name, or
// this one.
func (v *Follower) remoteNode(a netip.Addr) int {
	for bits := a.BitLen(); bits >= 0; bits-- {
		p, err := a.Prefix(bits)
		if err != nil {
			return 0
		}
		if num, ok := v.remotePrefixes[p]; ok {
			return num
		}
	}
	return 0
}

// remoteBackends are the homes of the backends that outside clients of a port may be handed on to.
func (v *Follower) remoteBackends(p *port) map[netip.AddrPort]int {
	open := false
	for _, svc := range p.faces {
		open = open || svc.External && !svc.LocalPolicy
	}
	if !open {
		return nil
	}
	out := map[netip.AddrPort]int{}
	for _, b := range p.cluster {
		if num := v.remoteNode(b.Addr()); num > 0 {
			out[b] = num
		}
	}
	return out
}

// handsOn reports whether there is anything to hand on.
func (p *port) handsOn() bool { return len(p.remote) > 0 }
