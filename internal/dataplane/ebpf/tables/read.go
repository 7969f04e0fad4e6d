// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/dataplane/ebpf/services"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// ReadState reads maps back as a state: what Apply would have to be given to write them. Names of
// interfaces, owners, the words of rules, and settings other than those that programs see are not
// in the maps and stay empty. A backend list with a hole is an error.
func ReadState(families ...*object.Collection) (*nodestate.State, error) {
	t := New(families...)
	if err := t.Load(); err != nil {
		return nil, err
	}
	s := nodestate.New()
	readPolicy(s, t)
	readHosts(s, t)
	t.names.read(s)
	var errs []error
	t.each(func(f Family) { errs = append(errs, f.read(s)) })
	return s, errors.Join(errs...)
}

// ReadPolicyState reads back what of the maps decides about policy.
func ReadPolicyState(families ...*object.Collection) (*nodestate.State, error) {
	s, t := nodestate.New(), New(families...)
	errs := []error{t.policy.Load(), t.hosts.Load(), t.names.load()}
	readPolicy(s, t)
	readHosts(s, t)
	t.names.read(s)
	for _, f := range t.families {
		errs = append(errs, f.readPolicy(s))
	}
	if !t.families[0].evaluatesHosts() {
		clear(s.HostEndpoints)
	}
	return s, errors.Join(errs...)
}

func (t *familyTables[A]) read(s *nodestate.State) error {
	readSettings(s, t.current)
	t.readEvaluated(s)
	for k, v := range t.routes.Tracker.All() {
		r := nodestate.Route{
			Pool: v.Flags&abi.RoutePool != 0, Local: v.Flags&abi.RouteLocal != 0,
			Tunnel: v.Flags&abi.RouteTunnel != 0, IPIP: v.Flags&abi.RouteIPIP != 0, Learned: v.Flags&abi.RouteLearned != 0, SameLink: v.Flags&abi.RouteSameLink != 0,
		}
		if v.Flags&abi.RouteRemote != 0 {
			r.Node = abi.FromAddr(v.Node)
		}
		s.Routes[netip.PrefixFrom(abi.FromAddr(k.Addr), int(k.Len))] = r
	}
	for k := range t.dsrOptOut.Tracker.All() {
		s.Settings.DSROptOut = append(s.Settings.DSROptOut, netip.PrefixFrom(abi.FromAddr(k.Addr), int(k.Len)))
	}
	slices.SortFunc(s.Settings.DSROptOut, netip.Prefix.Compare)
	for k, v := range t.staged.Tracker.All() {
		s.Staged[abi.FromAddr(k)] = nodestate.StagedIsolation{
			Ingress: nodestate.Isolation{Set: nodestate.SetID(v.IngressSet), Rule: nodestate.RuleID(v.IngressRule)},
			Egress:  nodestate.Isolation{Set: nodestate.SetID(v.EgressSet), Rule: nodestate.RuleID(v.EgressRule)}}
	}
	for k, v := range t.clients.Tracker.All() {
		s.Clients[k] = s.Clients[k].With(abi.FromAddr(v))
	}
	t.egress.read(s)
	t.readSources(s)
	for k, to := range t.floating.Tracker.All() {
		s.Floating[abi.FromAddr(k)] = abi.FromAddr(to)
	}
	t.readRanges(s)
	for k := range t.announced.Tracker.All() {
		s.Announced[abi.FromAddr(k)] = true
	}
	return t.services.Read(s)
}

// readPolicy loads and reads the maps that policy is in.
func (t *familyTables[A]) readPolicy(s *nodestate.State) error {
	var zero uint32
	err := errors.Join(t.settings.Lookup(&zero, unsafe.Pointer(&t.current)), t.addrs.Load(), t.peers.Load(), t.peerCIDRs.Load())
	readSettings(s, t.current)
	t.readEvaluated(s)
	return err
}

func (t *familyTables[A]) readEvaluated(s *nodestate.State) {
	for k, v := range t.addrs.Tracker.All() {
		s.Addrs[abi.FromAddr(k)] = readAddr(v)
	}
	for k, v := range t.peers.Tracker.All() {
		s.Peers.Set(abi.FromAddr(k), nodestate.Class(v))
	}
	for k, v := range t.peerCIDRs.Tracker.All() {
		s.PeerCIDRs[netip.PrefixFrom(abi.FromAddr(k.Addr), int(k.Len))] = nodestate.Class(v)
	}
}

func readPolicy(s *nodestate.State, t *Node) {
	for k, v := range t.policy.Tracker.All() {
		s.Policy.Set(nodestate.PolicyKey{
			Set: nodestate.SetID(k.Set), Peer: nodestate.Class(k.Peer), Head: k.Head != 0,
			Proto: model.Protocol(k.Proto), Port: k.Port, Len: k.Len, Sources: k.Sources,
		}, nodestate.PolicyValue{Allow: v.Verdict&abi.PolicyAllow != 0, Log: v.Verdict&abi.PolicyLog != 0, Undecided: v.Verdict&abi.PolicyUndecided != 0, Rule: nodestate.RuleID(v.Rule), Protos: v.Protos, Lens: v.Lens, Sources: v.Sources})
	}
}

