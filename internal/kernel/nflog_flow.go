package kernel

import (
	"encoding/binary"
	"net/netip"
)

// LoggedFlow is a flow as connection tracking has it.
type LoggedFlow struct {
	Original, Reply Tuple
	state           int // enum ip_conntrack_info
}

// Tuple is one direction of a flow.
type Tuple struct {
	Src, Dst           netip.Addr
	Sport, Dport       uint16 // of TCP, UDP and SCTP
	Proto              uint8
	ICMPType, ICMPCode uint8 // of both families' ICMP
}

// enum ip_conntrack_info
const (
	flowEstablished      = 0
	flowReply            = 3 // and what follows: packets of the way back
	flowEstablishedReply = flowReply
)

// Established reports whether an answer was seen.
func (f *LoggedFlow) Established() bool {
	return f.state == flowEstablished || f.state == flowEstablishedReply
}

// Back reports whether the packet is one of the way back.
func (f *LoggedFlow) Back() bool { return f.state >= flowReply }

// Attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctTupleOriginal, ctTupleReply                      = 1, 2
	ctTupleIP, ctTupleProto                            = 1, 2
	ctV4Src, ctV4Dst, ctV6Src, ctV6Dst                 = 1, 2, 3, 4
	ctProtoNum, ctSrcPort, ctDstPort                   = 1, 2, 3
	ctICMPType, ctICMPCode, ctICMPv6Type, ctICMPv6Code = 5, 6, 8, 9
)

func flowOf(f *LoggedFlow) *LoggedFlow {
	if f == nil {
		return &LoggedFlow{}
	}
	return f
}

// read reads the attributes of a flow. What is cut or of an unknown kind is left out.
func (f *LoggedFlow) read(b []byte) {
	eachAttr(b, func(kind uint16, v []byte) {
		switch kind {
		case ctTupleOriginal:
			f.Original = tupleOf(v)
		case ctTupleReply:
			f.Reply = tupleOf(v)
		}
	})
}

func tupleOf(b []byte) (t Tuple) {
	eachAttr(b, func(kind uint16, v []byte) {
		switch kind {
		case ctTupleIP:
			eachAttr(v, func(kind uint16, v []byte) {
				a, ok := netip.AddrFromSlice(v)
				if !ok {
					return
				}
				switch kind {
				case ctV4Src, ctV6Src:
					t.Src = a
				case ctV4Dst, ctV6Dst:
					t.Dst = a
				}
			})
		case ctTupleProto:
			eachAttr(v, t.readProto)
		}
	})
	return t
}

func (t *Tuple) readProto(kind uint16, v []byte) {
	switch {
	case kind == ctProtoNum && len(v) >= 1:
		t.Proto = v[0]
	case kind == ctSrcPort && len(v) >= 2:
		t.Sport = binary.BigEndian.Uint16(v)
	case kind == ctDstPort && len(v) >= 2:
		t.Dport = binary.BigEndian.Uint16(v)
	case (kind == ctICMPType || kind == ctICMPv6Type) && len(v) >= 1:
		t.ICMPType = v[0]
	case (kind == ctICMPCode || kind == ctICMPv6Code) && len(v) >= 1:
		t.ICMPCode = v[0]
	}
}

// eachAttr walks netlink attributes up to the first that is cut.
func eachAttr(b []byte, f func(kind uint16, value []byte)) {
	for len(b) >= 4 {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])&0x3fff
		if size < 4 || size > len(b) {
			return
		}
		f(kind, b[4:size])
		b = b[min(len(b), (size+3)&^3):]
	}
}
