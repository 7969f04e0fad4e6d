// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// What is made of tracked connections when this data plane takes over. Every entry is of an epoch
// that was never in force: it is evaluated at its next packet, and its path found.

// ImportScope is which connections of another data plane are taken over.
type ImportScope int

const (
	ImportNone       ImportScope = iota
	ImportTranslated             // those that a kube-proxy translated to pods and to backends of Services
	ImportAll                    // those of our own data plane of standard Linux
)

// Importer makes entries of tracked connections.
type Importer struct {
	State       *nodestate.State
	Ifindex     func(nodestate.Addr) int
	Which       ImportScope
	Predecessor conntrack.Left
	Moved       Moved
	Route       func(to netip.Addr) (ifindex int, via netip.Addr, ok bool) // the kernel's
}

// Moved is an address that moves between nodes, by a state that may not say so yet: of flows of it
// this node takes part in.
type Moved struct {
	Addr    netip.Addr // invalid = none does
	IfIndex int        // of the pod here that has it, 0 = it is elsewhere
}

// at is whose an address is.
func (t Importer) at(a netip.Addr) nodestate.Addr {
	switch {
	case a != t.Moved.Addr || !a.IsValid():
		return t.State.Addrs[a]
	case t.Moved.IfIndex == 0:
		return nodestate.Addr{Kind: nodestate.AddrPod}
	}
	return nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: t.Moved.IfIndex}
}

// ImportedFlow is a flow as it is written into the maps.
type ImportedFlow[A abi.Address] struct {
	Key, Back   abi.FlowKey[A]
	There, Here abi.FlowValue[A] // of the original direction, and of the answers
	Established bool             // else half open
}

// ImportFlow makes the entries of a connection. It is not ok for those that are not ours: between
// others, over, or translated by somebody else for other ends than pods and Services. now and epoch
// are the clock's and the settings'.
func ImportFlow[A abi.Address](t Importer, e conntrack.Entry, now, epoch uint32) (f ImportedFlow[A], ok bool) {
	route, named := t.MarkedRoute(e)
	if named && route.HandsOn && e.Zone == 0 {
		return importForwarded[A](t, e, route, now, epoch)
	}
	led := named && route.Gateway
	if e.Zone != 0 || !led && !t.Ours(e) {
		return f, false
	}
	var ok1, ok2 bool
	f.Key, ok1 = KeyOf[A](e.Orig)
	f.Back, ok2 = KeyOf[A](e.Reply)
	states, live := importedStates(e)
	if !ok1 || !ok2 || !live {
		return f, false
	}
	after, back := f.Back.Reversed(), f.Key.Reversed()
	src, translated := t.at(e.Orig.Src), e.Translated()
	f.There = abi.FlowValue[A]{Saddr: after.Saddr, Daddr: after.Daddr, Sport: after.Sport, Dport: after.Dport}
	f.Here = abi.FlowValue[A]{Saddr: back.Saddr, Daddr: back.Daddr, Sport: back.Sport, Dport: back.Dport, Flags: abi.FlowReply}
	f.There.State, f.Here.State = states[0], states[1]
	for _, v := range []*abi.FlowValue[A]{&f.There, &f.Here} {
		v.Seen, v.Epoch, v.Action = now, epoch-1, abi.ActNeigh
		if translated {
			v.Flags |= abi.FlowRewrite
		}
		if src.Kind == nodestate.AddrHost {
			v.Flags |= abi.FlowFromHost
		}
	}
	if e.Reply.Dst != e.Orig.Src {
		f.There.Flags |= abi.FlowSNAT
	}
	f.There.EnterBy(t.iif(e.Orig.Src))
	f.Here.EnterBy(t.iif(e.Reply.Src))
	if svc, found := t.service(e.Orig); found && translated {
		f.There.Svc = abi.ToSvc[A](svc.ID)
		f.There.Backend = abi.Backend[A]{Addr: abi.ToAddr[A](e.Reply.Src), Port: abi.Be16(e.Reply.SrcPort)}
		f.Here.Svc, f.Here.Backend = f.There.Svc, f.There.Backend
	}
	if t.leftToStack(e) {
		f.There.State |= abi.StateStack
		f.Here.State |= abi.StateStack
	}
	if src.Kind == nodestate.AddrHost && !translated {
		f.There.Action = abi.ActPass // it is met where the stack sends it to the pod
	}
	switch {
	case led:
		f.There.State |= abi.StateGateway
		if route.Tunnel {
			f.There.Flags |= abi.FlowViaNode | abi.FlowClamp
			if !routeByNode(&f.There, t, route) {
				return f, false
			}
		}
	case named:
		f.Here.Flags |= abi.FlowViaNode
		if route.Came {
			f.Here.Flags |= abi.FlowClamp
		}
		if !routeByNode(&f.Here, t, route) {
			return f, false
		}
	}
	f.Established = states[0]&abi.StateReplied != 0 || src.Kind == nodestate.AddrHost && translated
	// Among what is half open, answers to ports that are not ours are not looked for: such a flow
	// begins anew.
	return f, f.Established || f.There.Flags&abi.FlowSNAT == 0
}

