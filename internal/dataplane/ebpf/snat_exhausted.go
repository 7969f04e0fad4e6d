// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// exhaustedRecent is for how long a pod counts as one that has used up its ports for source NAT.
const exhaustedRecent = time.Minute

// ExhaustedPod is a pod that found no port for source NAT towards a destination among those that it
// may have.
type ExhaustedPod struct {
	Addr     netip.Addr
	Replaced uint64 // flows that were not established, and lost their port to a newer one of the same pod
	Refused  uint64 // packets that were dropped
	Recent   bool   // it goes on
}

// exhaustedNote is what was read last of a pod, and when that changed.
type exhaustedNote struct {
	value abi.ExhaustedValue
	since time.Time
}

// ExhaustedPods reads which pods used up their ports since the maps were made, by their addresses.
func (d *Driver) ExhaustedPods() ([]ExhaustedPod, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, notes := time.Now(), map[netip.Addr]exhaustedNote{}
	var out []ExhaustedPod
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
			out = append(out, ExhaustedPod{a, v.Replaced, v.Refused, now.Sub(note.since) < exhaustedRecent})
		}
		if err := it.Err(); err != nil {
			return nil, fmt.Errorf("reading who used up its ports: %w", err)
		}
	}
	d.exhausted = notes
	slices.SortFunc(out, func(a, b ExhaustedPod) int { return a.Addr.Compare(b.Addr) })
	return out, nil
}
