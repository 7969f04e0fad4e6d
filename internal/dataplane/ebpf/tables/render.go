// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nodestate"
)

// The functions of this file turn a state's tables into the contents of maps. They are pure. Each
// takes what is of its family, and leaves the rest out.

func renderAddrs[A abi.Address](s *nodestate.State, ifindex func(nodestate.Addr) int) iter.Seq2[A, abi.AddrValue[A]] {
	named := s.Names.SetsWithNames()
	return func(yield func(A, abi.AddrValue[A]) bool) {
		for addr, a := range s.Addrs {
			if !abi.Carries[A](addr) {
				continue
			}
			v := renderAddr[A](a, isStaged(s, addr), s.Queued(a), ifindex)
			if a.Kind == nodestate.AddrEndpoint {
				v.Flags |= uint8(abi.FlagIf(named[a.Egress.Set], abi.AddrNames) | abi.FlagIf(named[s.Staged[addr].Egress.Set], abi.AddrStagedNames))
			}
			if !yield(abi.ToAddr[A](addr), v) {
				return
			}
		}
	}
}

func renderAddr[A abi.Address](a nodestate.Addr, staged, queued bool, ifindex func(nodestate.Addr) int) abi.AddrValue[A] {
	v := abi.AddrValue[A]{
		Kind: uint8(a.Kind), Mac: a.MAC,
		IngressSet: uint64(a.Ingress.Set), EgressSet: uint64(a.Egress.Set),
		IngressRule: uint32(a.Ingress.Rule), EgressRule: uint32(a.Egress.Rule),
	}
	if a.Node.IsValid() {
		v.Node = abi.ToAddr[A](a.Node)
	}
	if a.Kind == nodestate.AddrEndpoint {
		v.Ifindex = uint32(ifindex(a))
	}
	v.Flags = uint8(abi.FlagIf(a.NATOutgoing, abi.AddrNATOutgoing) | abi.FlagIf(a.Gateways && a.Kind == nodestate.AddrEndpoint, abi.AddrGateways) | abi.FlagIf(a.SameLink, abi.AddrSameLink) |
		abi.FlagIf(a.Tunnel, abi.AddrTunnel) | abi.FlagIf(a.IPIP, abi.AddrIPIP) | abi.FlagIf(a.NoIPIP, abi.AddrNoIPIP) | abi.FlagIf(a.Learned, abi.AddrLearned) | abi.FlagIf(a.Primary, abi.AddrPrimary) | abi.FlagIf(a.NodePorts, abi.AddrNodePorts) | abi.FlagIf(a.KeepSource, abi.AddrKeepSource) | abi.FlagIf(staged, abi.AddrStaged) | abi.FlagIf(queued, abi.AddrQueue))
	return v
}

// isStaged reports whether the events of an address report what staged policies would say.
func isStaged(s *nodestate.State, addr netip.Addr) bool {
	_, ok := s.Staged[addr]
	return ok && s.Addrs[addr].Kind == nodestate.AddrEndpoint
}

func renderStaged[A abi.Address](s *nodestate.State) iter.Seq2[A, abi.WeirStagedValue] {
	return func(yield func(A, abi.WeirStagedValue) bool) {
		for addr, v := range s.Staged {
			value := abi.WeirStagedValue{IngressSet: uint64(v.Ingress.Set), EgressSet: uint64(v.Egress.Set),
				IngressRule: uint32(v.Ingress.Rule), EgressRule: uint32(v.Egress.Rule)}
			if abi.Carries[A](addr) && isStaged(s, addr) && !yield(abi.ToAddr[A](addr), value) {
				return
			}
		}
	}
}

func renderRoutes[A abi.Address](s *nodestate.State) iter.Seq2[abi.PrefixKey[A], abi.RouteValue[A]] {
	return func(yield func(abi.PrefixKey[A], abi.RouteValue[A]) bool) {
		for p, r := range s.Routes {
			if !abi.Carries[A](p.Addr()) {
				continue
			}
			v := abi.RouteValue[A]{Flags: abi.FlagIf(r.Pool, abi.RoutePool) | abi.FlagIf(r.Node.IsValid(), abi.RouteRemote) | abi.FlagIf(r.Local, abi.RouteLocal) |
				abi.FlagIf(r.Tunnel, abi.RouteTunnel) | abi.FlagIf(r.IPIP, abi.RouteIPIP) | abi.FlagIf(r.Learned, abi.RouteLearned) | abi.FlagIf(r.SameLink, abi.RouteSameLink)}
			if r.Node.IsValid() {
				v.Node = abi.ToAddr[A](r.Node)
			}
			if !yield(abi.ToPrefix[A](p), v) {
				return
			}
		}
	}
}

func renderRanges[A abi.Address](s *nodestate.State) iter.Seq2[abi.RangeKey[A], uint8] {
	return func(yield func(abi.RangeKey[A], uint8) bool) {
		for id, list := range s.SourceRanges.All() {
			for _, p := range list {
				if abi.Carries[A](p.Addr()) && !yield(abi.ToRange[A](id, p), 1) {
					return
				}
			}
		}
	}
}