// Ours reports whether a connection is one that this data plane would carry: it begins or ends at a
// pod of this node, or is translated as Services and natOutgoing do it, or to be told from one that
// is.
func (t Importer) Ours(e conntrack.Entry) bool {
	src, backend := t.at(e.Orig.Src), t.at(e.Reply.Src)
	here := src.Kind == nodestate.AddrEndpoint || backend.Kind == nodestate.AddrEndpoint
	if !e.Translated() {
		return here && t.Which == ImportAll
	}
	if e.Reply.Src != e.Orig.Dst || e.Reply.SrcPort != e.Orig.DstPort {
		if !t.toBackend(e) {
			return false
		}
	} else if t.Which != ImportAll || src.Kind != nodestate.AddrEndpoint && !t.changesSourcePort(e) {
		return false // a source alone is translated for pods alone
	}
	same := e.Reply.Dst == e.Orig.Src
	return same || t.State.Addrs[e.Reply.Dst].Kind == nodestate.AddrHost
}

// BeforeOthersNAT is a connection as programs see it: what a pod sends out of the cluster they
// leave to the stack where another CNI plugin's network translates its source, which goes on doing
// that.
func (t Importer) BeforeOthersNAT(e conntrack.Entry) conntrack.Entry {
	src := t.State.Addrs[e.Orig.Src]
	if !t.State.Settings.Chained || src.Kind != nodestate.AddrEndpoint || src.NATOutgoing || e.Reply.Src == e.Orig.Src {
		return e
	}
	if back := e.Orig.Reversed(); e.Reply.Src == back.Src && e.Reply.SrcPort == back.SrcPort {
		e.Reply = back
	} else {
		e.Reply.Dst, e.Reply.DstPort = back.Dst, back.DstPort
	}
	return e
}

// leftToStack reports whether programs leave a connection to the stack, translated or not, because
// another CNI plugin's network carries it out of the node.
func (t Importer) leftToStack(e conntrack.Entry) bool {
	if !t.State.Settings.Chained || t.at(e.Orig.Src).Kind != nodestate.AddrEndpoint || e.Reply.Dst != e.Orig.Src {
		return false
	}
	_, routed := t.State.RouteTo(e.Reply.Src)
	kind := t.State.Addrs[e.Reply.Src].Kind
	return !routed && kind != nodestate.AddrEndpoint && kind != nodestate.AddrHost && kind != nodestate.AddrPod
}

// changesSourcePort reports whether a connection to a pod or to the node got nothing but another
// source port: its own is that of one that a Service led to the same place.
func (t Importer) changesSourcePort(e conntrack.Entry) bool {
	return e.Reply.Dst == e.Orig.Src && (t.State.Addrs[e.Reply.Src].Kind == nodestate.AddrHost || t.toBackend(e))
}

