package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// readState reads maps back as a state: what Apply would have to be given to write them. Names of
// interfaces, owners, the words of rules, and settings other than those that programs see are not
// in the maps and stay empty. A backend list with a hole is an error.
func readState(families ...*loaded) (*nodestate.State, error) {
	t := newTables(families...)
	if err := t.load(); err != nil {
		return nil, err
	}
	s := nodestate.New()
	readPolicy(s, t)
	readHosts(s, t)
	var errs []error
	t.each(func(f family) { errs = append(errs, f.read(s)) })
	return s, errors.Join(errs...)
}

func (t *familyTables[A]) read(s *nodestate.State) error {
	readSettings(s, t.current)
	t.readEvaluated(s)
	for k, v := range t.routes.tracker.All() {
		r := nodestate.Route{
			Pool: v.Flags&routePool != 0, Local: v.Flags&routeLocal != 0,
			Tunnel: v.Flags&routeTunnel != 0, SameLink: v.Flags&routeSameLink != 0,
		}
		if v.Flags&routeRemote != 0 {
			r.Node = fromAddr(v.Node)
		}
		s.Routes[netip.PrefixFrom(fromAddr(k.Addr), int(k.Len))] = r
	}
	for k := range t.dsrOptOut.tracker.All() {
		s.Settings.DSROptOut = append(s.Settings.DSROptOut, netip.PrefixFrom(fromAddr(k.Addr), int(k.Len)))
	}
	slices.SortFunc(s.Settings.DSROptOut, netip.Prefix.Compare)
	for k, v := range t.staged.tracker.All() {
		s.Staged[fromAddr(k)] = nodestate.StagedIsolation{
			Ingress: nodestate.Isolation{Set: nodestate.SetID(v.IngressSet), Rule: nodestate.RuleID(v.IngressRule)},
			Egress:  nodestate.Isolation{Set: nodestate.SetID(v.EgressSet), Rule: nodestate.RuleID(v.EgressRule)}}
	}
	for k, v := range t.clients.tracker.All() {
		s.Clients[k] = s.Clients[k].With(fromAddr(v))
	}
	t.readRanges(s)
	for k := range t.announced.tracker.All() {
		s.Announced[fromAddr(k)] = true
	}
	return readServices(s, t.services)
}

// readPolicy loads and reads the maps that policy is in.
func (t *familyTables[A]) readPolicy(s *nodestate.State) error {
	var zero uint32
	err := errors.Join(t.settings.Lookup(&zero, unsafe.Pointer(&t.current)), t.addrs.load(), t.peers.load(), t.peerCIDRs.load())
	readSettings(s, t.current)
	t.readEvaluated(s)
	return err
}

func (t *familyTables[A]) readEvaluated(s *nodestate.State) {
	for k, v := range t.addrs.tracker.All() {
		s.Addrs[fromAddr(k)] = readAddr(v)
	}
	for k, v := range t.peers.tracker.All() {
		s.Peers.Set(fromAddr(k), nodestate.Class(v))
	}
	for k, v := range t.peerCIDRs.tracker.All() {
		s.PeerCIDRs[netip.PrefixFrom(fromAddr(k.Addr), int(k.Len))] = nodestate.Class(v)
	}
}

func readPolicy(s *nodestate.State, t *tables) {
	for k, v := range t.policy.tracker.All() {
		s.Policy.Set(nodestate.PolicyKey{
			Set: nodestate.SetID(k.Set), Peer: nodestate.Class(k.Peer), Head: k.Head != 0,
			Proto: model.Protocol(k.Proto), Port: k.Port, Len: k.Len, Sources: k.Sources,
		}, nodestate.PolicyValue{Allow: v.Verdict&policyAllow != 0, Log: v.Verdict&policyLog != 0, Undecided: v.Verdict&policyUndecided != 0, Rule: nodestate.RuleID(v.Rule), Protos: v.Protos, Lens: v.Lens, Sources: v.Sources})
	}
}

func (t *familyTables[A]) readRanges(s *nodestate.State) {
	lists := map[nodestate.Frontend][]netip.Prefix{}
	for k := range t.ranges.tracker.All() {
		id := readFrontend(k.Id)
		lists[id] = append(lists[id], netip.PrefixFrom(fromAddr(k.Addr), int(k.Len)-rangeBits[A]()))
	}
	for id, list := range lists {
		slices.SortFunc(list, netip.Prefix.Compare)
		s.SourceRanges.Set(id, list)
	}
}

func readSettings[A address](s *nodestate.State, v settings[A]) {
	s.Settings.DSR, s.Settings.HostNAT = v.Flags&setDSR != 0, v.Flags&setHostNAT != 0
	s.Settings.VXLANFromPods, s.Settings.IPIPFromPods = v.Flags&setVXLANFromPods != 0, v.Flags&setIPIPFromPods != 0
	s.Settings.RPFStrict = v.Flags&setRPFStrict != 0
	s.Settings.ToHost = model.ToHostAccept
	switch {
	case v.Flags&setToHostDrop != 0:
		s.Settings.ToHost = model.ToHostDrop
	case v.Flags&setToHostReturn != 0:
		s.Settings.ToHost = model.ToHostReturn
	}
	s.Settings.ConnectTime = model.ConnectTimeDisabled
	switch {
	case v.Flags&setCTLBUDP != 0:
		s.Settings.ConnectTime = model.ConnectTimeEnabled
	case v.Flags&setCTLBTCP != 0:
		s.Settings.ConnectTime = model.ConnectTimeTCP
	}
	s.Settings.SNATFirst, s.Settings.SNATLast = v.SnatMin, v.SnatMax
	if carries[A](netip.IPv6Unspecified()) {
		s.Settings.IPv6, s.Settings.Node6 = true, readNode(v.Node)
		return
	}
	s.Settings.Node = readNode(v.Node)
	s.Settings.Tunnel = nodestate.Tunnel{Port: be16(v.TunnelPort), VNI: v.Vni, MTU: int(v.TunnelMtu)}
}

