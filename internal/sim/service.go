// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/netip"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/maglev"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
)

type affinityKey struct {
	svc    nodestate.Frontend
	client netip.Addr
	cookie uint64 // where the client's address is not known
}

type affinityEntry struct {
	backend nodestate.Backend
	seen    time.Duration
}

// balanced is what step 2 finds about a service.
type balanced struct {
	found   bool
	id      nodestate.Frontend
	rule    nodestate.RuleID
	backend nodestate.Backend
	via     netip.Addr // the node by which answers go back
	home    netip.Addr // the node that the packet is handed on to
	tunnel  bool       // by the tunnel
	maglev  bool       // all nodes choose equally
	watch   bool       // and any of them may be the one that is asked
	floats  bool       // no Service: a floating address, which leads to backend.Addr
	dsr     bool       // answers go directly to the client, unless the client forbids it
}

// everyAddr represents every address of every node, of the family of a.
func everyAddr(a netip.Addr) netip.Addr {
	if a.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// frontend looks for the service that answers at an address. nodePort: by the port alone.
func (n *Node) frontend(dst netip.Addr, port uint16, proto model.Protocol) (s nodestate.Service, nodePort, ok bool) {
	if s, ok = n.state.Frontends.Get(nodestate.Frontend{Addr: dst, Port: port, Proto: proto}); ok {
		return s, false, true
	}
	at := n.state.Addrs[dst]
	if at.Kind != nodestate.AddrHost && at.Kind != nodestate.AddrNode {
		return s, false, false
	}
	s, ok = n.state.Frontends.Get(nodestate.Frontend{Addr: everyAddr(dst), Port: port, Proto: proto})
	if ok && (s.LocalOnly && at.Kind == nodestate.AddrNode || !s.LocalOnly && !at.NodePorts) {
		return nodestate.Service{}, false, false
	}
	return s, true, ok
}

// foreign recognizes the host's own traffic by its ports: what it rules out need not be looked for.
func (n *Node) foreign(in In, k flowKey) bool {
	if n.hosts() || !hasPorts(k.proto) || in.Packet.Kind == packet.Error {
		return false
	}
	for f := range n.state.Frontends.Keys() {
		if f.Port == k.dport && f.Proto == k.proto {
			return false
		}
	}
	switch in.Hook {
	case ToUplink:
		return in.IfIndex != n.opts.HostIfIndex && !n.hostBackend(k.proto, k.sport)
	case FromUplink:
		src := n.kind(k.src)
		return !n.state.Settings.RPFStrict && n.kind(k.dst) == nodestate.AddrHost && src != nodestate.AddrHost && src != nodestate.AddrEndpoint && !n.forgesTunnel(in, k) &&
			(k.dport < n.state.Settings.SNATFirst || k.dport > n.state.Settings.SNATLast)
	}
	return false
}

// hostBackend: does a backend on the node's own addresses have this port?
func (n *Node) hostBackend(proto model.Protocol, port uint16) bool {
	for id, list := range n.state.Backends.All() {
		for _, b := range list {
			if id.Proto == proto && b.Port == port && n.kind(b.Addr) == nodestate.AddrHost {
				return true
			}
		}
	}
	return false
}

// balance finds the service of a packet, if any, and chooses its backend.
func (n *Node) balance(in In, k flowKey) (balanced, *dropped) {
	if in.Hook == ToWorkload || in.Packet.Kind == packet.Error {
		return balanced{}, nil
	}
	if in.Hook != ToUplink || in.IfIndex == n.opts.HostIfIndex {
		if to := n.state.FloatingAt(k.dst, fromOutside(in) || in.Entered != 0); to.IsValid() {
			return balanced{floats: true, backend: nodestate.Backend{Addr: to}}, nil
		}
	}
	if !hasPorts(k.proto) {
		return balanced{}, nil
	}
	if in.Hook == ToUplink && !n.state.Settings.HostNAT {
		return balanced{}, nil
	}
	if k.dst.IsLoopback() { // frontends there are for sockets of this node alone
		return balanced{}, nil
	}
	s, nodePort, ok := n.frontend(k.dst, k.dport, k.proto)
	if !ok {
		return balanced{}, nil
	}
	r := balanced{found: true, id: s.ID, rule: s.Rule}
	outside := in.Hook == FromUplink || in.Hook == FromTunnel
	localOnly := s.LocalPolicy
	if !outside {
		if localOnly, ok = n.insideScope(s, nodePort, k.dst); !ok {
			return balanced{}, nil
		}
	} else {
		r.via = n.handedBy(in, nodePort, k.dst)
	}
	if !n.admits(s, k.src) {
		return r, &dropped{reason: reason.SourceRange, rule: s.Rule}
	}
	localOnly = localOnly || r.via.IsValid()
	r.dsr = r.via.IsValid() && n.wantsDSR(s)
	r.maglev, r.watch = s.Maglev, s.Maglev && !nodePort
	r.backend, ok = n.choose(s, localOnly, affinityKey{svc: s.ID, client: k.src}, n.maglevChoice(s, localOnly, k))
	if !ok && localOnly && slices.ContainsFunc(n.state.Backends.At(s.ID), func(b nodestate.Backend) bool { return b.InList(false) }) {
		return r, &dropped{reason: reason.NoLocalBackend, rule: s.Rule}
	}
	if !ok {
		return r, &dropped{reason: reason.NoBackend, rule: s.Rule}
	}
	if outside && !localOnly {
		r.home, r.tunnel = n.home(r.backend.Addr)
	}
	return r, nil
}

// handedBy is the node that handed a packet for a Service on to this one, invalid when it came from
// outside.
func (n *Node) handedBy(in In, nodePort bool, dst netip.Addr) netip.Addr {
	switch {
	case nodePort && n.kind(dst) == nodestate.AddrNode:
		return n.state.Addrs[dst].Node
	case nodePort:
		return netip.Addr{}
	case in.Hook == FromTunnel:
		return in.Source
	}
	return n.links[in.Packet.SrcMAC].Of(dst)
}

// insideScope says for traffic of this node's pods and processes whether only this node's backends
// count, and with false that the frontend is not for it: another node's port, which is that node's
// to evaluate.
func (n *Node) insideScope(s nodestate.Service, nodePort bool, dst netip.Addr) (localOnly, ok bool) {
	if s.LocalPolicy && nodePort && n.kind(dst) == nodestate.AddrNode {
		return false, false
	}
	return s.LocalPolicy && !s.External, true
}

// admits reports whether a frontend is for a client.
func (n *Node) admits(s nodestate.Service, client netip.Addr) bool {
	return !s.Restricted || model.Within(n.state.SourceRanges.At(s.ID), client)
}

// choose picks a backend: the one that the client has already where the service wants that, else
// the hashed one where there is one, else any.
func (n *Node) choose(s nodestate.Service, localOnly bool, key affinityKey, hashed *nodestate.Backend) (nodestate.Backend, bool) {
	list := slices.DeleteFunc(slices.Clone(n.state.Backends.At(s.ID)), func(b nodestate.Backend) bool { return !b.InList(localOnly) })
	if len(list) == 0 {
		return nodestate.Backend{}, false
	}
	now := n.opts.Now()
	if s.Affinity > 0 {
		e, ok := n.affinity[key]
		if ok && now-e.seen <= time.Duration(s.Affinity)*time.Second && slices.ContainsFunc(list, sameBackend(e.backend)) {
			e.seen = now
			n.affinity[key] = e
			return e.backend, true
		}
	}
	var b nodestate.Backend
	if hashed != nil {
		b = *hashed
	} else {
		b = list[n.opts.Pick(Choice{Service: s, Client: key.client, From: list})]
	}
	if s.Affinity > 0 {
		n.affinity[key] = affinityEntry{backend: b, seen: now}
	}
	return b, true
}

// live: is a backend of a flow not gone?
func (n *Node) live(id nodestate.Frontend, b nodestate.Backend) bool {
	return slices.ContainsFunc(n.state.Backends.At(id), sameBackend(b))
}

func sameBackend(b nodestate.Backend) func(nodestate.Backend) bool {
	return func(o nodestate.Backend) bool { return o.Addr == b.Addr && o.Port == b.Port }
}

// maglevChoice is the backend that all nodes choose for a packet's flow; nil where the service does
// not want that, or this node alone may answer and the backend is elsewhere.
func (n *Node) maglevChoice(s nodestate.Service, localOnly bool, k flowKey) *nodestate.Backend {
	if !s.Maglev {
		return nil
	}
	list := slices.DeleteFunc(slices.Clone(n.state.Backends.At(s.ID)), func(b nodestate.Backend) bool { return !b.InList(false) })
	table, ok := n.maglev[s.ID]
	if !ok {
		var addrs []netip.AddrPort
		for _, b := range list {
			addrs = append(addrs, netip.AddrPortFrom(b.Addr, b.Port))
		}
		table = maglev.Table(addrs)
		n.maglev[s.ID] = table
	}
	if len(table) == 0 {
		return nil
	}
	b := list[table[maglev.Slot(netip.AddrPortFrom(k.src, k.sport), s.Affinity > 0, len(table))]]
	if localOnly && !b.Local {
		return nil
	}
	return &b
}

// redirectReplies sends the answers of a watched flow to the node that handed its packet on, or
// directly to the client when none did.
func (n *Node) redirectReplies(f *flow, k flowKey, in In) {
	via := n.handedBy(in, false, k.dst)
	rev, _ := n.find(f.partner(k.proto))
	if via == f.from || rev == nil {
		return
	}
	var w path
	var ok bool
	if via.IsValid() {
		w, ok = n.toNode(via, handedOn(n.state.Addrs[via].SameLink))
	} else {
		w, ok, _ = n.route(k.src)
	}
	if !ok {
		return
	}
	rev.path, rev.viaNode, f.from = w, via.IsValid(), via
}
