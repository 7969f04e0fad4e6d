// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/counters"
	"github.com/weir-net/weir/internal/dataplane/ebpf/eventring"
)

// EventReader reads the events of both families' programs.
type EventReader = eventring.Reader

// Events begins to read events. There should be one reader: each event is read once.
func (d *Driver) Events() (*EventReader, error) {
	return eventring.NewReader(d.loaded.Maps["weir_events"])
}

// Listen makes the programs report every evaluated flow, or only what is denied or to be logged. No
// flow is evaluated again by it.
func (d *Driver) Listen(on bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.machine.Listening == on {
		return nil
	}
	d.machine.Listening = on
	if d.state == nil {
		return nil // the first Apply writes it
	}
	return d.tables.Listen(on)
}

// LostEvents counts since the maps were made.
func (d *Driver) LostEvents() (dataplane.LostEvents, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out dataplane.LostEvents
	for _, l := range d.both() {
		full, err := counters.Read(l.Maps["weir_counts"], abi.CountEventsLost)
		if err != nil {
			return out, err
		}
		limited, err := counters.Read(l.Maps["weir_counts"], abi.CountEventsLimited)
		if err != nil {
			return out, err
		}
		out.Full, out.Limited = out.Full+full, out.Limited+limited
	}
	return out, nil
}
