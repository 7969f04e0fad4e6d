// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// What is made of tracked connections when this data plane takes over. Every entry is of an epoch
// that was never in force: it is evaluated at its next packet, and its way found.

// ImportScope is which connections of another data plane are taken over.
type ImportScope int

const (
	ImportNone       ImportScope = iota
	ImportTranslated             // those that a kube-proxy translated to pods and to backends of Services
	ImportAll                    // those of our own data plane of standard Linux
)

// importer makes entries of tracked connections.
type importer struct {
	state       *nodestate.State
	ifindex     func(nodestate.Addr) int
	which       ImportScope
	predecessor conntrack.Left
	route       func(to netip.Addr) (ifindex int, via netip.Addr, ok bool) // the kernel's
}

// importedFlow is a flow as it is written into the maps.
type importedFlow[A abi.Address] struct {
	key, back   abi.FlowKey[A]
	there, here abi.FlowValue[A] // of the original direction, and of the answers
	established bool             // else half open
}

// of makes the entries of a connection. It is not ok for those that are not ours: between others,
// over, or translated by somebody else for other ends than pods and Services. now and epoch are the
// clock's and the settings'.
func importFlow[A abi.Address](t importer, e conntrack.Entry, now, epoch uint32) (f importedFlow[A], ok bool) {
	way, named := t.markedRoute(e)
	if named && way.HandsOn && e.Zone == 0 {
		return importForwarded[A](t, e, way, now, epoch)
	}
	if e.Zone != 0 || !t.ours(e) {
		return f, false
	}
	var ok1, ok2 bool
	f.key, ok1 = keyOf[A](e.Orig)
	f.back, ok2 = keyOf[A](e.Reply)
	states, live := importedStates(e)
	if !ok1 || !ok2 || !live {
		return f, false
	}
	after, back := f.back.Reversed(), f.key.Reversed()
	src, translated := t.state.Addrs[e.Orig.Src], e.Translated()
	f.there = abi.FlowValue[A]{Saddr: after.Saddr, Daddr: after.Daddr, Sport: after.Sport, Dport: after.Dport}
	f.here = abi.FlowValue[A]{Saddr: back.Saddr, Daddr: back.Daddr, Sport: back.Sport, Dport: back.Dport, Flags: abi.FlowReply}
	f.there.State, f.here.State = states[0], states[1]
	for _, v := range []*abi.FlowValue[A]{&f.there, &f.here} {
		v.Seen, v.Epoch, v.Action = now, epoch-1, abi.ActNeigh
		if translated {
			v.Flags |= abi.FlowRewrite
		}
		if src.Kind == nodestate.AddrHost {
			v.Flags |= abi.FlowFromHost
		}
	}
	if e.Reply.Dst != e.Orig.Src {
		f.there.Flags |= abi.FlowSNAT
	}
	f.there.EnterBy(t.iif(e.Orig.Src))
	f.here.EnterBy(t.iif(e.Reply.Src))
	if svc, found := t.service(e.Orig); found && translated {
		f.there.Svc = abi.ToSvc[A](svc.ID)
		f.there.Backend = abi.Backend[A]{Addr: abi.ToAddr[A](e.Reply.Src), Port: abi.Be16(e.Reply.SrcPort)}
		f.here.Svc, f.here.Backend = f.there.Svc, f.there.Backend
	}
	if src.Kind == nodestate.AddrHost && !translated {
		f.there.Action = abi.ActPass // it is met where the stack sends it to the pod
	}
	if named {
		f.here.Flags |= abi.FlowViaNode
		if way.Came {
			f.here.Flags |= abi.FlowClamp
		}
		if !routeByNode(&f.here, t, way) {
			return f, false
		}
	}
	f.established = states[0]&abi.StateReplied != 0 || src.Kind == nodestate.AddrHost && translated
	// Among what is half open, answers to ports that are not ours are not looked for: such a flow
	// begins anew.
	return f, f.established || f.there.Flags&abi.FlowSNAT == 0
}

