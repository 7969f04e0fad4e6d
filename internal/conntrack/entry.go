// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Tuple identifies a flow's packets in one direction.
type Tuple struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16 // of TCP, UDP, SCTP
	ID               uint16 // of ICMP
	Type, Code       uint8  // of ICMP
	Proto            uint8
}

// Types of ICMP and ICMPv6 messages.
const (
	EchoReply    = 0
	EchoRequest  = 8
	Echo6Request = 128
	Echo6Reply   = 129
)

// answers are the types of ICMP that answer a query, by its type: echo, timestamp, information,
// address mask. Those of ICMPv6 have other numbers.
var answers = map[uint8]uint8{EchoRequest: EchoReply, 13: 14, 15: 16, 17: 18, Echo6Request: Echo6Reply}

var queries = func() map[uint8]uint8 {
	out := map[uint8]uint8{}
	for q, a := range answers {
		out[a] = q
	}
	return out
}()

// Query returns the type of the query that a tuple of ICMP is of, and whether it is of the answer
// to it; ok is false for other messages.
func (t Tuple) Query() (query uint8, answer, ok bool) {
	if q, is := queries[t.Type]; is {
		query, answer, ok = q, true, true
	} else if _, is := answers[t.Type]; is {
		query, ok = t.Type, true
	}
	return query, answer, ok && t.ICMP() && t.Code == 0 && (query == Echo6Request) == t.Src.Is6()
}

// Reversed is the tuple of the answers, where nothing is translated. Of ICMP it is right for
// queries and their answers.
func (t Tuple) Reversed() Tuple {
	t.Src, t.Dst, t.SrcPort, t.DstPort = t.Dst, t.Src, t.DstPort, t.SrcPort
	if query, answer, ok := t.Query(); ok && answer {
		t.Type = query
	} else if ok {
		t.Type = answers[t.Type]
	}
	return t
}

// ICMP reports whether the tuple is of that protocol of its family.
func (t Tuple) ICMP() bool {
	return t.Proto == unix.IPPROTO_ICMP && t.Src.Is4() || t.Proto == unix.IPPROTO_ICMPV6 && t.Src.Is6()
}

// Ported reports whether the tuple has ports.
func (t Tuple) Ported() bool {
	return t.Proto == unix.IPPROTO_TCP || t.Proto == unix.IPPROTO_UDP || t.Proto == unix.IPPROTO_SCTP
}

func (t Tuple) String() string {
	if t.ICMP() {
		return fmt.Sprintf("%s -> %s icmp %d/%d id %d", t.Src, t.Dst, t.Type, t.Code, t.ID)
	}
	return fmt.Sprintf("%s -> %s protocol %d", netip.AddrPortFrom(t.Src, t.SrcPort), netip.AddrPortFrom(t.Dst, t.DstPort), t.Proto)
}

// Status is enum ip_conntrack_status.
type Status uint32

const (
	SeenReply Status = 1 << 1
	Assured   Status = 1 << 2
	Confirmed Status = 1 << 3
)

// States of TCP, enum tcp_conntrack.
const (
	TCPSynSent     = 1
	TCPSynRecv     = 2
	TCPEstablished = 3
	TCPFinWait     = 4
	TCPCloseWait   = 5
	TCPLastAck     = 6
	TCPTimeWait    = 7
	TCPClose       = 8
)

// Flags of one direction of TCP, IP_CT_TCP_FLAG_*.
const (
	TCPCloseInit = 0x04 // closed by this side
	TCPLiberal   = 0x08 // the window is not looked at
)

// TCP is what is tracked of a connection in addition to its tuples.
type TCP struct {
	State               uint8
	OrigFlags, RepFlags uint8
}

// Entry is a tracked connection.
type Entry struct {
	Orig, Reply Tuple // Reply is of the answers as they come: it is Orig turned where nothing is translated
	Status      Status
	Left        time.Duration // until it is forgotten, whole seconds
	Mark        uint32
	Zone        uint16
	TCP         TCP // of TCP
	SCTP        uint8
}

// Translated reports whether packets change on their way.
func (e Entry) Translated() bool { return e.Reply != e.Orig.Reversed() }

// States of SCTP, enum sctp_conntrack.
const SCTPEstablished = 4
