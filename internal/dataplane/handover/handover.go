// SPDX-License-Identifier: Apache-2.0

// Package handover puts one data plane in the place of another on a node whose packets go on. Both
// apply what is submitted until the new one carries all packets: a change of policy waits for no
// step of the change of the data plane.
package handover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
)

// Predecessor is a driver in force whose place another one takes.
type Predecessor interface {
	dataplane.Driver
	// Leave lets the driver from then on keep the tables by which packets are evaluated, and
	// nothing else: devices, routes and what is attached are the successor's to change.
	Leave()
}

// Change puts a driver in the place of another one.
type Change struct {
	Loop *dataplane.Loop // of From; it runs
	From Predecessor
	To   dataplane.Driver
	// HandOver is called once To has put the node's state in place, and lets it carry what From
	// carries. nil = To does that itself while it puts its first state in place.
	HandOver func(ctx context.Context) error
	// Remove removes what From leaves in the kernel. Nothing is applied to From any more, and it is
	// closed.
	Remove func(ctx context.Context) error
}

// lookEvery is between two looks at whether the successor is in place.
const lookEvery = 20 * time.Millisecond

// Run makes the change. Both drivers get every state that is submitted to the loop meanwhile, the
// predecessor until all packets are the successor's, the successor until Run returns. Where ctx
// ends before, or something fails, the one in force goes on with the tables that it has, and the
// change is for the next start of the process to finish.
func (c Change) Run(ctx context.Context) error {
	c.From.Leave()
	next := c.Loop.Follow(c.To)
	defer c.Loop.Unfollow()
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = next.Run(running) // it ends with its context
	}()
	defer func() {
		next.End() // an Apply under way ends by itself
		stop()
		<-ended
	}()
	if err := inPlace(ctx, next); err != nil {
		return err
	}
	if c.HandOver != nil {
		if err := c.HandOver(ctx); err != nil {
			return fmt.Errorf("handing over: %w", err)
		}
	}
	c.Loop.End()
	if err := errors.Join(c.From.Close(), c.Remove(ctx)); err != nil {
		return fmt.Errorf("removing what the other data plane left: %w", err)
	}
	return nil
}

// inPlace waits until a loop has put a state in place, wholly.
func inPlace(ctx context.Context, l *dataplane.Loop) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for l.Applied() == 0 || l.Err() != nil {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the other data plane to be in place: %w", errors.Join(ctx.Err(), l.Err()))
		case <-tick.C:
		}
	}
	return nil
}
