package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// Shares: how many entries of weir_flows the flows of each pod have. The programs count what
// begins, and nobody counts what ends but the sweep: after each of its rounds the map says what the
// round counted, and what began since the round did. What began during the round may be in both:
// too much for one round, never too little.

// quotas is the part of a sweeper that counts.
type quotas struct {
	m       *ebpf.Map
	addr    int // bytes of an address
	flags   int // offsets in flow_value
	from    int
	counted map[string]uint32 // of this round, by address
	before  map[string]uint32 // begun, at the round's beginning
}

// quotaValue is struct share of bpf/abi.h in host byte order.
type quotaValue struct{ Counted, Begun uint32 }

func newQuotas(m *ebpf.Map, flags, from int) (*quotas, error) {
	c, err := m.Clone()
	if err != nil {
		return nil, fmt.Errorf("counting shares: %w", err)
	}
	return &quotas{m: c, addr: int(m.KeySize()), flags: flags, from: from}, nil
}

// everybody is the key of all flows together.
func (s *quotas) everybody() string { return string(make([]byte, s.addr)) }

func (s *quotas) read() (map[string]quotaValue, error) {
	out := map[string]quotaValue{}
	key := make([]byte, s.addr)
	var v quotaValue
	it := s.m.Iterate()
	for it.Next(&key, &v) {
		out[string(key)] = v
	}
	return out, it.Err()
}

// begin is called before the first entry of a round.
func (s *quotas) begin() error {
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
func (s *quotas) note(key, value []byte) {
	s.counted[s.everybody()]++
	if value[s.flags]&abi.FlowReply == 0 && value[s.from] == abi.FromPod {
		s.counted[string(key[:s.addr])] += 2
	}
}

// end is called after the last entry of a round.
func (s *quotas) end() error {
	now, err := s.read()
	if err != nil {
		return fmt.Errorf("reading shares: %w", err)
	}
	for k := range s.counted {
		if _, ok := now[k]; !ok {
			now[k] = quotaValue{}
		}
	}
	for k, was := range now {
		v := quotaValue{Counted: s.counted[k], Begun: was.Begun - s.before[k]}
		if v == (quotaValue{}) && k != s.everybody() {
			if err := s.m.Delete([]byte(k)); err != nil {
				return fmt.Errorf("removing a share: %w", err)
			}
			continue
		}
		if err := s.m.Put([]byte(k), v); err != nil {
			return fmt.Errorf("writing a share: %w", err)
		}
	}
	return nil
}

// pressed reports whether the table may be three quarters full: the next round should tell soon.
func (s *quotas) pressed(room int) bool {
	var v quotaValue
	if err := s.m.Lookup([]byte(s.everybody()), &v); err != nil {
		return false
	}
	return int(v.Counted+v.Begun) > room-room/4
}

func (s *quotas) close() { s.m.Close() }

// Held is a pod that begins no other flow: it has more than its share of a table of connections
// that is nearly full.
type Held struct {
	Addr    netip.Addr
	Entries int // of the table, whose flows it began
}

// Held reads which pods are held, by their addresses. They are few: each has more than an eighth of
// a table.
func (d *Driver) Held() ([]Held, error) {
	type source struct {
		s          *quotas
		each, most uint32
	}
	var sources []source
	d.mu.Lock()
	for i, l := range d.both() {
		s, err := newQuotas(l.Maps["weir_shares"], 0, 0) // the family may be unloaded meanwhile
		if err != nil {
			d.mu.Unlock()
			return nil, err
		}
		defer s.close()
		each, most := d.tables.families[i].shareLimits()
		sources = append(sources, source{s, each, most})
	}
	d.mu.Unlock()
	var out []Held
	for _, from := range sources {
		held, err := from.s.held(from.each, from.most)
		if err != nil {
			return nil, fmt.Errorf("reading shares: %w", err)
		}
		out = append(out, held...)
	}
	slices.SortFunc(out, func(a, b Held) int { return a.Addr.Compare(b.Addr) })
	return out, nil
}

// held is share_spent of bpf/share.h for every pod.
func (s *quotas) held(each, most uint32) ([]Held, error) {
	var all quotaValue
	switch err := s.m.Lookup([]byte(s.everybody()), &all); {
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
	var out []Held
	for k, v := range now {
		if a, ok := netip.AddrFromSlice([]byte(k)); ok && k != s.everybody() && v.Counted+v.Begun > each {
			out = append(out, Held{a, int(v.Counted + v.Begun)})
		}
	}
	return out, nil
}
