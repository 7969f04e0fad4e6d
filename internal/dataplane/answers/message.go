// SPDX-License-Identifier: Apache-2.0

package answers

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Answer is what a message says of addresses.
type Answer struct {
	ID    uint16
	Names []string // of the question, and those that it leads to (CNAME), in lower case, without the last dot
	Addrs []Addr
}

// Addr is an address of all names of an answer, and for how many seconds.
type Addr struct {
	Addr netip.Addr
	TTL  uint32
}

// What is read of one message at most. A pod has fewer addresses.
const (
	addrsMost = 4096
	namesMost = 64
)

var (
	// ErrNoAnswer is of messages that are no answer, without error, to one question.
	ErrNoAnswer = errors.New("no answer to a question")
	errTooMuch  = errors.New("too many names or addresses")
)

// MessageID is the ID of a message.
func MessageID(m []byte) (uint16, bool) {
	if len(m) < 12 {
		return 0, false
	}
	return uint16(m[0])<<8 | uint16(m[1]), true
}

// Read reads a message.
func Read(m []byte) (*Answer, error) {
	var p dnsmessage.Parser
	h, err := p.Start(m)
	if err != nil {
		return nil, err
	}
	questions, err := p.AllQuestions()
	if err != nil {
		return nil, err
	}
	if !h.Response || h.OpCode != 0 || h.RCode != dnsmessage.RCodeSuccess || len(questions) != 1 {
		return nil, ErrNoAnswer
	}
	out := &Answer{ID: h.ID, Names: []string{plain(questions[0].Name)}}
	least := ^uint32(0) // the least of the chain
	for {
		h, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return nil, err
		}
		if h.Class != dnsmessage.ClassINET {
			h.Type = 0
		}
		if h.Type == dnsmessage.TypeCNAME {
			least = min(least, h.TTL)
		}
		if err := out.record(&p, h); err != nil {
			return nil, err
		}
		if len(out.Addrs) > addrsMost || len(out.Names) > namesMost {
			return nil, errTooMuch
		}
	}
	for i := range out.Addrs {
		out.Addrs[i].TTL = min(out.Addrs[i].TTL, least)
	}
	return out, nil
}

// record reads the record whose header was read.
func (a *Answer) record(p *dnsmessage.Parser, h dnsmessage.ResourceHeader) error {
	switch h.Type {
	case dnsmessage.TypeA:
		r, err := p.AResource()
		if err == nil {
			a.Addrs = append(a.Addrs, Addr{netip.AddrFrom4(r.A), h.TTL})
		}
		return err
	case dnsmessage.TypeAAAA:
		r, err := p.AAAAResource()
		if err == nil {
			a.Addrs = append(a.Addrs, Addr{netip.AddrFrom16(r.AAAA), h.TTL})
		}
		return err
	case dnsmessage.TypeCNAME:
		r, err := p.CNAMEResource()
		if err == nil {
			a.Names = append(a.Names, plain(r.CNAME))
		}
		return err
	case dnsmessage.TypeSVCB:
		r, err := p.SVCBResource()
		if err == nil {
			a.hints(&r, h.TTL)
		}
		return err
	case dnsmessage.TypeHTTPS:
		r, err := p.HTTPSResource()
		if err == nil {
			a.hints(&r.SVCBResource, h.TTL)
		}
		return err
	}
	return p.SkipAnswer()
}

// hints adds the addresses that a record about a service has for its name (RFC 9460, section 7.3).
func (a *Answer) hints(r *dnsmessage.SVCBResource, ttl uint32) {
	add := func(key dnsmessage.SVCParamKey, size int) {
		list, _ := r.GetParam(key)
		for ; len(list) >= size; list = list[size:] {
			if addr, ok := netip.AddrFromSlice(list[:size]); ok {
				a.Addrs = append(a.Addrs, Addr{addr, ttl})
			}
		}
	}
	add(dnsmessage.SVCParamIPv4Hint, 4)
	add(dnsmessage.SVCParamIPv6Hint, 16)
}

func plain(n dnsmessage.Name) string { return strings.ToLower(strings.TrimSuffix(n.String(), ".")) }
