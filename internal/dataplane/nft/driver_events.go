// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/events"
	"github.com/weir-net/weir/internal/dataplane/nft/records"
)

// EventReader reads the events of a network namespace.
type EventReader = events.Reader

// Events begins to read events. One reader can be there in a network namespace.
func (d *Driver) Events() (*EventReader, error) {
	return events.Open(d.view.Load, func() { d.lost.Add(1) })
}

// LostEvents counts how often the kernel had no room for packets that were to be shown.
func (d *Driver) LostEvents() (dataplane.LostEvents, error) {
	return dataplane.LostEvents{Full: d.lost.Load()}, nil
}

// retryRecords is between two tries to begin to account for flows.
const retryRecords = 10 * time.Second

// FlowRecords hands on the records of flows that are there, and does not wait; there are none where
// flows are not accounted for. It is for one goroutine: each record is read once.
func (d *Driver) FlowRecords(give func(dataplane.FlowRecord)) (err error) {
	d.reading.Lock()
	defer d.reading.Unlock()
	if d.opts.FlowRecords == 0 {
		return nil
	}
	if d.records == nil {
		now := time.Now()
		if now.Before(d.retry) {
			return nil
		}
		d.retry = now.Add(retryRecords)
		if d.records, err = records.Open(d.opts.FlowRecords); err != nil {
			return fmt.Errorf("flows are not accounted for: %w", err)
		}
	}
	return d.records.Each(d.view.Load(), give)
}

// LostRecords counts since the driver was opened. Full counts occasions: the kernel does not say
// how many connections it had no room to tell of.
func (d *Driver) LostRecords() (dataplane.LostRecords, error) {
	d.reading.Lock()
	defer d.reading.Unlock()
	if d.records == nil {
		return dataplane.LostRecords{}, nil
	}
	return d.records.Lost(), nil
}

// closeRecords stops listening for connections that end.
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

// Listen makes the rules show every flow that is evaluated, or only what is denied or to be logged.
// No flow is evaluated again by it.
func (d *Driver) Listen(on bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listening == on {
		return nil
	}
	d.listening = on
	if d.state == nil {
		return nil // the first Apply writes it
	}
	return d.reconcile(context.Background())
}
