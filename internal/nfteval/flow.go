// SPDX-License-Identifier: Apache-2.0

package nfteval

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// States of a flow, as rules see them.
const (
	StateInvalid     = 1
	StateEstablished = 2
	StateRelated     = 4
	StateNew         = 8
)

// Bits of a flow's status (enum ip_conntrack_status).
const (
	seenReply  = 1 << 1
	statusSNAT = 1 << 4
	statusDNAT = 1 << 5
)

// Tuple is one direction of a flow. Of ICMP the source port is the identifier, the destination port
// type and code.
type Tuple struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
}

// Flow is what connection tracking knows of a packet's flow.
type Flow struct {
	Known           bool // before the packet
	State           uint32
	IsReply         bool // the packet is of the reply's direction
	Status, Mark    uint32
	Left            uint32 // seconds until it is forgotten
	Original, Reply Tuple
}

// Attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet                                         = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctOriginal, ctReply, ctStatus, ctLeft, ctMark = 1, 2, 3, 7, 8
	tupleIP, tupleProto                           = 1, 2
	protoNumber, protoSrc, protoDst               = 1, 2, 3
	icmpID, icmpType, icmpCode                    = 4, 5, 6
	icmp6ID, icmp6Type, icmp6Code                 = 7, 8, 9
)

// FindFlow asks connection tracking for the flow of a packet with these ends, and makes a new one
// when there is none.
func FindFlow(t Tuple, proto uint8) (Flow, error) {
	family, src, dst := uint8(unix.AF_INET), 1, 2
	if t.Src.Is6() {
		family, src, dst = unix.AF_INET6, 3, 4
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|ctOriginal, nil)
	ip := tuple.AddRtAttr(unix.NLA_F_NESTED|tupleIP, nil)
	ip.AddRtAttr(src, t.Src.AsSlice())
	ip.AddRtAttr(dst, t.Dst.AsSlice())
	p := tuple.AddRtAttr(unix.NLA_F_NESTED|tupleProto, nil)
	p.AddRtAttr(protoNumber, []byte{proto})
	message := func(id, kind, code int) {
		p.AddRtAttr(id, be16(t.SrcPort))
		p.AddRtAttr(kind, []byte{byte(t.DstPort >> 8)})
		p.AddRtAttr(code, []byte{byte(t.DstPort)})
	}
	switch proto {
	case unix.IPPROTO_ICMP:
		message(icmpID, icmpType, icmpCode)
	case unix.IPPROTO_ICMPV6:
		message(icmp6ID, icmp6Type, icmp6Code)
	default:
		p.AddRtAttr(protoSrc, be16(t.SrcPort))
		p.AddRtAttr(protoDst, be16(t.DstPort))
	}
	req := nl.NewNetlinkRequest(ctGet, unix.NLM_F_ACK) // the answer says that more comes, which is the acknowledgement alone
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family})
	req.AddData(tuple)
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return Flow{State: StateNew, Original: t, Reply: t.reversed(proto)}, nil
	}
	if err != nil || len(msgs) == 0 || len(msgs[0]) < nl.SizeofNfgenmsg {
		return Flow{}, fmt.Errorf("asking connection tracking for %v: %w", t, err)
	}
	return readFlow(t, msgs[0][nl.SizeofNfgenmsg:])
}

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }

// reversed are the ends of an answer.
func (t Tuple) reversed(proto uint8) Tuple {
	out := Tuple{Src: t.Dst, Dst: t.Src, SrcPort: t.DstPort, DstPort: t.SrcPort}
	if proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6 {
		out.SrcPort, out.DstPort = t.SrcPort, t.DstPort // what the answer's type is does not matter here
	}
	return out
}

func readFlow(packet Tuple, b []byte) (f Flow, err error) {
	a, err := attributes(b)
	if err != nil {
		return f, err
	}
	f = Flow{Known: true, State: StateNew, Status: number(a[ctStatus]), Mark: number(a[ctMark]), Left: number(a[ctLeft])}
	if f.Original, err = readTuple(a[ctOriginal]); err != nil {
		return f, err
	}
	if f.Reply, err = readTuple(a[ctReply]); err != nil {
		return f, err
	}
	f.IsReply = packet.Src != f.Original.Src || packet.Dst != f.Original.Dst || packet.SrcPort != f.Original.SrcPort
	if f.IsReply || f.Status&seenReply != 0 {
		f.State = StateEstablished
	}
	return f, nil
}

func readTuple(b []byte) (t Tuple, err error) {
	a, err := attributes(b)
	if err != nil {
		return t, err
	}
	ip, err := attributes(a[tupleIP])
	if err != nil {
		return t, err
	}
	p, err := attributes(a[tupleProto])
	if err != nil {
		return t, err
	}
	for _, at := range []uint16{1, 3} {
		if v, ok := ip[at]; ok {
			t.Src, _ = netip.AddrFromSlice(v)
			t.Dst, _ = netip.AddrFromSlice(ip[at+1])
		}
	}
	t.SrcPort, t.DstPort = uint16(number(p[protoSrc])), uint16(number(p[protoDst]))
	for _, at := range []uint16{icmpID, icmp6ID} {
		if v, ok := p[at]; ok {
			t.SrcPort, t.DstPort = uint16(number(v)), uint16(number(p[at+1])<<8|number(p[at+2]))
		}
	}
	return t, nil
}
