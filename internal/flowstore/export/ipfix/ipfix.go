// SPDX-License-Identifier: Apache-2.0

// Package ipfix sends flow records to collectors of IPFIX (RFC 7011): each as a flow of both
// directions (RFC 5103) of IPv4 or IPv6, with elements of IANA's registry alone. They go by UDP, of
// which nobody knows whether it arrives, by TCP, or by TLS.
package ipfix

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore/export"
)

// The schemes of addresses, and their ports.
const (
	TLS  = "tls"
	TCP  = "tcp"
	UDP  = "udp"
	Port = "4739"
	// SecurePort is for TLS.
	SecurePort = "4740"
)

const (
	version = 10
	// domain is the observation domain: the cluster.
	domain       = 1
	templateSet  = 2
	template4    = 256
	template6    = 257
	enterprise   = 1 << 15 // an enterprise's number follows
	reverse      = 29305   // of RFC 5103
	messageMost  = 1400    // bytes, so that UDP needs no fragments
	headerLen    = 16
	templateTime = time.Minute // between templates by UDP
	dialTime     = 10 * time.Second
)

// element is one field of a template.
type element struct {
	id, length uint16
	reverse    bool
}

// elements of both templates, in the order in which appendRecord writes them.
func elements(source, destination, icmp, size uint16) []element {
	return []element{
		{id: 152, length: 8},            // flowStartMilliseconds
		{id: 153, length: 8},            // flowEndMilliseconds
		{id: source, length: size},      // source…Address
		{id: destination, length: size}, // destination…Address
		{id: 7, length: 2},              // sourceTransportPort
		{id: 11, length: 2},             // destinationTransportPort
		{id: 4, length: 1},              // protocolIdentifier
		{id: 6, length: 2},              // tcpControlBits
		{id: icmp, length: 2},           // icmpTypeCode…
		{id: 136, length: 1},            // flowEndReason
		{id: 233, length: 1},            // firewallEvent
		{id: 2, length: 8},              // packetDeltaCount
		{id: 1, length: 8},              // octetDeltaCount
		{id: 2, length: 8, reverse: true},
		{id: 1, length: 8, reverse: true},
	}
}

var (
	fields4 = elements(8, 12, 32, 4)
	fields6 = elements(27, 28, 139, 16)
)

func lengthOf(fields []element) (n int) {
	for _, f := range fields {
		n += int(f.length)
	}
	return n
}

// Sender implements export.Sender.
type Sender struct {
	addr      export.Address
	folder    string
	conn      net.Conn
	sequence  uint32    // data records that were sent by this connection
	templates time.Time // when they were sent last
	now       func() time.Time
	b         []byte
}

// New returns a sender; folder has certificates for TLS, as export.TLS reads them.
func New(to, folder string) (*Sender, error) {
	port := Port
	if strings.HasPrefix(to, TLS+":") {
		port = SecurePort
	}
	addr, err := export.ParseAddress(to, port, TLS, TCP, UDP)
	if err == nil && addr.Scheme == TLS {
		_, err = export.TLS(folder, addr.Host)
	}
	if err != nil {
		return nil, err
	}
	return &Sender{addr: addr, folder: folder, now: time.Now}, nil
}

// Close implements export.Sender.
func (s *Sender) Close() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn = nil
	return err
}

func (s *Sender) dial(ctx context.Context) (err error) {
	d := &net.Dialer{Timeout: dialTime}
	switch s.addr.Scheme {
	case UDP:
		s.conn, err = d.DialContext(ctx, "udp", s.addr.HostPort())
	case TCP:
		s.conn, err = d.DialContext(ctx, "tcp", s.addr.HostPort())
	default:
		var cfg *tls.Config
		if cfg, err = export.TLS(s.folder, s.addr.Host); err == nil {
			s.conn, err = (&tls.Dialer{NetDialer: d, Config: cfg}).DialContext(ctx, "tcp", s.addr.HostPort())
		}
	}
	if err != nil {
		s.conn = nil
		return err
	}
	s.sequence, s.templates = 0, time.Time{}
	return nil
}

