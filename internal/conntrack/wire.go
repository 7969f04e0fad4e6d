// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h that package nl has not.
const (
	ctaNATSrc = 6
	ctaNATDst = 13

	ctaProtoICMPID, ctaProtoICMPType, ctaProtoICMPCode    = 4, 5, 6
	ctaProtoICMP6ID, ctaProtoICMP6Type, ctaProtoICMP6Code = 7, 8, 9

	ctaNATV4Min, ctaNATV4Max, ctaNATProto, ctaNATV6Min, ctaNATV6Max = 1, 2, 3, 4, 5
	ctaProtoNATMin, ctaProtoNATMax                                  = 1, 2

	ctaSCTPState, ctaSCTPTagOrig, ctaSCTPTagReply = 1, 2, 3

	nested   = unix.NLA_F_NESTED
	typeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
)

// attr appends an attribute.
func attr(b []byte, kind uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

// appendTuple appends a tuple as CTA_TUPLE_ORIG or CTA_TUPLE_REPLY.
func appendTuple(b []byte, kind uint16, t Tuple) []byte {
	var ip, proto []byte
	if t.Src.Is4() {
		ip = attr(attr(nil, nl.CTA_IP_V4_SRC, t.Src.AsSlice()), nl.CTA_IP_V4_DST, t.Dst.AsSlice())
	} else {
		ip = attr(attr(nil, nl.CTA_IP_V6_SRC, t.Src.AsSlice()), nl.CTA_IP_V6_DST, t.Dst.AsSlice())
	}
	proto = attr(nil, nl.CTA_PROTO_NUM, []byte{t.Proto})
	switch {
	case t.ICMP() && t.Src.Is4():
		proto = attr(attr(attr(proto, ctaProtoICMPID, be16(t.ID)), ctaProtoICMPType, []byte{t.Type}), ctaProtoICMPCode, []byte{t.Code})
	case t.ICMP():
		proto = attr(attr(attr(proto, ctaProtoICMP6ID, be16(t.ID)), ctaProtoICMP6Type, []byte{t.Type}), ctaProtoICMP6Code, []byte{t.Code})
	case t.Ported():
		proto = attr(attr(proto, nl.CTA_PROTO_SRC_PORT, be16(t.SrcPort)), nl.CTA_PROTO_DST_PORT, be16(t.DstPort))
	}
	return attr(b, kind|nested, attr(attr(nil, nl.CTA_TUPLE_IP|nested, ip), nl.CTA_TUPLE_PROTO|nested, proto))
}

// appendZone appends a zone, if it is not the one that counts without.
func appendZone(b []byte, zone uint16) []byte {
	if zone == 0 {
		return b
	}
	return attr(b, nl.CTA_ZONE, be16(zone))
}

// appendNAT appends what one end becomes, as CTA_NAT_SRC or CTA_NAT_DST.
func appendNAT(b []byte, kind uint16, t Tuple, addr netip.Addr, port uint16) []byte {
	lo, hi := uint16(ctaNATV4Min), uint16(ctaNATV4Max)
	if addr.Is6() {
		lo, hi = ctaNATV6Min, ctaNATV6Max
	}
	nat := attr(attr(nil, lo, addr.AsSlice()), hi, addr.AsSlice())
	if t.Ported() || t.ICMP() && kind == ctaNATSrc {
		nat = attr(nat, ctaNATProto|nested, attr(attr(nil, ctaProtoNATMin, be16(port)), ctaProtoNATMax, be16(port)))
	}
	return attr(b, kind|nested, nat)
}

// encode makes the attributes of a new entry. The kernel wants the tuple of the answers before
// translation, and makes of it, by what the ends become, the one that it keeps; where the tuple is
// given translated it sees nothing to translate.
func (e Entry) encode() []byte {
	b := appendTuple(nil, nl.CTA_TUPLE_ORIG, e.Orig)
	b = appendTuple(b, nl.CTA_TUPLE_REPLY, e.Orig.Reversed())
	if e.Translated() || e.Mark != 0 { // with a mark it says that nothing is to be translated: nobody chooses for it again
		source := e.Reply.DstPort
		if e.Orig.ICMP() {
			source = e.Reply.ID
		}
		b = appendNAT(b, ctaNATSrc, e.Orig, e.Reply.Dst, source)
		b = appendNAT(b, ctaNATDst, e.Orig, e.Reply.Src, e.Reply.SrcPort)
	}
	b = attr(b, nl.CTA_STATUS, be32(uint32(e.Status|Confirmed)))
	b = attr(b, nl.CTA_TIMEOUT, be32(uint32(max(e.Left/time.Second, 1))))
	b = appendZone(attr(b, nl.CTA_MARK, be32(e.Mark)), e.Zone)
	switch e.Orig.Proto {
	case unix.IPPROTO_TCP:
		const all = 0xff
		tcp := attr(nil, nl.CTA_PROTOINFO_TCP_STATE, []byte{e.TCP.State})
		tcp = attr(tcp, nl.CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, []byte{e.TCP.OrigFlags, all})
		tcp = attr(tcp, nl.CTA_PROTOINFO_TCP_FLAGS_REPLY, []byte{e.TCP.RepFlags, all})
		b = attr(b, nl.CTA_PROTOINFO|nested, attr(nil, nl.CTA_PROTOINFO_TCP|nested, tcp))
	case unix.IPPROTO_SCTP:
		sctp := attr(nil, ctaSCTPState, []byte{e.SCTP})
		sctp = attr(attr(sctp, ctaSCTPTagOrig, be32(0)), ctaSCTPTagReply, be32(0)) // heartbeats set them
		b = attr(b, nl.CTA_PROTOINFO|nested, attr(nil, nl.CTA_PROTOINFO_SCTP|nested, sctp))
	}
	return b
}

var errShort = errors.New("an attribute is too short")

// each hands on the attributes of b.
func each(b []byte, f func(kind uint16, data []byte) error) error {
	for len(b) >= 4 {
		n, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])&typeMask
		if n < 4 || n > len(b) {
			return errShort
		}
		if err := f(kind, b[4:n]); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

// decode reads an entry from a message of ctnetlink, with its struct nfgenmsg.
func decode(msg []byte) (Entry, error) {
	var e Entry
	if len(msg) < nl.SizeofNfgenmsg {
		return e, errShort
	}
	err := each(msg[nl.SizeofNfgenmsg:], func(kind uint16, data []byte) (err error) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			e.Orig, err = decodeTuple(data)
		case nl.CTA_TUPLE_REPLY:
			e.Reply, err = decodeTuple(data)
		case nl.CTA_PROTOINFO:
			err = e.decodeState(data)
		case nl.CTA_STATUS, nl.CTA_TIMEOUT, nl.CTA_MARK:
			if len(data) < 4 {
				return errShort
			}
			n := binary.BigEndian.Uint32(data)
			switch kind {
			case nl.CTA_STATUS:
				e.Status = Status(n)
			case nl.CTA_TIMEOUT:
				e.Left = time.Duration(n) * time.Second
			default:
				e.Mark = n
			}
		case nl.CTA_ZONE:
			if len(data) < 2 {
				return errShort
			}
			e.Zone = binary.BigEndian.Uint16(data)
		}
		return err
	})
	if err == nil && (!e.Orig.valid() || !e.Reply.valid()) {
		err = errors.New("it has no tuples")
	}
	if err != nil {
		return e, fmt.Errorf("reading a tracked connection: %w", err)
	}
	return e, nil
}

