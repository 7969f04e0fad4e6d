// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// gcBatch is how many entries are looked at in a batch.
const gcBatch = 2048

type gcTable struct {
	name    string
	expired func(s *TableGC, key, value []byte) bool
}

// gcTables are the tables that programs fill, with what says that an entry is expired; nil only
// counts. An entry moves from weir_flows_new to weir_flows: in this order a round misses none.
var gcTables = []gcTable{{"weir_flows_new", (*TableGC).flowExpired}, {"weir_flows", (*TableGC).flowExpired}, {"weir_affinity", nil}, {"weir_sockets", nil}}

// TableGC walks one table.
type TableGC struct {
	Name    string
	icmp    uint8 // the protocol number that is ICMP
	M       *ebpf.Map
	expired func(key, value []byte) bool

	proto, seen, state, flags int // offsets of fields
	Now                       uint32
	Timeouts                  [abi.Timeouts]uint32

	keys, values         any    // slices of arrays of bytes
	rawKeys, rawValues   []byte // the same
	keySize, valueSize   int
	cursor               ebpf.MapBatchCursor
	counted, removed     int     // in this round
	Entries, LastRemoved int     // of the last whole round
	Quotas               *Quotas // of weir_flows
	Begun                bool    // a round
	account              int     // offset of flow_value.account; -1 = there is none
	live, lastLive, gone int     // flows that are accounted for: left in this round, in the last whole one, removed by this step
	rounds               int
	evicted              *Evicted // nil = nobody wants to know
	// Removed is called with each entry that was taken out; nil = nobody wants to know.
	Removed func(key, value []byte)
}

func NewTableGC(name string, maps map[string]*ebpf.Map, icmp uint8) (*TableGC, error) {
	m, err := maps[name].Clone() // the family may be unloaded meanwhile
	if err != nil {
		return nil, fmt.Errorf("sweeping map %s: %w", name, err)
	}
	s := &TableGC{Name: name, icmp: icmp, M: m, keySize: int(m.KeySize()), valueSize: int(m.ValueSize())}
	s.keys, s.rawKeys = byteArrays(s.keySize, gcBatch)
	s.values, s.rawValues = byteArrays(s.valueSize, gcBatch)
	if i := slices.IndexFunc(gcTables, func(t gcTable) bool { return t.name == name }); i >= 0 && gcTables[i].expired != nil {
		expired := gcTables[i].expired
		s.expired = func(k, v []byte) bool { return expired(s, k, v) }
		key, err1 := StructOf(m, "flow_key")
		value, err2 := StructOf(m, "flow_value")
		if err := errors.Join(err1, err2); err != nil {
			s.Close()
			return nil, fmt.Errorf("sweeping map %s: %w", name, err)
		}
		s.proto, s.seen, s.state, s.flags = OffsetOf(key, "proto"), OffsetOf(value, "seen"), OffsetOf(value, "state"), OffsetOf(value, "flags")
		s.account = OffsetOf(value, "account")
		if s.proto < 0 || s.seen < 0 || s.state < 0 || s.flags < 0 {
			s.Close()
			return nil, fmt.Errorf("sweeping map %s: its entries have no time stamp", name)
		}
		if name == "weir_flows" {
			if s.Quotas, err = NewQuotas(maps["weir_shares"], s.flags, OffsetOf(value, "from")); err != nil {
				s.Close()
				return nil, fmt.Errorf("sweeping map %s: %w", name, err)
			}
		}
	}
	return s, nil
}

func (s *TableGC) Close() {
	s.M.Close()
	if s.Quotas != nil {
		s.Quotas.Close()
	}
}

// Pressed reports whether the table is so full that a round should not take long.
func (s *TableGC) Pressed() bool { return s.Quotas != nil && s.Quotas.Pressed(int(s.M.MaxEntries())) }

// flowExpired is flow_expired of bpf/flow_table.h.
func (s *TableGC) flowExpired(key, value []byte) bool {
	return s.Now-binary.NativeEndian.Uint32(value[s.seen:]) > FlowLimit(s.Timeouts, key[s.proto], value[s.state], value[s.flags], s.icmp) &&
		int32(s.Now-binary.NativeEndian.Uint32(value[s.seen:])) > 0 // not one that was seen after now was read
}