// InStack reports whether a connection is one of the node's own processes to an address of the
// node, a loopback one too, that is translated to a pod or a backend (a node port). Its packets are
// sent to the loopback device, where no program sees them: connection tracking goes on translating
// it. What programs see is what comes of that.
func (t Importer) InStack(e conntrack.Entry) bool {
	own := func(a netip.Addr) bool { return a.IsLoopback() || t.State.Addrs[a].Kind == nodestate.AddrHost }
	return e.Translated() && own(e.Orig.Src) && own(e.Orig.Dst) && t.toBackend(e)
}

// inPodBlock reports whether an address is in a block of pods.
func (t Importer) inPodBlock(a netip.Addr) bool {
	r, _ := t.State.RouteTo(a)
	return r.Local || r.Node.IsValid()
}

// service is what is asked for by a packet.
func (t Importer) service(orig conntrack.Tuple) (nodestate.Service, bool) {
	if !orig.Ported() {
		return nodestate.Service{}, false
	}
	return t.State.ServiceAt(nodestate.Frontend{Addr: orig.Dst, Port: orig.DstPort, Proto: model.Protocol(orig.Proto)})
}

// toBackend reports whether what is translated is led to a pod, or to a backend of the Service that
// is asked for.
func (t Importer) toBackend(e conntrack.Entry) bool {
	kind := t.at(e.Reply.Src).Kind
	return kind == nodestate.AddrEndpoint || kind == nodestate.AddrPod || t.inPodBlock(e.Reply.Src) || t.balanced(e)
}

// balanced reports whether a connection leads to a backend of the Service that it asked for.
func (t Importer) balanced(e conntrack.Entry) bool {
	svc, ok := t.service(e.Orig)
	return ok && slices.ContainsFunc(t.State.Backends.At(svc.ID), func(b nodestate.Backend) bool {
		return b.Addr == e.Reply.Src && b.Port == e.Reply.SrcPort
	})
}

// iif is the interface by which packets of an address enter, 0 where they come from no pod of this
// node.
func (t Importer) iif(a netip.Addr) uint32 {
	if v := t.at(a); v.Kind == nodestate.AddrEndpoint {
		return uint32(t.Ifindex(v))
	}
	return 0
}

// importedStates are the states of the two entries; live is false of what is over.
func importedStates(e conntrack.Entry) (states [2]uint8, live bool) {
	if e.Orig.Proto != unix.IPPROTO_TCP {
		if e.Status&conntrack.SeenReply != 0 {
			return [2]uint8{abi.StateReplied, abi.StateReplied}, true
		}
		return states, true
	}
	switch e.TCP.State {
	case conntrack.TCPSynSent:
	case conntrack.TCPSynRecv:
		states = [2]uint8{abi.StateAnswered, abi.StateAnswered}
	case conntrack.TCPEstablished:
		states = [2]uint8{abi.StateReplied, abi.StateReplied}
	case conntrack.TCPFinWait, conntrack.TCPCloseWait:
		states = [2]uint8{abi.StateReplied, abi.StateReplied}
		for i, flags := range []uint8{e.TCP.OrigFlags, e.TCP.RepFlags} {
			if flags&conntrack.TCPCloseInit != 0 {
				states[i] |= abi.StateFIN
			}
		}
	case conntrack.TCPLastAck, conntrack.TCPTimeWait:
		const over = abi.StateReplied | abi.StateFIN | abi.StateClosing
		states = [2]uint8{over, over}
	default:
		return states, false
	}
	return states, true
}

// Shadow is what the node's stack sees of a translated connection once programs translate it, where
// it sees anything of it: what they give it, or what it gives them.
func (t Importer) Shadow(e conntrack.Entry) (conntrack.Entry, bool) {
	switch {
	case !e.Translated():
		return e, false
	case t.State.Addrs[e.Orig.Src].Kind == nodestate.AddrHost:
		e.Reply = e.Orig.Reversed()
	case t.State.Addrs[e.Reply.Src].Kind == nodestate.AddrHost:
		e.Orig = e.Reply.Reversed()
	default:
		return e, false
	}
	e.Mark = 0
	e.TCP.OrigFlags |= conntrack.TCPLiberal
	e.TCP.RepFlags |= conntrack.TCPLiberal
	return e, true
}