// renderSources makes what pods may send from beside their own addresses, and inside of it what
// they may not.
func renderSources[A abi.Address](s *nodestate.State, ifindex func(nodestate.Addr) int) iter.Seq2[abi.SourceKey[A], A] {
	out := map[abi.SourceKey[A]]A{}
	for own, prefixes := range s.Sources {
		a := s.Addrs[own]
		if !abi.Carries[A](own) || a.Kind != nodestate.AddrEndpoint || a.Gateways {
			continue
		}
		by := ifindex(a)
		for _, p := range prefixes {
			without, whole := s.SourceParts(p)
			if whole {
				continue
			}
			out[abi.ToSource[A](by, p)] = abi.ToAddr[A](own)
			for _, n := range without {
				var nobody A
				out[abi.ToSource[A](by, n)] = nobody
			}
		}
	}
	return maps.All(out)
}

// readSources is the reverse of renderSources, as far as the map tells.
func (t *familyTables[A]) readSources(s *nodestate.State) {
	var nobody A
	for k, own := range t.sources.Tracker.All() {
		if own != nobody {
			a := abi.FromAddr(own)
			s.Sources[a] = append(s.Sources[a], abi.FromSource(k))
			slices.SortFunc(s.Sources[a], netip.Prefix.Compare)
		}
	}
}

func renderFloating[A abi.Address](s *nodestate.State) iter.Seq2[A, A] {
	return func(yield func(A, A) bool) {
		for a, to := range s.Floating {
			if abi.Carries[A](a) && !yield(abi.ToAddr[A](a), abi.ToAddr[A](to)) {
				return
			}
		}
	}
}

func renderPeers[A abi.Address](s *nodestate.State) iter.Seq2[A, uint64] {
	return func(yield func(A, uint64) bool) {
		for a, c := range s.Peers.All() {
			if abi.Carries[A](a) && !yield(abi.ToAddr[A](a), uint64(c)) {
				return
			}
		}
	}
}

func renderPeerCIDRs[A abi.Address](s *nodestate.State) iter.Seq2[abi.PrefixKey[A], uint64] {
	return func(yield func(abi.PrefixKey[A], uint64) bool) {
		for p, c := range s.PeerCIDRs {
			if abi.Carries[A](p.Addr()) && !yield(abi.ToPrefix[A](p), uint64(c)) {
				return
			}
		}
	}
}

func renderDSROptOut[A abi.Address](s *nodestate.State) iter.Seq2[abi.PrefixKey[A], uint8] {
	return func(yield func(abi.PrefixKey[A], uint8) bool) {
		for _, p := range s.Settings.DSROptOut {
			if abi.Carries[A](p.Addr()) && !yield(abi.ToPrefix[A](p), 1) {
				return
			}
		}
	}
}

func renderPolicy(s *nodestate.State) iter.Seq2[abi.WeirPolicyKey, abi.WeirPolicyValue] {
	return func(yield func(abi.WeirPolicyKey, abi.WeirPolicyValue) bool) {
		for k, v := range s.Policy.All() {
			if !yield(toPolicyKey(k), toPolicyValue(v)) {
				return
			}
		}
	}
}

func toPolicyKey(k nodestate.PolicyKey) abi.WeirPolicyKey {
	key := abi.WeirPolicyKey{Set: uint64(k.Set), Peer: uint64(k.Peer), Port: k.Port, Proto: uint8(k.Proto), Len: k.Len, Sources: k.Sources}
	if k.Head {
		key.Head = 1
	}
	return key
}

func toPolicyValue(v nodestate.PolicyValue) abi.WeirPolicyValue {
	value := abi.WeirPolicyValue{Rule: uint32(v.Rule), Lens: v.Lens, Protos: v.Protos, Sources: v.Sources}
	if v.Allow {
		value.Verdict |= abi.PolicyAllow
	}
	if v.Log {
		value.Verdict |= abi.PolicyLog
	}
	if v.Undecided {
		value.Verdict |= abi.PolicyUndecided
	}
	return value
}

func renderClients[A abi.Address](s *nodestate.State) iter.Seq2[uint64, A] {
	return func(yield func(uint64, A) bool) {
		for cookie, client := range s.Clients {
			for _, a := range []netip.Addr{client.IPv4, client.IPv6} {
				if a.IsValid() && abi.Carries[A](a) && !yield(cookie, abi.ToAddr[A](a)) {
					return
				}
			}
		}
	}
}

// renderLinks returns the MAC addresses of other nodes' uplinks. Where two addresses of one node
// carry the same, both lead to its primary address.
func renderLinks[A abi.Address](s *nodestate.State) map[abi.WeirLinkKey]A {
	links := map[abi.WeirLinkKey]A{}
	for addr, a := range s.Addrs {
		if a.Kind != nodestate.AddrNode || a.MAC == [6]byte{} || !abi.Carries[A](addr) {
			continue
		}
		node := addr
		if a.Node.IsValid() {
			node = a.Node
		}
		key := abi.WeirLinkKey{Mac: a.MAC}
		if have, ok := links[key]; !ok || abi.FromAddr(have).Compare(node) > 0 {
			links[key] = abi.ToAddr[A](node)
		}
	}
	return links
}

func renderAnnounced[A abi.Address](s *nodestate.State) iter.Seq2[A, uint8] {
	return func(yield func(A, uint8) bool) {
		for a := range s.Announced {
			if abi.Carries[A](a) && !yield(abi.ToAddr[A](a), 1) {
				return
			}
		}
	}
}
