// SPDX-License-Identifier: Apache-2.0

package flowhandover

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// What connection tracking is exported of flows when another data plane takes over. Policy is not:
// a connection without the mark of one is evaluated at its next packet, in its original direction.

// MinTimeout is how long an entry that is exported stays at least: it may be exported before its
// packets come by there.
const MinTimeout = 30 * time.Second

// ConntrackEntry is what connection tracking is to know of the flow that an entry of the maps is
// of, in either direction. left is how long the entry has. It is not ok where there is nothing to
// know: what is over, and what the entry does not tell. Which node packets go by is the giver's to
// say.
func ConntrackEntry[A abi.Address](k abi.FlowKey[A], v abi.FlowValue[A], left time.Duration) (e conntrack.Entry, ok bool) {
	if left < 0 || v.State&abi.StateClosing != 0 && v.State&abi.StateReset != 0 {
		return e, false
	}
	orig, reply := k, v.After(k.Proto).Reversed()
	if v.Flags&abi.FlowReply != 0 {
		orig, reply = reply, orig
	}
	var ok1, ok2 bool
	e.Orig, ok1 = tupleOf(orig, false)
	e.Reply, ok2 = tupleOf(reply, true)
	if !ok1 || !ok2 {
		return e, false
	}
	both := v.State&(abi.StateReplied|abi.StateAnswered|abi.StateClosing) != 0
	if v.Flags&abi.FlowHandOn != 0 { // answers may not come by here
		both = v.State&abi.StateAnswered != 0
	}
	e.Status = conntrack.Confirmed
	if both {
		e.Status |= conntrack.SeenReply
	}
	if v.State&abi.StateReplied != 0 {
		e.Status |= conntrack.Assured
	}
	e.Left = max(left, MinTimeout).Truncate(time.Second)
	switch k.Proto {
	case unix.IPPROTO_TCP:
		e.TCP = conntrackTCP(v.State)
	case unix.IPPROTO_SCTP:
		if v.State&(abi.StateReplied|abi.StateClosing) != abi.StateReplied {
			return e, false
		}
		e.SCTP = conntrack.SCTPEstablished
	}
	return e, true
}

// conntrackTCP is the state of a connection. A FIN of one side is not exported: the side that is
// left may go on for as long as it likes.
func conntrackTCP(state uint8) conntrack.TCP {
	// What is half open may be answered by programs meanwhile: in this state connection tracking
	// takes each of the packets that follow.
	t := conntrack.TCP{State: conntrack.TCPSynRecv, OrigFlags: conntrack.TCPLiberal, RepFlags: conntrack.TCPLiberal}
	switch {
	case state&abi.StateClosing != 0:
		t.State = conntrack.TCPTimeWait
		t.OrigFlags |= conntrack.TCPCloseInit // a SYN opens a new one
		t.RepFlags |= conntrack.TCPCloseInit
	case state&abi.StateReplied != 0:
		t.State = conntrack.TCPEstablished
	}
	return t
}

// seenTranslated reports whether the node's stack sees packets of a flow that is translated after
// they were translated, or their answers: as long as programs translate, connection tracking must
// not do it too.
func seenTranslated[A abi.Address](v abi.FlowValue[A]) bool {
	return v.Flags&abi.FlowRewrite != 0 && seenByStack(v)
}

// seenByStack reports whether the node's stack sees packets of a flow at all.
func seenByStack[A abi.Address](v abi.FlowValue[A]) bool {
	return v.Action == abi.ActPass || v.Flags&abi.FlowFromHost != 0
}

// ShadowOf is what the stack sees of a translated connection: what it gives to programs, or what
// they give it.
func ShadowOf[A abi.Address](v abi.FlowValue[A], e conntrack.Entry) conntrack.Entry {
	if v.Flags&abi.FlowFromHost != 0 {
		e.Reply = e.Orig.Reversed()
	} else {
		e.Orig = e.Reply.Reversed()
	}
	return e
}
