// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/weir-net/weir/internal/packet"
)

// with replaces words of a packet's text: key=value by key, everything else as TCP flags or SCTP
// chunk.
func with(p *packet.Packet, replace []string) (*packet.Packet, error) {
	words, err := packet.Words(p.String())
	if err != nil {
		return nil, err
	}
	for _, r := range replace {
		key, _, keyed := strings.Cut(r, "=")
		if !keyed && (p.Kind == packet.TCP || p.Kind == packet.SCTP && r != "nosum") {
			words[4] = r
			continue
		}
		done := false
		for i, w := range words {
			if strings.HasPrefix(w, key+"=") {
				words[i], done = r, true
			}
		}
		if !done {
			words = append(words, r)
		}
	}
	return packet.Parse(strings.Join(words, " "))
}

// answer is what the receiver of p sends back.
func answer(p *packet.Packet, words []string) (*packet.Packet, error) {
	var text string
	switch p.Kind {
	case packet.TCP, packet.UDP, packet.SCTP:
		proto, flags := "udp", ""
		switch p.Kind {
		case packet.TCP:
			proto, flags = "tcp", " ."
		case packet.SCTP:
			proto, flags = "sctp", " DATA"
		}
		text = fmt.Sprintf("%s %s > %s%s", proto, netip.AddrPortFrom(p.IP.Dst, p.DstPort), netip.AddrPortFrom(p.IP.Src, p.SrcPort), flags)
	case packet.Echo:
		a := packet.Packet{Kind: packet.Echo, IP: packet.IPv4{Src: p.IP.Dst, Dst: p.IP.Src, TTL: 64}, ICMPType: packet.AnswerType(p.ICMPType), ID: p.ID, EchoSeq: p.EchoSeq}
		text = a.String()
	default:
		return nil, errors.New("this kind of packet has no reply")
	}
	a, err := packet.Parse(text)
	if err != nil {
		return nil, err
	}
	return with(a, words)
}

// report is an ICMP error about p.
func report(p *packet.Packet, src string, words []string) (*packet.Packet, error) {
	q := p.Clone()
	q.DstMAC, q.SrcMAC = packet.MAC{}, packet.MAC{}
	if q.Kind != packet.Other {
		q.Payload = nil
	}
	return packet.Parse(fmt.Sprintf("icmp %s > %s error %s [%s]", src, p.IP.Src, strings.Join(words, " "), q))
}