func readAddr[A address](v addrValue[A]) nodestate.Addr {
	a := nodestate.Addr{
		Kind:        nodestate.AddrKind(v.Kind),
		Primary:     v.Flags&addrPrimary != 0,
		NATOutgoing: v.Flags&addrNATOutgoing != 0,
		SameLink:    v.Flags&addrSameLink != 0,
		Tunnel:      v.Flags&addrTunnel != 0,
		NodePorts:   v.Flags&addrNodePorts != 0,
		KeepSource:  v.Flags&addrKeepSource != 0,
		MAC:         v.Mac, IfIndex: int(v.Ifindex),
		Ingress: nodestate.Isolation{Set: nodestate.SetID(v.IngressSet), Rule: nodestate.RuleID(v.IngressRule)},
		Egress:  nodestate.Isolation{Set: nodestate.SetID(v.EgressSet), Rule: nodestate.RuleID(v.EgressRule)},
	}
	a.Node = readNode(v.Node)
	return a
}

// readNode reads a node's address; the zero value is none.
func readNode[A address](v A) netip.Addr {
	if none := *new(A); v == none {
		return netip.Addr{}
	}
	return fromAddr(v)
}

func readFrontend[A address](k svcKey[A]) nodestate.Frontend {
	return nodestate.Frontend{Addr: fromAddr(k.Addr), Port: be16(k.Port), Proto: model.Protocol(k.Proto)}
}

func readMode(flags uint32) model.ExternalMode {
	switch {
	case flags&svcModeTunnel != 0:
		return model.ExternalModeTunnel
	case flags&svcModeDSR != 0:
		return model.ExternalModeDSR
	}
	return ""
}

// readServices reads frontends and backends. A backend that is in no list is read where weir_live
// has it.
func readServices[A address](s *nodestate.State, sv *services[A]) error {
	spare := map[nodestate.Frontend][]nodestate.Backend{}
	for k, in := range sv.live.tracker.All() {
		if in == 0 {
			id := readFrontend(k.Svc)
			spare[id] = append(spare[id], nodestate.Backend{Addr: fromAddr(k.Backend.Addr), Port: be16(k.Backend.Port), Spare: true})
		}
	}
	for k, v := range sv.frontends.tracker.All() {
		id := readFrontend(v.Id)
		s.Frontends.Set(readFrontend(k), nodestate.Service{
			ID: id, Affinity: v.Affinity, LocalOnly: v.Flags&svcLocalFrontend != 0, External: v.Flags&svcExternal != 0,
			LocalPolicy: v.Flags&svcLocal != 0, Restricted: v.Flags&svcRestricted != 0,
			HostBackend: v.Flags&svcHostBackend != 0, Mode: readMode(v.Flags),
			Maglev: v.Flags&svcMaglev != 0, Rule: nodestate.RuleID(v.Rule),
		})
		if _, done := s.Backends.Get(id); done {
			continue
		}
		all, err := readList(sv, v.Id, scopeAll, v.Count)
		if err != nil {
			return err
		}
		local, err := readList(sv, v.Id, scopeLocal, v.Local)
		if err != nil {
			return err
		}
		for _, b := range local {
			i := slices.Index(all, b)
			if i < 0 {
				i, all = len(all), append(all, b)
				all[i].Spare = true
			}
			all[i].Local = true
		}
		all = append(all, spare[id]...)
		slices.SortFunc(all, func(a, b nodestate.Backend) int {
			return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port))
		})
		s.Backends.Set(id, all)
	}
	for k, v := range sv.frontends.tracker.All() {
		if v.Flags&svcMaglev == 0 {
			continue
		}
		list := s.Backends.At(readFrontend(v.Id))
		if err := sv.maglev.check(v.Id, list); err != nil {
			return fmt.Errorf("frontend %s: %w", showSvc(k), err)
		}
		if have := sv.maglev.have[v.Id]; have != nil && int(v.Table) != len(have.slots) {
			return fmt.Errorf("frontend %s counts %d slots of a Maglev table of %d", showSvc(k), v.Table, len(have.slots))
		}
	}
	return nil
}

func readList[A address](sv *services[A], id svcKey[A], scope uint8, count uint32) ([]nodestate.Backend, error) {
	id.Scope = scope
	var list []nodestate.Backend
	for slot := range count {
		b, ok := sv.backends.tracker.Actual(backendKey[A]{Svc: id, Slot: slot})
		if !ok {
			return nil, fmt.Errorf("service %s scope %d counts %d backends, and slot %d is empty", showSvc(id), scope, count, slot)
		}
		list = append(list, nodestate.Backend{Addr: fromAddr(b.Addr), Port: be16(b.Port)})
	}
	return list, nil
}
