// SPDX-License-Identifier: Apache-2.0

package eventring

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Reader reads the events of both families' programs. It is for one goroutine; Close may be
// called from another.
type Reader struct {
	ring   *ringbuf.Reader
	record ringbuf.Record
}

// NewReader opens the ring.
func NewReader(m *ebpf.Map) (*Reader, error) {
	r, err := ringbuf.NewReader(m)
	if err != nil {
		return nil, fmt.Errorf("opening the ring of events: %w", err)
	}
	return &Reader{ring: r}, nil
}

// Read waits for the next event. The error is os.ErrClosed when the reader was closed.
func (r *Reader) Read() (dataplane.Event, error) {
	if err := r.ring.ReadInto(&r.record); err != nil {
		return dataplane.Event{}, fmt.Errorf("reading the ring of events: %w", err)
	}
	return toEvent(r.record.RawSample)
}

// Waiting returns the events that are there, and does not wait.
func (r *Reader) Waiting() ([]dataplane.Event, error) {
	var out []dataplane.Event
	r.ring.SetDeadline(time.Unix(1, 0))
	for r.ring.AvailableBytes() > 0 {
		e, err := r.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return out, err
		}
		out = append(out, e)
	}
	return out, nil
}

// Close ends Read.
func (r *Reader) Close() error { return r.ring.Close() }

// hookNames are those of enum hook.
var hookNames = [...]string{"from_workload", "to_workload", "from_uplink", "to_uplink", "from_tunnel"}

func toEvent(sample []byte) (dataplane.Event, error) {
	var v abi.WeirEvent
	if len(sample) < int(unsafe.Sizeof(v)) {
		return dataplane.Event{}, fmt.Errorf("an event has %d bytes, not %d", len(sample), unsafe.Sizeof(v))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), sample)
	e := dataplane.Event{
		Src: abi.Unwiden(v.Saddr), Dst: abi.Unwiden(v.Daddr), Sport: abi.Be16(v.Sport), Dport: abi.Be16(v.Dport), Proto: model.Protocol(v.Proto),
		IfIndex: int(v.Ifindex), Reason: v.Reason,
		Allowed: v.Flags&abi.EventAllowed != 0, Log: v.Flags&abi.EventLog != 0, Again: v.Flags&abi.EventAgain != 0,
	}
	e.Egress, e.Ingress = endsOf(v.Flags, v.Staged, v.Rules, v.StagedRules)
	e.In = dataplane.EventHost{Evaluated: v.Flags&abi.EventHostIn != 0, Rule: nodestate.RuleID(v.HostRules[0]),
		Staged: v.Staged&abi.StagedHostIn != 0, StagedDenied: v.Staged&abi.StagedHostInDenied != 0, StagedRule: nodestate.RuleID(v.StagedHostRules[0])}
	e.Out = dataplane.EventHost{Evaluated: v.Flags&abi.EventHostOut != 0, Rule: nodestate.RuleID(v.HostRules[1]),
		Staged: v.Staged&abi.StagedHostOut != 0, StagedDenied: v.Staged&abi.StagedHostOutDenied != 0, StagedRule: nodestate.RuleID(v.StagedHostRules[1])}
	if int(v.Hook) < len(hookNames) {
		e.Hook = hookNames[v.Hook]
	}
	if v.SvcProto != 0 {
		e.Service = nodestate.Frontend{Addr: abi.Unwiden(v.SvcAddr), Port: abi.Be16(v.SvcPort), Proto: model.Protocol(v.SvcProto)}
	}
	return e, nil
}