func (t *familyTables[A]) readRanges(s *nodestate.State) {
	lists := map[nodestate.Frontend][]netip.Prefix{}
	for k := range t.ranges.Tracker.All() {
		id := services.FrontendOf(k.Id)
		lists[id] = append(lists[id], netip.PrefixFrom(abi.FromAddr(k.Addr), int(k.Len)-abi.RangeBits[A]()))
	}
	for id, list := range lists {
		slices.SortFunc(list, netip.Prefix.Compare)
		s.SourceRanges.Set(id, list)
	}
}

func readSettings[A abi.Address](s *nodestate.State, v abi.Settings[A]) {
	s.Settings.DSR, s.Settings.HostNAT = v.Flags&abi.SetDSR != 0, v.Flags&abi.SetHostNAT != 0
	s.Settings.VXLANFromPods, s.Settings.IPIPFromPods = v.Flags&abi.SetVXLANFromPods != 0, v.Flags&abi.SetIPIPFromPods != 0
	s.Settings.RPFStrict = v.Flags&abi.SetRPFStrict != 0
	s.Settings.Chained = v.Flags&abi.SetChained != 0
	s.Settings.Gateways = v.Flags&abi.SetGateways != 0
	s.Settings.Floating = v.Flags&abi.SetFloating != 0
	s.Settings.ToHost = model.ToHostAccept
	switch {
	case v.Flags&abi.SetToHostDrop != 0:
		s.Settings.ToHost = model.ToHostDrop
	case v.Flags&abi.SetToHostReturn != 0:
		s.Settings.ToHost = model.ToHostReturn
	}
	s.Settings.ConnectTime = model.ConnectTimeDisabled
	switch {
	case v.Flags&abi.SetCTLBUDP != 0:
		s.Settings.ConnectTime = model.ConnectTimeEnabled
	case v.Flags&abi.SetCTLBTCP != 0:
		s.Settings.ConnectTime = model.ConnectTimeTCP
	}
	s.Settings.SNATFirst, s.Settings.SNATLast = v.SnatMin, v.SnatMax
	if abi.Carries[A](netip.IPv6Unspecified()) {
		s.Settings.IPv6, s.Settings.Node6 = true, readNode(v.Node)
		return
	}
	s.Settings.Node = readNode(v.Node)
	s.Settings.Tunnel = nodestate.Tunnel{Port: abi.Be16(v.TunnelPort), VNI: v.Vni, MTU: int(v.TunnelMtu)}
	s.Settings.IPIP = nodestate.IPIP{Accept: v.Flags&abi.SetIPIP != 0, HandOn: v.Flags&abi.SetIPIPNodes != 0, MTU: int(v.IpipMtu)}
}

func readAddr[A abi.Address](v abi.AddrValue[A]) nodestate.Addr {
	a := nodestate.Addr{
		Kind:        nodestate.AddrKind(v.Kind),
		Primary:     v.Flags&abi.AddrPrimary != 0 && v.Kind == uint8(nodestate.AddrHost),
		Learned:     v.Flags&abi.AddrLearned != 0 && v.Kind == uint8(nodestate.AddrPod),
		NATOutgoing: v.Flags&abi.AddrNATOutgoing != 0,
		Gateways:    v.Flags&abi.AddrGateways != 0 && v.Kind == uint8(nodestate.AddrEndpoint),
		SameLink:    v.Flags&abi.AddrSameLink != 0 && v.Kind != uint8(nodestate.AddrEndpoint),
		Tunnel:      v.Flags&abi.AddrTunnel != 0 && v.Kind != uint8(nodestate.AddrEndpoint),
		IPIP:        v.Flags&abi.AddrIPIP != 0 && v.Kind == uint8(nodestate.AddrPod),
		NoIPIP:      v.Flags&abi.AddrNoIPIP != 0 && v.Kind == uint8(nodestate.AddrNode),
		NodePorts:   v.Flags&abi.AddrNodePorts != 0,
		KeepSource:  v.Flags&abi.AddrKeepSource != 0,
		MAC:         v.Mac, IfIndex: int(v.Ifindex),
		Ingress: nodestate.Isolation{Set: nodestate.SetID(v.IngressSet), Rule: nodestate.RuleID(v.IngressRule)},
		Egress:  nodestate.Isolation{Set: nodestate.SetID(v.EgressSet), Rule: nodestate.RuleID(v.EgressRule)},
	}
	a.Node = readNode(v.Node)
	return a
}

// readNode reads a node's address; the zero value is none.
func readNode[A abi.Address](v A) netip.Addr {
	if none := *new(A); v == none {
		return netip.Addr{}
	}
	return abi.FromAddr(v)
}
