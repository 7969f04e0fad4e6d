// SPDX-License-Identifier: Apache-2.0

package eventring

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Records reads the records of flows of both families' programs, which wake up nobody. It is for
// one goroutine.
type Records struct {
	ring   *ringbuf.Reader
	record ringbuf.Record
}

// NewRecords opens the ring.
func NewRecords(m *ebpf.Map) (*Records, error) {
	r, err := ringbuf.NewReader(m)
	if err != nil {
		return nil, fmt.Errorf("opening the ring of flow records: %w", err)
	}
	return &Records{ring: r}, nil
}

// Each hands on the records that are there, and does not wait.
func (r *Records) Each(give func(dataplane.FlowRecord)) error {
	now := time.Now()
	mono, err := monotonic()
	if err != nil {
		return err
	}
	r.ring.SetDeadline(time.Unix(1, 0))
	for r.ring.AvailableBytes() > 0 {
		err := r.ring.ReadInto(&r.record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the ring of flow records: %w", err)
		}
		var v abi.WeirFlowRecord
		if len(r.record.RawSample) < int(unsafe.Sizeof(v)) {
			return fmt.Errorf("a flow record has %d bytes, not %d", len(r.record.RawSample), unsafe.Sizeof(v))
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), r.record.RawSample)
		give(toRecord(v, now, mono))
	}
	return nil
}

// Close lets go of the ring.
func (r *Records) Close() error { return r.ring.Close() }

func monotonic() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("reading the monotonic clock: %w", err)
	}
	return ts.Nano(), nil
}

// wall is when the monotonic clock was at the value of two words, low word first; now is when it
// was mono.
func wall(words [2]uint32, now time.Time, mono int64) time.Time {
	return now.Add(time.Duration(int64(uint64(words[1])<<32|uint64(words[0])) - mono))
}

var ends = map[uint8]dataplane.FlowEnd{abi.RecordGoesOn: dataplane.FlowGoesOn, abi.RecordClosed: dataplane.FlowClosed, abi.RecordReplaced: dataplane.FlowReplaced}

func toRecord(v abi.WeirFlowRecord, now time.Time, mono int64) dataplane.FlowRecord {
	packets, bytes := abi.Counted(uint64(v.Count[1])<<32 | uint64(v.Count[0]))
	r := dataplane.FlowRecord{
		Src: abi.Unwiden(v.Seen.Saddr), Dst: abi.Unwiden(v.Seen.Daddr), Sport: abi.Be16(v.Seen.Sport), Dport: abi.Be16(v.Seen.Dport), Proto: model.Protocol(v.Proto),
		ToSrc: abi.Unwiden(v.Sent.Saddr), ToDst: abi.Unwiden(v.Sent.Daddr), ToSport: abi.Be16(v.Sent.Sport), ToDport: abi.Be16(v.Sent.Dport),
		Packets: packets, Bytes: bytes, TCPFlags: v.FlagsSeen, Started: wall(v.Started, now, mono), Until: wall(v.At, now, mono), End: ends[v.End&^abi.RecordFirst], First: v.End&abi.RecordFirst != 0,
		Handshake: time.Duration(v.Rtt) * time.Microsecond, Retransmitted: uint64(v.Retransmitted), RetransmittedKnown: true,
	}
	if v.SvcProto != 0 {
		r.Service = nodestate.Frontend{Addr: abi.Unwiden(v.SvcAddr), Port: abi.Be16(v.SvcPort), Proto: model.Protocol(v.SvcProto)}
		r.Backend = netip.AddrPortFrom(abi.Unwiden(v.BackendAddr), abi.Be16(v.BackendPort))
	}
	if v.AskedPort != 0 {
		r.Asked = nodestate.Frontend{Addr: abi.Unwiden(v.AskedAddr), Port: abi.Be16(v.AskedPort), Proto: model.Protocol(v.Proto)}
	}
	describe(&r, v.Action, v.Flags, v.Ifindex)
	r.Egress, r.Ingress = endsOf(v.Ends, v.Staged, v.Rules, v.StagedRules)
	if v.SvcProto == 0 && !r.Reply {
		r.Name = nameOf([2]uint32(v.BackendAddr[:2]))
	}
	return r
}

// nameOf is the pattern that a flow without a Service has in the place of its backend.
func nameOf(words [2]uint32) nodestate.NameID {
	return nodestate.NameID(uint64(words[1])<<32 | uint64(words[0]))
}

