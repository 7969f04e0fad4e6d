// SPDX-License-Identifier: Apache-2.0

// Package records makes records of flows from what connection tracking counts: of those that are
// open once an interval, and of each that ends when the kernel forgets it. What policy says of a
// flow is looked up in the state when its record is made, which a change binds open connections to,
// too. Of TCP's flags those are there that the tracked state implies.
package records

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/events"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Reader reads the records of a network namespace. It is for one goroutine.
type Reader struct {
	interval  time.Duration
	table     *conntrack.Table
	destroyed *conntrack.Destroyed
	next      time.Time // when open connections are looked at
	lost      uint64    // how often there was no room for connections that ended
	ended     uint64    // connections that are reported as ended
	open      uint64    // that were open when they were looked at last
}

// Open has the kernel count, and begins to listen for connections that end. Connections that are
// open are looked at once an interval.
func Open(interval time.Duration) (_ *Reader, err error) {
	if err := conntrack.Account(); err != nil {
		return nil, err
	}
	r := &Reader{interval: interval, next: time.Now().Add(interval)}
	if r.destroyed, err = conntrack.WatchDestroyed(); err != nil {
		return nil, err
	}
	if r.table, err = conntrack.Open(); err != nil {
		return nil, errors.Join(err, r.destroyed.Close())
	}
	return r, nil
}

// Close ends it.
func (r *Reader) Close() error {
	r.table.Close()
	return r.destroyed.Close()
}

// Lost counts since Open.
func (r *Reader) Lost() dataplane.LostRecords {
	return dataplane.LostRecords{Begun: r.ended + r.open, Full: r.lost}
}

// Each hands on the records that are there, and does not wait.
func (r *Reader) Each(v *events.View, give func(dataplane.FlowRecord)) error {
	now := time.Now()
	each := func(a conntrack.Accounted) bool {
		there, back, is := recordsOf(v, a, now.Add(-r.interval), now)
		if !is {
			return false
		}
		for _, one := range []dataplane.FlowRecord{there, back} {
			if one.Packets > 0 {
				give(one)
			}
		}
		return true
	}
	lost, err := r.destroyed.Each(func(a conntrack.Accounted) {
		if a.Stopped.IsZero() {
			a.Stopped = now
		}
		if each(a) {
			r.ended++
		}
	})
	if lost {
		r.lost++
	}
	if now.Before(r.next) {
		return err
	}
	r.next, r.open = now.Add(r.interval), 0
	for _, six := range []bool{false, true} {
		err = errors.Join(err, r.table.TakeCounters(six, func(a conntrack.Accounted) {
			if each(a) {
				r.open++
			}
		}))
	}
	return err
}

