// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func settings() nodestate.Settings {
	d := model.DefaultSettings()
	return nodestate.Settings{
		Node: addr(172, 31, 1, 207), ConnectTime: model.ConnectTimeTCP, SNATFirst: 20000, SNATLast: 29999,
		Tunnel: nodestate.Tunnel{Port: 4789, VNI: 4096, MTU: 1450}, DataIfaces: d.DataIfaces, MaxFlows: d.MaxFlows, Timeouts: d.Timeouts,
	}
}

// Random returns a state made from a seed, with endpoints behind the given interfaces. It is well
// formed as calc makes it: sorted backends without duplicates, ids that exist.
func Random(seed uint64, interfaces []Interface) *nodestate.State {
	r := rand.New(rand.NewPCG(seed, 99))
	s := nodestate.New()
	s.Settings = settings()
	s.Settings.DSR, s.Settings.HostNAT = r.IntN(2) == 0, r.IntN(2) == 0
	for i := range r.IntN(3) {
		s.Settings.DSROptOut = append(s.Settings.DSROptOut, netip.PrefixFrom(addr(192, 168, byte(i), 0), 24))
	}
	s.Settings.ConnectTime = []model.ConnectTimeLB{model.ConnectTimeTCP, model.ConnectTimeEnabled, model.ConnectTimeDisabled}[r.IntN(3)]
	randomAddrs(r, s, interfaces)
	for i := range r.IntN(4) {
		s.Announced[addr(192, 0, 2, byte(i*r.IntN(3)))] = true
	}
	randomServices(r, s)
	randomPolicy(r, s)
	if r.IntN(2) == 0 {
		addIPv6(r, s)
	}
	return s
}

func randomAddrs(r *rand.Rand, s *nodestate.State, interfaces []Interface) {
	s.Addrs[s.Settings.Node] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true, NodePorts: r.IntN(2) == 0}
	for i, ifc := range interfaces {
		if r.IntN(4) == 0 {
			continue
		}
		a := nodestate.Addr{
			Kind: nodestate.AddrEndpoint, NATOutgoing: r.IntN(2) == 0, MAC: [6]byte{2, 0, 0, 0, 0, byte(i + 1)},
			Interface: ifc.Name, IfIndex: ifc.Index, Owner: model.Name{Namespace: "default", Name: ifc.Name},
		}
		if r.IntN(2) == 0 {
			a.Ingress = nodestate.Isolation{Set: nodestate.SetID(1 + r.IntN(5)), Rule: 7}
		}
		s.Addrs[addr(10, 244, 1, byte(i+2))] = a
		s.Clients[r.Uint64()>>1] = nodestate.Client{IPv4: addr(10, 244, 1, byte(i+2))}
	}
	for i := range r.IntN(20) {
		node := addr(172, 31, 2, byte(i+1))
		s.Addrs[node] = nodestate.Addr{Kind: nodestate.AddrNode, NodePorts: r.IntN(2) == 0, KeepSource: r.IntN(2) == 0, SameLink: r.IntN(2) == 0, MAC: [6]byte{2, 1, 0, 0, 0, byte(i + 1)}, Node: node}
		s.Routes[netip.PrefixFrom(addr(10, 244, 2, byte(i*8)), 29)] = nodestate.Route{Pool: true, Node: node, Tunnel: r.IntN(2) == 0, SameLink: r.IntN(2) == 0}
		if r.IntN(3) == 0 {
			s.Addrs[addr(10, 244, 3, byte(i))] = nodestate.Addr{Kind: nodestate.AddrPod, Node: node, Tunnel: r.IntN(2) == 0}
		}
	}
	s.Routes[netip.PrefixFrom(addr(10, 244, 0, 0), 16)] = nodestate.Route{Pool: true}
	s.Routes[netip.PrefixFrom(addr(10, 244, 1, 0), 26)] = nodestate.Route{Pool: true, Local: true}
}

func randomServices(r *rand.Rand, s *nodestate.State) {
	for i := range r.IntN(20) {
		proto := []model.Protocol{model.ProtocolTCP, model.ProtocolUDP}[r.IntN(2)]
		id := nodestate.Frontend{Addr: addr(10, 96, 0, byte(i+1)), Port: uint16(80 + r.IntN(3)), Proto: proto}
		svc := nodestate.Service{ID: id, Affinity: uint32(r.IntN(2) * 10800), Rule: nodestate.RuleID(i + 1)}
		svc.Maglev = r.IntN(3) == 0
		svc.Mode = []model.ExternalMode{"", model.ExternalModeTunnel, model.ExternalModeDSR}[r.IntN(3)]
		s.Frontends.Set(id, svc)
		if r.IntN(2) == 0 {
			svc.External, svc.LocalPolicy, svc.Restricted = true, r.IntN(2) == 0, r.IntN(2) == 0
			s.Frontends.Set(nodestate.Frontend{Addr: addr(0, 0, 0, 0), Port: uint16(30000 + i), Proto: proto}, svc)
		}
		if svc.Restricted {
			s.SourceRanges.Set(id, []netip.Prefix{netip.PrefixFrom(addr(10, byte(i), 0, 0), 16), netip.PrefixFrom(addr(172, 31, byte(i), 7), 32)})
		}
		var list []nodestate.Backend
		for _, n := range r.Perm(30)[:r.IntN(12)] {
			b := nodestate.Backend{Addr: addr(10, 244, byte(1+n%2), byte(n+2)), Port: 8080, Local: n%2 == 0}
			// A driver need not remember one of TCP without affinity that is in no list.
			b.Spare = n%5 == 0 && (b.Local || proto == model.ProtocolUDP)
			list = append(list, b)
		}
		slices.SortFunc(list, func(a, b nodestate.Backend) int { return a.Addr.Compare(b.Addr) })
		s.Backends.Set(id, list)
	}
}

func randomPolicy(r *rand.Rand, s *nodestate.State) {
	for i := range r.IntN(40) {
		s.Peers.Set(addr(10, 244, byte(r.IntN(4)), byte(i)), nodestate.Class(1+r.IntN(6)))
	}
	for i := range r.IntN(6) {
		s.PeerCIDRs[netip.PrefixFrom(addr(172, byte(i), 0, 0), 16)] = nodestate.Class(10 + i)
	}
	for set := range nodestate.SetID(6) {
		for class := range nodestate.Class(4) {
			if r.IntN(2) == 0 {
				continue
			}
			head := nodestate.PolicyValue{Rule: nodestate.RuleID(set), Allow: r.IntN(2) == 0, Log: r.IntN(4) == 0}
			if r.IntN(2) == 0 {
				head.Protos, head.Lens = 1, 1<<16
				s.Policy.Set(nodestate.PolicyKey{Set: set, Peer: class, Proto: model.ProtocolTCP, Port: uint16(r.IntN(1000)), Len: 16}, nodestate.PolicyValue{Allow: true, Rule: 5})
			}
			s.Policy.Set(nodestate.PolicyKey{Set: set, Peer: class, Head: true}, head)
		}
	}
}
