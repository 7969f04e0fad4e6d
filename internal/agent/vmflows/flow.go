// SPDX-License-Identifier: Apache-2.0

package vmflows

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/nodestate"
)

const (
	// minLeft is how long a flow is kept at least: its next packet comes after the pause of the
	// machine. maxLeft is what connection tracking keeps TCP by default.
	minLeft = 30 * time.Second
	maxLeft = 5 * 24 * time.Hour
)

// leaving is what the node to which a machine is moved is to know of a flow that this node has. It
// is not ok for a flow that can go on from here alone, or begins anew: one whose source is
// translated, that this node, another one or its processes take part in, that is half open or over.
func leaving(a netip.Addr, e conntrack.Entry, kind func(netip.Addr) nodestate.AddrKind) (f wire.MachineFlow, ok bool) {
	src, dst, back, to := ends(e)
	f = wire.MachineFlow{Proto: e.Orig.Proto, Src: src, Dst: dst, State: e.TCP.State, Left: uint32(e.Left / time.Second)}
	switch {
	case a == e.Orig.Src:
		if src != to {
			return f, false
		}
		if back != dst {
			f.Backend = back
		}
	case a == e.Reply.Src:
		// Where a Service of the node's own pods led to the machine, the node goes on translating.
		if e.Translated() && kind(src.Addr()) != nodestate.AddrEndpoint {
			return f, false
		}
		if k := kind(to.Addr()); k == nodestate.AddrHost || k == nodestate.AddrNode {
			return f, false // answers to nodes go by the tunnel, which is not told
		}
		f.Src, f.Dst = to, back
	}
	return f, e.Status&conntrack.SeenReply != 0 && check(a, f) == nil
}

// ends are those of a flow as its source sends, and as its answers come: from back, to to.
func ends(e conntrack.Entry) (src, dst, back, to netip.AddrPort) {
	at := netip.AddrPortFrom
	return at(e.Orig.Src, e.Orig.SrcPort), at(e.Orig.Dst, e.Orig.DstPort), at(e.Reply.Src, e.Reply.SrcPort), at(e.Reply.Dst, e.Reply.DstPort)
}

// left is what this node has of a flow when the machine has left it, where that changes: what a
// Service led from the machine to a pod of this node the machine's node translates.
func left(a netip.Addr, e conntrack.Entry, kind func(netip.Addr) nodestate.AddrKind) (conntrack.Entry, bool) {
	src, _, _, to := ends(e)
	if a != e.Orig.Src || a == e.Reply.Src || !e.Translated() || src != to || kind(e.Reply.Src) != nodestate.AddrEndpoint {
		return e, false
	}
	e.Orig = e.Reply.Reversed()
	e.TCP.OrigFlags |= conntrack.TCPLiberal
	e.TCP.RepFlags |= conntrack.TCPLiberal
	return e, true
}

// check says why a flow is none of the machine with an address: another node, which may be hostile,
// says it. What it may say policy binds: a flow is evaluated at its next packet.
func check(a netip.Addr, f wire.MachineFlow) error {
	switch f.Proto {
	case unix.IPPROTO_TCP:
		if f.State != conntrack.TCPEstablished && f.State != conntrack.TCPFinWait && f.State != conntrack.TCPCloseWait {
			return fmt.Errorf("state %d of TCP is not that of an open connection", f.State)
		}
	case unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
	default:
		return fmt.Errorf("protocol %d has no flows that move", f.Proto)
	}
	if f.Src.Addr() != a && (f.Dst.Addr() != a || f.Backend.IsValid()) {
		return fmt.Errorf("%s is no end of it", a)
	}
	all := []netip.AddrPort{f.Src, f.Dst}
	if f.Backend != (netip.AddrPort{}) {
		all = append(all, f.Backend)
	}
	for _, end := range all {
		at := end.Addr()
		if !at.IsValid() || at.Zone() != "" || at.Is4() != a.Is4() || at.Is4In6() || at.IsUnspecified() || at.IsLoopback() || at.IsMulticast() || at.IsLinkLocalUnicast() || end.Port() == 0 {
			return fmt.Errorf("%s is no end of a flow", end)
		}
	}
	if f.Dst.Addr() == f.Src.Addr() || f.Backend.Addr() == f.Src.Addr() {
		return errors.New("both ends are the same")
	}
	return nil
}

// entry is what connection tracking is to know of a flow that was checked.
func entry(f wire.MachineFlow) conntrack.Entry {
	orig := conntrack.Tuple{Proto: f.Proto, Src: f.Src.Addr(), SrcPort: f.Src.Port(), Dst: f.Dst.Addr(), DstPort: f.Dst.Port()}
	e := conntrack.Entry{Orig: orig, Reply: orig.Reversed(), Status: conntrack.Confirmed | conntrack.SeenReply | conntrack.Assured,
		Left: min(max(time.Duration(f.Left)*time.Second, minLeft), maxLeft)}
	if f.Backend.IsValid() {
		e.Reply.Src, e.Reply.SrcPort = f.Backend.Addr(), f.Backend.Port()
	}
	switch f.Proto {
	case unix.IPPROTO_TCP: // nobody tells how far the windows are
		e.TCP = conntrack.TCP{State: f.State, OrigFlags: conntrack.TCPLiberal, RepFlags: conntrack.TCPLiberal}
	case unix.IPPROTO_SCTP:
		e.SCTP = conntrack.SCTPEstablished
	}
	return e
}
