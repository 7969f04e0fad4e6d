// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/counters"
	"github.com/weir-net/weir/internal/dataplane/ebpf/eventring"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
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

// expiredMost is how many records of expired flows wait for the reader.
const expiredMost = 1 << 17

// expired are the records of flows that the sweep removed.
type expired struct {
	mu      sync.Mutex
	waiting []dataplane.FlowRecord
	lost    uint64
	evicted map[string]uint64 // flows that the kernel took out before, by family
}

func (e *expired) noteEvicted(l *object.Collection, n uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.evicted == nil {
		e.evicted = map[string]uint64{}
	}
	e.evicted[l.Family] = n
}

// note returns what keeps the entries that were removed from a table; nil of a table that has no
// flows.
func (e *expired) note(l *object.Collection, table string) func(key, value []byte) {
	if table != "weir_flows" && table != "weir_flows_new" {
		return nil
	}
	convert := eventring.Expired[abi.Ip4]
	if l.Family == bpffs.IPv6 {
		convert = eventring.Expired[abi.Ip6]
	}
	return func(key, value []byte) {
		r, ok := convert(key, value, time.Now())
		if !ok {
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.waiting) == expiredMost {
			e.lost++
			return
		}
		e.waiting = append(e.waiting, r)
	}
}

func (e *expired) take() (out []dataplane.FlowRecord) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out, e.waiting = e.waiting, nil
	return out
}

// FlowRecords hands on the records of flows that are there, and does not wait; there are none where
// flows are not accounted for. It is for one goroutine: each record is read once.
func (d *Driver) FlowRecords(give func(dataplane.FlowRecord)) error {
	d.reading.Lock()
	defer d.reading.Unlock()
	if d.opts.FlowRecords == 0 {
		return nil
	}
	if d.records == nil {
		ring, err := eventring.NewRecords(d.loaded.Maps["weir_records"])
		if err != nil {
			return err
		}
		d.records = ring
	}
	named := func(r dataplane.FlowRecord) {
		r.AskedName = d.askedName(&r)
		give(r)
	}
	err := d.records.Each(named)
	for _, r := range d.expired.take() {
		named(r)
	}
	return err
}

// askedName is the domain name that the client of a record asked for, where it is a pod of this
// node.
func (d *Driver) askedName(r *dataplane.FlowRecord) string {
	s := d.names.Load()
	if s == nil || r.Reply || !r.Egress.Local {
		return ""
	}
	return flowtable.AskedName(d.loaded.Maps["weir_name_said"], d.ifindex(s.Addrs[r.Src]), r.AskedAddr())
}

// closeRecords lets go of the ring.
func (d *Driver) closeRecords() error {
	d.reading.Lock()
	defer d.reading.Unlock()
	if d.records == nil {
		return nil
	}
	err := d.records.Close()
	d.records = nil
	return err
}

// LostRecords counts since the maps were made.
func (d *Driver) LostRecords() (dataplane.LostRecords, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out dataplane.LostRecords
	for _, l := range d.both() {
		full, err1 := counters.Read(l.Maps["weir_counts"], abi.CountRecordsLost)
		begun, err2 := counters.Read(l.Maps["weir_counts"], abi.CountFlowsBegun)
		if err := errors.Join(err1, err2); err != nil {
			return out, err
		}
		out.Full, out.Begun = out.Full+full, out.Begun+begun
	}
	d.expired.mu.Lock()
	defer d.expired.mu.Unlock()
	out.Queue = d.expired.lost
	for _, n := range d.expired.evicted {
		out.Evicted += n
	}
	out.EvictedKnown = len(d.expired.evicted) >= len(d.both())
	return out, nil
}