// Send implements export.Sender. Where a connection ends in the middle of a batch all of it is sent
// again, so that a collector may have some twice.
func (s *Sender) Send(ctx context.Context, records []*flows.Flow) (err error) {
	if s.conn == nil {
		if err := s.dial(ctx); err != nil {
			return err
		}
	}
	defer func() {
		var refused *export.Refused
		if err != nil && !errors.As(err, &refused) {
			err = errors.Join(err, s.Close())
		}
	}()
	if at, is := ctx.Deadline(); is {
		if err := s.conn.SetWriteDeadline(at); err != nil {
			return err
		}
	}
	if s.templates.IsZero() || s.addr.Scheme == UDP && s.now().Sub(s.templates) >= templateTime {
		s.begin()
		s.b = appendTemplates(s.b)
		if err := s.end(0); err != nil {
			return err
		}
		s.templates = s.now()
	}
	none := 0
	for _, set := range []struct {
		id     uint16
		fields []element
		four   bool
	}{{template4, fields4, true}, {template6, fields6, false}} {
		n, most := 0, (messageMost-headerLen-4)/lengthOf(set.fields)
		for _, f := range records {
			from, to := f.Source.Address.Unmap(), f.Destination.Address.Unmap()
			if !from.IsValid() || !to.IsValid() || from.Is4() != to.Is4() {
				if set.four {
					none++
				}
				continue
			}
			if from.Is4() != set.four {
				continue
			}
			if n == 0 {
				s.begin()
				s.b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(s.b, set.id), 0)
			}
			if s.b = appendRecord(s.b, f, from, to); n+1 < most {
				n++
				continue
			}
			if err := s.end(n + 1); err != nil {
				return err
			}
			n = 0
		}
		if n > 0 {
			if err := s.end(n); err != nil {
				return err
			}
		}
	}
	if none > 0 {
		return &export.Refused{Records: none, Why: errors.New("they have no addresses of one family")}
	}
	return nil
}

// begin begins a message; end writes its lengths, and sends it with so many data records.
func (s *Sender) begin() { s.b = append(s.b[:0], make([]byte, headerLen)...) }

func (s *Sender) end(records int) error {
	be := binary.BigEndian
	be.PutUint16(s.b, version)
	be.PutUint16(s.b[2:], uint16(len(s.b)))
	be.PutUint32(s.b[4:], uint32(s.now().Unix()))
	be.PutUint32(s.b[8:], s.sequence)
	be.PutUint32(s.b[12:], domain)
	be.PutUint16(s.b[headerLen+2:], uint16(len(s.b)-headerLen))
	if _, err := s.conn.Write(s.b); err != nil {
		return fmt.Errorf("send to %s: %w", s.addr.HostPort(), err)
	}
	s.sequence += uint32(records)
	return nil
}

func appendTemplates(b []byte) []byte {
	be := binary.BigEndian
	b = be.AppendUint16(be.AppendUint16(b, templateSet), 0)
	for id, fields := range [][]element{fields4, fields6} {
		b = be.AppendUint16(be.AppendUint16(b, template4+uint16(id)), uint16(len(fields)))
		for _, f := range fields {
			if !f.reverse {
				b = be.AppendUint16(be.AppendUint16(b, f.id), f.length)
				continue
			}
			b = be.AppendUint32(be.AppendUint16(be.AppendUint16(b, enterprise|f.id), f.length), reverse)
		}
	}
	return b
}

// Values of flowEndReason and firewallEvent.
const (
	endIdle   = 1
	endActive = 2
	endOfFlow = 3

	firewallDenied  = 3
	firewallDeleted = 2
	firewallUpdate  = 5
)

func appendRecord(b []byte, f *flows.Flow, from, to netip.Addr) []byte {
	be := binary.BigEndian
	start := f.Start
	if start.IsZero() {
		start = f.End
	}
	b = be.AppendUint64(be.AppendUint64(b, uint64(start.UnixMilli())), uint64(f.End.UnixMilli()))
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	b = be.AppendUint16(be.AppendUint16(b, f.Source.Port), f.Destination.Port)
	b = append(b, protocolOf(f.Protocol))
	b = be.AppendUint16(be.AppendUint16(b, flagsOf(f.TCPFlags)), icmpOf(f.ICMP))
	reason, event := byte(endActive), byte(firewallUpdate)
	switch {
	case f.Verdict != flows.Allowed:
		event = firewallDenied
	case f.Ended == "expired":
		reason, event = endIdle, firewallDeleted
	case f.Ended != "":
		reason, event = endOfFlow, firewallDeleted
	}
	b = append(b, reason, event)
	b = be.AppendUint64(be.AppendUint64(b, f.Sent.Packets), f.Sent.Bytes)
	return be.AppendUint64(be.AppendUint64(b, f.Received.Packets), f.Received.Bytes)
}

var protocols = map[string]byte{"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132}

// protocolOf is the number of a protocol as records name it; 255, which is reserved, of others.
func protocolOf(text string) byte {
	if n, is := protocols[strings.ToLower(text)]; is {
		return n
	}
	if n, err := strconv.ParseUint(strings.TrimPrefix(text, "proto"), 10, 8); err == nil {
		return byte(n)
	}
	return 255
}

var flags = map[string]uint16{"FIN": 1, "SYN": 2, "RST": 4, "PSH": 8, "ACK": 16, "URG": 32}

func flagsOf(text string) (n uint16) {
	for name := range strings.FieldsSeq(text) {
		n |= flags[name]
	}
	return n
}

// icmpOf is type * 256 + code of "type/code".
func icmpOf(text string) uint16 {
	kind, code, _ := strings.Cut(text, "/")
	k, err := strconv.ParseUint(kind, 10, 8)
	c, err2 := strconv.ParseUint(code, 10, 8)
	if err != nil || err2 != nil {
		return 0
	}
	return uint16(k)<<8 | uint16(c)
}
