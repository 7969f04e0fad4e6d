// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
)

// exhaustedRecent is for how long a pod counts as one that has used up its ports for source NAT.
const exhaustedRecent = time.Minute

// exhaustedNote is what was read last of a pod, and when that changed.
type exhaustedNote struct {
	value abi.ExhaustedValue
	since time.Time
}

// ExhaustedPods reads which pods used up their ports since the maps were made, by their addresses.
func (d *Driver) ExhaustedPods() ([]dataplane.ExhaustedPod, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, notes := time.Now(), map[netip.Addr]exhaustedNote{}
	var out []dataplane.ExhaustedPod
	for _, l := range d.both() {
		m := l.Maps["weir_spent"]
		key, v := make([]byte, m.KeySize()), abi.ExhaustedValue{}
		it := m.Iterate()
		for it.Next(&key, &v) {
			a, ok := netip.AddrFromSlice(key)
			if !ok {
				continue
			}
			note, known := d.exhausted[a]
			if !known || note.value != v {
				note = exhaustedNote{value: v}
				if d.exhausted != nil { // else it may be of long before this run
					note.since = now
				}
			}
			notes[a] = note
			out = append(out, dataplane.ExhaustedPod{Addr: a, Replaced: v.Replaced, Refused: v.Refused, Recent: now.Sub(note.since) < exhaustedRecent})
		}
		if err := it.Err(); err != nil {
			return nil, fmt.Errorf("reading who used up its ports: %w", err)
		}
	}
	d.exhausted = notes
	slices.SortFunc(out, func(a, b dataplane.ExhaustedPod) int { return a.Addr.Compare(b.Addr) })
	return out, nil
}

// Held reads which pods are held, by their addresses. They are few: each has more than an eighth of
// a table.
func (d *Driver) Held() ([]dataplane.HeldPod, error) {
	type source struct {
		s          *flowtable.Quotas
		each, most uint32
	}
	var sources []source
	d.mu.Lock()
	for i, l := range d.both() {
		s, err := flowtable.NewQuotas(l.Maps["weir_shares"], 0, 0) // the family may be unloaded meanwhile
		if err != nil {
			d.mu.Unlock()
			return nil, err
		}
		defer s.Close()
		each, most := d.tables.Families()[i].ShareLimits()
		sources = append(sources, source{s, each, most})
	}
	d.mu.Unlock()
	var out []dataplane.HeldPod
	for _, from := range sources {
		held, err := from.s.Held(from.each, from.most)
		if err != nil {
			return nil, fmt.Errorf("reading shares: %w", err)
		}
		out = append(out, held...)
	}
	slices.SortFunc(out, func(a, b dataplane.HeldPod) int { return a.Addr.Compare(b.Addr) })
	return out, nil
}
