// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
)

// layout finds fields of the programs' C structures by name, from the types that the maps carry.
type layout struct {
	fragSeen, slotSeen, ringSeen                uint32
	flowSeen, flowBackend, flowSport, flowSize  uint32
	affinitySeen, affinityBackend, affinitySize uint32
	flowNexthop, flowState, flowFlags           uint32
	triesSeen, triesSince                       uint32
}

// layouts are those of IPv4 and IPv6.
type layouts struct{ four, six *layout }

func newLayouts(s *set) (*layouts, error) {
	four, err := newLayout(s.Maps)
	if err != nil {
		return nil, err
	}
	six, err := newLayout(s.IPv6.Maps)
	return &layouts{four, six}, err
}

// of returns the layout, and the maps, of an address's family.
func (s *set) of(l *layouts, a netip.Addr) (*layout, map[string]*ebpf.Map) {
	if a.Is6() {
		return l.six, s.IPv6.Maps
	}
	return l.four, s.Maps
}

func newLayout(maps map[string]*ebpf.Map) (*layout, error) {
	flow, err := valueType(maps["weir_flows"])
	if err != nil {
		return nil, err
	}
	affinity, err := valueType(maps["weir_affinity"])
	if err != nil {
		return nil, err
	}
	var frag, slot, ring, tries *btf.Struct
	for name, to := range map[string]**btf.Struct{"weir_frags": &frag, "weir_frag_slots": &slot, "weir_frag_rings": &ring,
		"weir_dsr_tries": &tries} {
		if *to, err = valueType(maps[name]); err != nil {
			return nil, err
		}
	}
	l := &layout{flowSize: flow.Size, affinitySize: affinity.Size}
	for _, f := range []struct {
		to   *uint32
		in   *btf.Struct
		name string
	}{
		{&l.fragSeen, frag, "seen"}, {&l.slotSeen, slot, "seen"}, {&l.ringSeen, ring, "seen"},
		{&l.flowSeen, flow, "seen"}, {&l.flowBackend, flow, "backend"}, {&l.flowSport, flow, "sport"},
		{&l.flowNexthop, flow, "nexthop"}, {&l.flowState, flow, "state"}, {&l.flowFlags, flow, "flags"},
		{&l.triesSeen, tries, "seen"}, {&l.triesSince, tries, "since"},
		{&l.affinitySeen, affinity, "seen"}, {&l.affinityBackend, affinity, "backend"},
	} {
		found := false
		for _, m := range f.in.Members {
			if m.Name == f.name {
				*f.to, found = m.Offset.Bytes(), true
			}
		}
		if !found {
			return nil, fmt.Errorf("struct %s has no field %s", f.in.Name, f.name)
		}
	}
	return l, nil
}

// valueType is the type of a map's values, from the kernel.
func valueType(m *ebpf.Map) (*btf.Struct, error) {
	h, err := m.Handle()
	if err != nil {
		return nil, fmt.Errorf("types of map %s: %w", m, err)
	}
	defer h.Close()
	spec, err := h.Spec(nil)
	if err != nil {
		return nil, err
	}
	name := map[string]string{"weir_flows": "flow_value", "weir_affinity": "affinity_value", "weir_frags": "frag_value",
		"weir_frag_slots": "frag_slot", "weir_frag_rings": "frag_ring", "weir_dsr_tries": "dsr_tries"}
	info, err := m.Info()
	if err != nil {
		return nil, err
	}
	var s *btf.Struct
	return s, spec.TypeByName(name[info.Name], &s)
}

// chosen is what the programs chose for a flow, found by the packet that began it, in the
// order in which they look themselves.
func (s *set) chosen(both *layouts, p *packet.Packet) (b nodestate.Backend, sport uint16, ok bool) {
	l, maps := s.of(both, p.IP.Src)
	key := append(p.IP.Src.AsSlice(), p.IP.Dst.AsSlice()...) // struct flow_key: saddr, daddr, sport, dport, proto
	sp, dp := p.Ports()
	key = binary.BigEndian.AppendUint16(key, sp)
	key = binary.BigEndian.AppendUint16(key, dp)
	key = append(key, p.IP.Proto, 0, 0, 0)
	value := make([]byte, l.flowSize)
	if err := maps["weir_flows"].Lookup(key, &value); err != nil {
		if err := maps["weir_flows_new"].Lookup(key, &value); err != nil {
			return b, 0, false
		}
	}
	return backendAt(value[l.flowBackend:], p.IP.Src), binary.BigEndian.Uint16(value[l.flowSport:]), true
}

// age makes all that the programs remember with a time older: by units of their clock, and of the
// finer one.
func (s *set) age(l *layouts, units uint32, fine uint16) error {
	return errors.Join(age(s.Maps, l.four, units, fine), age(s.IPv6.Maps, l.six, units, fine))
}

func age(maps map[string]*ebpf.Map, l *layout, units uint32, fine uint16) error {
	const none = ^uint32(0)
	for _, m := range []struct {
		name       string
		seen, fine uint32 // where in the value
	}{{"weir_flows", l.flowSeen, none}, {"weir_flows_new", l.flowSeen, l.flowNexthop}, {"weir_affinity", l.affinitySeen, none},
		{"weir_frags", l.fragSeen, none}, {"weir_frag_slots", l.slotSeen, none}, {"weir_frag_rings", l.ringSeen, none},
		{"weir_dsr_tries", l.triesSeen, l.triesSince}, {"weir_dsr_fallen", 0, none}} {
		entries := map[string][]byte{}
		var key, value []byte
		it := maps[m.name].Iterate()
		for it.Next(&key, &value) {
			entries[string(key)] = append([]byte{}, value...)
		}
		if err := it.Err(); err != nil {
			return fmt.Errorf("read map %s: %w", m.name, err)
		}
		for k, v := range entries {
			seen := binary.NativeEndian.Uint32(v[m.seen:])
			if seen == 0 {
				continue // a slot that was never used
			}
			binary.NativeEndian.PutUint32(v[m.seen:], seen-units)
			// The first direction of a half-open DSR flow that was answered has the time of it in
			// the place of a next hop.
			const answered, reply, dsr = 8, 1, 16
			if m.fine != none && (m.name != "weir_flows_new" || v[l.flowState]&answered != 0 && v[l.flowFlags]&(reply|dsr) == dsr) {
				at := binary.NativeEndian.Uint16(v[m.fine:])
				binary.NativeEndian.PutUint16(v[m.fine:], at-fine)
			}
			if err := maps[m.name].Put([]byte(k), v); err != nil {
				return fmt.Errorf("write map %s: %w", m.name, err)
			}
		}
	}
	return nil
}
