// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
)

// number is a field that is written as a number.
type number struct {
	p      any // *uint8, *uint16, *uint32
	plain  uint32
	hex    bool
	always bool // written even when it has its default
}

func (f number) set(s string) error {
	var bits int
	switch f.p.(type) {
	case *uint8:
		bits = 8
	case *uint16:
		bits = 16
	default:
		bits = 32
	}
	v, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		return err
	}
	switch d := f.p.(type) {
	case *uint8:
		*d = uint8(v)
	case *uint16:
		*d = uint16(v)
	case *uint32:
		*d = uint32(v)
	}
	return nil
}

func (f number) get() uint32 {
	switch d := f.p.(type) {
	case *uint8:
		return uint32(*d)
	case *uint16:
		return uint32(*d)
	}
	return *f.p.(*uint32)
}

// order is the order in which String writes the numbers.
var order = []string{"type", "code", "rest", "proto", "seq", "ack", "win", "urg", "res", "tag", "id", "ttl", "tos", "ipid", "ulen", "badipsum", "badsum", "badcrc"}

// number returns the field of that name, nil where p's kind has none.
func (p *Packet) number(key string) *number {
	icmp := p.Kind == Echo || p.Kind == Error
	l4 := icmp || p.Kind == TCP || p.Kind == UDP
	switch {
	case key == "type" && p.Kind == Frame:
		return &number{p: &p.Type, hex: true, always: true}
	case p.Kind == Frame:
		return nil
	case key == "ttl":
		return &number{p: &p.IP.TTL, plain: defaultTTL, always: true}
	case key == "tos":
		return &number{p: &p.IP.TOS}
	case key == "ipid":
		return &number{p: &p.IP.ID}
	case key == "badipsum":
		return &number{p: &p.IP.SumError, hex: true}
	case key == "badsum" && l4:
		return &number{p: &p.SumError, hex: true}
	case key == "proto" && p.Kind == Other:
		return &number{p: &p.IP.Proto, always: true}
	case key == "tag" && p.Kind == SCTP:
		return &number{p: &p.Tag}
	case key == "badcrc" && p.Kind == SCTP:
		return &number{p: &p.CRCError, hex: true}
	case key == "ulen" && p.Kind == UDP:
		return &number{p: &p.UDPLength}
	case key == "code" && icmp:
		return &number{p: &p.ICMPCode}
	case key == "seq" && p.Kind == Echo:
		return &number{p: &p.EchoSeq}
	case key == "id" && p.Kind == Echo:
		return &number{p: &p.ID, always: true}
	case key == "type" && p.Kind == Echo && (wordOf(p.ICMPType) == "query" || wordOf(p.ICMPType) == "answer"):
		return &number{p: &p.ICMPType, always: true}
	case p.Kind == Error:
		switch key {
		case "type":
			return &number{p: &p.ICMPType, always: true}
		case "rest":
			return &number{p: &p.Rest}
		}
	case p.Kind == TCP:
		switch key {
		case "seq":
			return &number{p: &p.Seq}
		case "ack":
			return &number{p: &p.Ack}
		case "win":
			return &number{p: &p.Window, plain: defaultWindow}
		case "urg":
			return &number{p: &p.Urgent}
		case "res":
			return &number{p: &p.Reserved}
		}
	}
	return nil
}

func parseMAC(s string, m *MAC) error {
	b, err := hex.DecodeString(strings.ReplaceAll(s, ":", ""))
	if err != nil || len(b) != len(m) || len(s) != 17 {
		return errors.New("not a MAC address")
	}
	copy(m[:], b)
	return nil
}

func parseData(s string, to *[]byte) error {
	if h, ok := strings.CutPrefix(s, "0x"); ok {
		b, err := hex.DecodeString(h)
		*to = b
		return err
	}
	t, err := strconv.Unquote(s)
	if err != nil {
		return errors.New(`neither "text" nor 0x…`)
	}
	*to = []byte(t)
	return nil
}

func formatData(b []byte) string {
	for _, c := range b {
		if c < ' ' || c > '~' {
			return "0x" + hex.EncodeToString(b)
		}
	}
	return strconv.Quote(string(b))
}
