// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/events"
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