func (t Tuple) valid() bool { return t.Src.IsValid() && t.Dst.IsValid() && t.Src.Is4() == t.Dst.Is4() }

func decodeTuple(b []byte) (t Tuple, err error) {
	address := func(data []byte) (netip.Addr, error) {
		a, ok := netip.AddrFromSlice(data)
		if !ok {
			return a, errShort
		}
		return a, nil
	}
	err = each(b, func(kind uint16, data []byte) error {
		switch kind {
		case nl.CTA_TUPLE_IP:
			return each(data, func(kind uint16, data []byte) (err error) {
				switch kind {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					t.Src, err = address(data)
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					t.Dst, err = address(data)
				}
				return err
			})
		case nl.CTA_TUPLE_PROTO:
			return each(data, t.decodeProto)
		}
		return nil
	})
	return t, err
}

func (t *Tuple) decodeProto(kind uint16, data []byte) error {
	switch kind {
	case nl.CTA_PROTO_NUM, ctaProtoICMPType, ctaProtoICMPCode, ctaProtoICMP6Type, ctaProtoICMP6Code:
		if len(data) < 1 {
			return errShort
		}
	case nl.CTA_PROTO_SRC_PORT, nl.CTA_PROTO_DST_PORT, ctaProtoICMPID, ctaProtoICMP6ID:
		if len(data) < 2 {
			return errShort
		}
	}
	switch kind {
	case nl.CTA_PROTO_NUM:
		t.Proto = data[0]
	case ctaProtoICMPType, ctaProtoICMP6Type:
		t.Type = data[0]
	case ctaProtoICMPCode, ctaProtoICMP6Code:
		t.Code = data[0]
	case nl.CTA_PROTO_SRC_PORT:
		t.SrcPort = binary.BigEndian.Uint16(data)
	case nl.CTA_PROTO_DST_PORT:
		t.DstPort = binary.BigEndian.Uint16(data)
	case ctaProtoICMPID, ctaProtoICMP6ID:
		t.ID = binary.BigEndian.Uint16(data)
	}
	return nil
}

// decodeState reads CTA_PROTOINFO.
func (e *Entry) decodeState(b []byte) error {
	return each(b, func(proto uint16, data []byte) error {
		return each(data, func(kind uint16, data []byte) error {
			if len(data) < 1 {
				return errShort
			}
			switch {
			case proto == nl.CTA_PROTOINFO_TCP && kind == nl.CTA_PROTOINFO_TCP_STATE:
				e.TCP.State = data[0]
			case proto == nl.CTA_PROTOINFO_TCP && kind == nl.CTA_PROTOINFO_TCP_FLAGS_ORIGINAL:
				e.TCP.OrigFlags = data[0]
			case proto == nl.CTA_PROTOINFO_TCP && kind == nl.CTA_PROTOINFO_TCP_FLAGS_REPLY:
				e.TCP.RepFlags = data[0]
			case proto == nl.CTA_PROTOINFO_SCTP && kind == ctaSCTPState:
				e.SCTP = data[0]
			}
			return nil
		})
	})
}