// ours reports whether a connection is one that this data plane would carry: it begins or ends at a
// pod of this node, or is translated as Services and natOutgoing do it, or to be told from one that
// is.
func (t importer) ours(e conntrack.Entry) bool {
	src, backend := t.state.Addrs[e.Orig.Src], t.state.Addrs[e.Reply.Src]
	here := src.Kind == nodestate.AddrEndpoint || backend.Kind == nodestate.AddrEndpoint
	if !e.Translated() {
		return here && t.which == ImportAll
	}
	if e.Reply.Src != e.Orig.Dst || e.Reply.SrcPort != e.Orig.DstPort {
		if !t.toBackend(e) {
			return false
		}
	} else if t.which != ImportAll || src.Kind != nodestate.AddrEndpoint && !t.changesSourcePort(e) {
		return false // a source alone is translated for pods alone
	}
	same := e.Reply.Dst == e.Orig.Src
	return same || t.state.Addrs[e.Reply.Dst].Kind == nodestate.AddrHost
}

// changesSourcePort reports whether a connection to a pod or to the node got nothing but another
// source port: its own is that of one that a Service led to the same place.
func (t importer) changesSourcePort(e conntrack.Entry) bool {
	return e.Reply.Dst == e.Orig.Src && (t.state.Addrs[e.Reply.Src].Kind == nodestate.AddrHost || t.toBackend(e))
}

// inStack reports whether a connection is one of the node's own processes to an address of the
// node, a loopback one too, that is translated to a pod or a backend (a node port). Its packets are
// sent to the loopback device, where no program sees them: connection tracking goes on translating
// it. What programs see is what comes of that.
func (t importer) inStack(e conntrack.Entry) bool {
	own := func(a netip.Addr) bool { return a.IsLoopback() || t.state.Addrs[a].Kind == nodestate.AddrHost }
	return e.Translated() && own(e.Orig.Src) && own(e.Orig.Dst) && t.toBackend(e)
}

// inPodBlock reports whether an address is in a block of pods.
func (t importer) inPodBlock(a netip.Addr) bool {
	for bits := a.BitLen(); bits >= 0; bits-- {
		p, err := a.Prefix(bits)
		if err != nil {
			return false
		}
		if r, ok := t.state.Routes[p]; ok {
			return r.Local || r.Node.IsValid()
		}
	}
	return false
}

// service is what is asked for by a packet.
func (t importer) service(orig conntrack.Tuple) (nodestate.Service, bool) {
	if !orig.Ported() {
		return nodestate.Service{}, false
	}
	f := nodestate.Frontend{Addr: orig.Dst, Port: orig.DstPort, Proto: model.Protocol(orig.Proto)}
	svc, ok := t.state.Frontends.Get(f)
	if kind := t.state.Addrs[orig.Dst].Kind; !ok && (kind == nodestate.AddrHost || kind == nodestate.AddrNode) {
		f.Addr = flowtable.Unspecified(orig.Dst)
		svc, ok = t.state.Frontends.Get(f)
	}
	return svc, ok
}

// toBackend reports whether what is translated is led to a pod, or to a backend of the Service that
// is asked for.
func (t importer) toBackend(e conntrack.Entry) bool {
	kind := t.state.Addrs[e.Reply.Src].Kind
	return kind == nodestate.AddrEndpoint || kind == nodestate.AddrPod || t.inPodBlock(e.Reply.Src) || t.balanced(e)
}

// balanced reports whether a connection leads to a backend of the Service that it asked for.
func (t importer) balanced(e conntrack.Entry) bool {
	svc, ok := t.service(e.Orig)
	return ok && slices.ContainsFunc(t.state.Backends.At(svc.ID), func(b nodestate.Backend) bool {
		return b.Addr == e.Reply.Src && b.Port == e.Reply.SrcPort
	})
}

// iif is the interface by which packets of an address enter, 0 where they come from no pod of this
// node.
func (t importer) iif(a netip.Addr) uint32 {
	if v := t.state.Addrs[a]; v.Kind == nodestate.AddrEndpoint {
		return uint32(t.ifindex(v))
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

// shadow is what the node's stack sees of a translated connection once programs translate it, where
// it sees anything of it: what they give it, or what it gives them.
func (t importer) shadow(e conntrack.Entry) (conntrack.Entry, bool) {
	switch {
	case !e.Translated():
		return e, false
	case t.state.Addrs[e.Orig.Src].Kind == nodestate.AddrHost:
		e.Reply = e.Orig.Reversed()
	case t.state.Addrs[e.Reply.Src].Kind == nodestate.AddrHost:
		e.Orig = e.Reply.Reversed()
	default:
		return e, false
	}
	e.Mark = 0
	e.TCP.OrigFlags |= conntrack.TCPLiberal
	e.TCP.RepFlags |= conntrack.TCPLiberal
	return e, true
}