// recordsOf makes the records of both directions; not is where neither a pod of this node nor a
// Service has to do with the connection. Since is when it began, where the kernel does not say it.
func recordsOf(v *events.View, a conntrack.Accounted, since, now time.Time) (there, back dataplane.FlowRecord, is bool) {
	if v == nil || v.State == nil {
		return there, back, false
	}
	s, orig, reply := v.State, a.Orig, a.Reply
	var svc nodestate.Service
	var toService bool
	if orig.Ported() {
		svc, toService = s.ServiceAt(nodestate.Frontend{Addr: orig.Dst, Port: orig.DstPort, Proto: model.Protocol(orig.Proto)})
	}
	if src, dst := s.Addrs[orig.Src].Kind, s.Addrs[reply.Src].Kind; src != nodestate.AddrEndpoint && dst != nodestate.AddrEndpoint && !toService {
		return there, back, false
	}
	there = dataplane.FlowRecord{Src: orig.Src, Dst: orig.Dst, Proto: model.Protocol(orig.Proto), ToSrc: reply.Dst, ToDst: reply.Src,
		Packets: a.Sent.Packets, Bytes: a.Sent.Bytes, TCPFlags: flagsOf(a, true), Started: a.Started, Until: now,
		SNAT: reply.Dst != orig.Src, Path: pathTo(s, reply.Src)}
	there.Sport, there.Dport = portsOf(orig)
	there.ToDport, there.ToSport = portsOf(reply)
	if orig.ICMP() {
		there.ToSport, there.ToDport = there.Sport, there.Dport
	}
	if there.Started.IsZero() {
		there.Started = since
	}
	if !a.Stopped.IsZero() {
		there.Until, there.End = a.Stopped, dataplane.FlowExpired
	}
	if closed(a) { // the kernel forgets it later, and has nothing more to tell of it then
		there.End = dataplane.FlowClosed
	}
	if toService {
		there.Service = svc.ID
		if there.HandOn = !a.Translated(); !there.HandOn {
			there.Backend = netip.AddrPortFrom(reply.Src, reply.SrcPort)
		}
	}
	if !there.HandOn {
		var began nodestate.NameID
		if v.Began != nil {
			began = v.Began(a.ID)
		}
		there.Egress, there.Ingress, there.Name = v.Ends(events.Header{Src: orig.Src, Dst: reply.Src, SrcPort: orig.SrcPort, DstPort: reply.SrcPort,
			Proto: model.Protocol(orig.Proto), Message: uint16(orig.Type)<<8 | uint16(orig.Code)}, began)
		if v.Asked != nil && there.Egress.Local {
			there.AskedName = v.Asked(s.Addrs[orig.Src].IfIndex, orig.Dst)
		}
	}
	back = there
	back.Name, back.AskedName, back.Reply, back.Packets, back.Bytes, back.TCPFlags, back.Path = 0, "", true, a.Received.Packets, a.Received.Bytes, flagsOf(a, false), pathTo(s, orig.Src)
	return there, back, true
}

// portsOf are those of a tuple, in the way of struct flow_key (bpf/abi_flow.h): messages of ICMP
// have a place in them, too.
func portsOf(t conntrack.Tuple) (src, dst uint16) {
	const oneWay = 0x4000
	switch query, answer, ok := t.Query(); {
	case !t.ICMP():
		return t.SrcPort, t.DstPort
	case ok && answer:
		return t.ID + uint16(query), t.ID
	case ok:
		return t.ID, t.ID + uint16(query)
	default:
		message := uint16(t.Type)<<8 | uint16(t.Code)
		return message, message + oneWay
	}
}

// pathTo is how packets for an address go on.
func pathTo(s *nodestate.State, a netip.Addr) dataplane.FlowPath {
	switch to := s.Addrs[a]; {
	case to.Kind == nodestate.AddrEndpoint:
		return dataplane.PathLocal
	case to.Tunnel && to.IPIP:
		return dataplane.PathIPIP
	case to.Tunnel:
		return dataplane.PathVXLAN
	case to.Kind == nodestate.AddrHost:
		return dataplane.PathStack
	}
	return dataplane.PathDirect
}

// closed reports whether both ends have closed a connection, or one has reset it.
func closed(a conntrack.Accounted) bool {
	return a.Orig.Proto == unix.IPPROTO_TCP && (a.TCP.State == conntrack.TCPTimeWait || a.TCP.State == conntrack.TCPClose || a.TCP.State == conntrack.TCPLastAck)
}

// flagsOf are the flags of TCP (RFC 9293, section 3.1) that one direction has sent by what is
// tracked of the connection.
func flagsOf(a conntrack.Accounted, orig bool) (flags uint8) {
	const fin, syn, rst, ack = 1, 2, 4, 16
	carried := a.Received
	if orig {
		carried = a.Sent
	}
	if a.Orig.Proto != unix.IPPROTO_TCP || carried.Packets == 0 {
		return 0
	}
	if flags = syn; a.TCP.State >= conntrack.TCPEstablished || !orig {
		flags |= ack
	}
	switch a.TCP.State {
	case conntrack.TCPTimeWait, conntrack.TCPLastAck:
		flags |= fin
	case conntrack.TCPFinWait, conntrack.TCPCloseWait:
		// Which end has closed it the kernel says by a flag of that direction.
		of := a.TCP.RepFlags
		if orig {
			of = a.TCP.OrigFlags
		}
		if of&conntrack.TCPCloseInit != 0 {
			flags |= fin
		}
	case conntrack.TCPClose:
		flags |= rst
	}
	return flags
}