// FlowLimit is flow_timeout of bpf/flow_table.h.
func FlowLimit(timeouts [abi.Timeouts]uint32, proto, state, flags, icmp uint8) uint32 {
	limit := timeouts[flowTimeout(proto, state, icmp)]
	if proto == unix.IPPROTO_UDP && state&(abi.StateReplied|abi.StateAnswered) == 0 && flags&abi.FlowHandOn == 0 {
		return limit >> abi.UnansweredShift
	}
	return limit
}

// flowTimeout is an index into the time-outs.
func flowTimeout(proto, state, icmp uint8) int {
	switch {
	case (proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_SCTP) && state&abi.StateClosing != 0 && state&abi.StateReset != 0:
		return abi.TimeoutTCPClosing
	case (proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_SCTP) && state&abi.StateClosing != 0:
		return abi.TimeoutTCPFins
	case (proto == unix.IPPROTO_TCP || proto == unix.IPPROTO_SCTP) && state&abi.StateReplied == 0:
		return abi.TimeoutTCPSyn
	case proto == unix.IPPROTO_TCP:
		return abi.TimeoutTCPEst
	case proto == unix.IPPROTO_UDP:
		return abi.TimeoutUDP
	case proto == icmp:
		return abi.TimeoutICMP
	}
	return abi.TimeoutOther
}

// Step looks at one batch and reports whether a round is over.
func (s *TableGC) Step() (over bool, err error) {
	if s.Quotas != nil && !s.Begun {
		if err := s.Quotas.Begin(); err != nil {
			return true, err
		}
	}
	s.Begun = true
	n, err := s.M.BatchLookup(&s.cursor, s.keys, s.values, nil)
	over = errors.Is(err, ebpf.ErrKeyNotExist)
	if err != nil && !over {
		s.cursor, s.counted, s.removed, s.live, s.Begun = ebpf.MapBatchCursor{}, 0, 0, 0, false
		return true, fmt.Errorf("looking through map %s: %w", s.Name, err)
	}
	for i := range n {
		key, value := s.rawKeys[i*s.keySize:][:s.keySize], s.rawValues[i*s.valueSize:][:s.valueSize]
		if s.expired == nil || !s.expired(key, value) || !s.Remove(key) {
			s.counted++
			if s.accounted(value) {
				s.live++
			}
			if s.Quotas != nil {
				s.Quotas.note(key, value)
			}
		}
	}
	if s.evicted != nil && s.evicted.removed(s.gone) {
		s.gone = 0
	}
	if over {
		s.Entries, s.LastRemoved, s.lastLive = s.counted, s.removed, s.live
		s.cursor, s.counted, s.removed, s.live, s.Begun = ebpf.MapBatchCursor{}, 0, 0, 0, false
		s.rounds++
		if s.Quotas != nil {
			return true, s.Quotas.end()
		}
	}
	return over, nil
}

// Remove takes an expired entry out. A packet may have begun the flow anew since it was read: what
// was taken out tells, and is put back.
func (s *TableGC) Remove(key []byte) bool {
	value := make([]byte, s.valueSize)
	if err := s.M.LookupAndDelete(key, &value); err != nil {
		return errors.Is(err, ebpf.ErrKeyNotExist)
	}
	if !s.expired(key, value) {
		_ = s.M.Update(key, value, ebpf.UpdateNoExist) // there again: a packet wrote it meanwhile
		return false
	}
	s.removed++
	if s.accounted(value) {
		s.gone++
	}
	if s.Removed != nil {
		s.Removed(key, value)
	}
	return true
}

// NewTableGCs returns those of a family, whose maps these are.
func NewTableGCs(maps map[string]*ebpf.Map, icmp uint8) ([]*TableGC, error) {
	var out []*TableGC
	for _, t := range gcTables {
		s, err := NewTableGC(t.name, maps, icmp)
		if err != nil {
			for _, s := range out {
				s.Close()
			}
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}
