// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// Shares: how many entries of weir_flows the flows of each pod have. The programs count what
// begins, and nobody counts what ends but the sweep: after each of its rounds the map says what the
// round counted, and what began since the round did. What began during the round may be in both:
// too much for one round, never too little.

// Quotas is the part of a sweeper that counts.
type Quotas struct {
	M       *ebpf.Map
	addr    int // bytes of an address
	flags   int // offsets in flow_value
	from    int
	counted map[string]uint32 // of this round, by address
	before  map[string]uint32 // Begun, at the round's beginning
}

// QuotaValue is struct share of bpf/abi.h in host byte order.
type QuotaValue struct{ Counted, Begun uint32 }

func NewQuotas(m *ebpf.Map, flags, from int) (*Quotas, error) {
	c, err := m.Clone()
	if err != nil {
		return nil, fmt.Errorf("counting shares: %w", err)
	}
	return &Quotas{M: c, addr: int(m.KeySize()), flags: flags, from: from}, nil
}

// everybody is the key of all flows together.
func (s *Quotas) everybody() string { return string(make([]byte, s.addr)) }

func (s *Quotas) read() (map[string]QuotaValue, error) {
	out := map[string]QuotaValue{}
	key := make([]byte, s.addr)
	var v QuotaValue
	it := s.M.Iterate()
	for it.Next(&key, &v) {
		out[string(key)] = v
	}
	return out, it.Err()
}

// Begin is called before the first entry of a round.
func (s *Quotas) Begin() error {
	now, err := s.read()
	if err != nil {
		return fmt.Errorf("reading shares: %w", err)
	}
	s.counted, s.before = map[string]uint32{}, map[string]uint32{}
	for k, v := range now {
		s.before[k] = v.Begun
	}
	return nil
}

// note counts an entry: both directions of a flow by the one that a pod sends.
func (s *Quotas) note(key, value []byte) {
	s.counted[s.everybody()]++
	if value[s.flags]&abi.FlowReply == 0 && value[s.from] == abi.FromPod {
		s.counted[string(key[:s.addr])] += 2
	}
}

// end is called after the last entry of a round.
func (s *Quotas) end() error {
	now, err := s.read()
	if err != nil {
		return fmt.Errorf("reading shares: %w", err)
	}
	for k := range s.counted {
		if _, ok := now[k]; !ok {
			now[k] = QuotaValue{}
		}
	}
	for k, was := range now {
		v := QuotaValue{Counted: s.counted[k], Begun: was.Begun - s.before[k]}
		if v == (QuotaValue{}) && k != s.everybody() {
			if err := s.M.Delete([]byte(k)); err != nil {
				return fmt.Errorf("removing a share: %w", err)
			}
			continue
		}
		if err := s.M.Put([]byte(k), v); err != nil {
			return fmt.Errorf("writing a share: %w", err)
		}
	}
	return nil
}

// Pressed reports whether the table may be three quarters full: the next round should tell soon.
func (s *Quotas) Pressed(room int) bool {
	var v QuotaValue
	if err := s.M.Lookup([]byte(s.everybody()), &v); err != nil {
		return false
	}
	return int(v.Counted+v.Begun) > room-room/4
}

func (s *Quotas) Close() { s.M.Close() }

// Held is quota_spent of bpf/quota.h for every pod.
func (s *Quotas) Held(each, most uint32) ([]dataplane.HeldPod, error) {
	var all QuotaValue
	switch err := s.M.Lookup([]byte(s.everybody()), &all); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if all.Counted+all.Begun <= most {
		return nil, nil
	}
	now, err := s.read()
	if err != nil {
		return nil, err
	}
	var out []dataplane.HeldPod
	for k, v := range now {
		if a, ok := netip.AddrFromSlice([]byte(k)); ok && k != s.everybody() && v.Counted+v.Begun > each {
			out = append(out, dataplane.HeldPod{Addr: a, Entries: int(v.Counted + v.Begun)})
		}
	}
	return out, nil
}