// describe says by which way the packets go, and turns a record of answers into the original
// direction.
func describe(r *dataplane.FlowRecord, action, flags uint8, ifindex uint32) {
	switch action {
	case abi.ActLocal, abi.ActQueue:
		r.Path = dataplane.PathLocal
	case abi.ActNeigh:
		r.Path = dataplane.PathDirect
	case abi.ActTunnel:
		r.Path = dataplane.PathVXLAN
		if ifindex != 0 {
			r.Path = dataplane.PathIPIP
		}
	default:
		r.Path = dataplane.PathStack
	}
	r.HandOn, r.DSR, r.SNAT = flags&abi.FlowHandOn != 0, flags&abi.FlowDSR != 0, flags&abi.FlowSNAT != 0
	if r.Reply = flags&abi.FlowReply != 0; r.Reply {
		r.Src, r.Dst, r.Sport, r.Dport, r.ToSrc, r.ToDst, r.ToSport, r.ToDport = r.ToDst, r.ToSrc, r.ToDport, r.ToSport, r.Dst, r.Src, r.Dport, r.Sport
	}
}

// endsOf is what policy said at the source and at the destination, of an event or of a flow; at
// has EVENT_EGRESS and EVENT_INGRESS.
func endsOf(at, staged uint8, rules, stagedRules [2]uint32) (egress, ingress dataplane.EventEnd) {
	egress = dataplane.EventEnd{Local: at&abi.EventEgress != 0, Rule: nodestate.RuleID(rules[0]),
		Staged: staged&abi.StagedEgress != 0, StagedDenied: staged&abi.StagedEgressDenied != 0, StagedRule: nodestate.RuleID(stagedRules[0])}
	ingress = dataplane.EventEnd{Local: at&abi.EventIngress != 0, Rule: nodestate.RuleID(rules[1]),
		Staged: staged&abi.StagedIngress != 0, StagedDenied: staged&abi.StagedIngressDenied != 0, StagedRule: nodestate.RuleID(stagedRules[1])}
	return egress, ingress
}

// Expired makes a record of an entry of weir_flows or weir_flows_new that was removed because no
// packet came. It returns false where nothing was counted since it was reported last.
func Expired[A abi.Address](key, value []byte, now time.Time) (r dataplane.FlowRecord, ok bool) {
	var k abi.FlowKey[A]
	var v abi.FlowValue[A]
	if len(key) != int(unsafe.Sizeof(k)) || len(value) != int(unsafe.Sizeof(v)) {
		return r, false
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&k)), unsafe.Sizeof(k)), key)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), value)
	mono, err := monotonic()
	if v.Count == 0 || err != nil {
		return r, false
	}
	r = dataplane.FlowRecord{
		Src: abi.FromAddr(k.Saddr), Dst: abi.FromAddr(k.Daddr), Sport: abi.Be16(k.Sport), Dport: abi.Be16(k.Dport), Proto: model.Protocol(k.Proto),
		ToSrc: abi.FromAddr(v.Saddr), ToDst: abi.FromAddr(v.Daddr), ToSport: abi.Be16(v.Sport), ToDport: abi.Be16(v.Dport),
		TCPFlags: v.FlagsSeen, Started: wall(v.Started, now, mono), Until: now, End: dataplane.FlowExpired, First: v.Account&abi.AccountReported == 0,
		Handshake: time.Duration(v.Rtt) * time.Microsecond, Retransmitted: uint64(v.Retransmitted), RetransmittedKnown: true,
	}
	if v.State&abi.StateClosing != 0 {
		r.End = dataplane.FlowClosed
	}
	r.Packets, r.Bytes = abi.Counted(v.Count)
	if v.Svc.Proto != 0 {
		r.Service = frontend(v.Svc)
		r.Backend = netip.AddrPortFrom(abi.FromAddr(v.Backend.Addr), abi.Be16(v.Backend.Port))
	}
	if v.Asked.Proto != 0 {
		r.Asked = frontend(v.Asked)
	}
	describe(&r, v.Action, v.Flags, v.Ifindex)
	r.Egress, r.Ingress = endsOf(v.Ends, v.Staged, v.Rules, v.StagedRules)
	if v.Svc.Proto == 0 && !r.Reply {
		r.Name = nameOf(*(*[2]uint32)(unsafe.Pointer(&v.Backend)))
	}
	return r, true
}

func frontend[A abi.Address](k abi.SvcKey[A]) nodestate.Frontend {
	return nodestate.Frontend{Addr: abi.FromAddr(k.Addr), Port: abi.Be16(k.Port), Proto: model.Protocol(k.Proto)}
}
