// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weir-net/weir/internal/fanout/digest"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/sleep"
)

// handedWithin is how long a new stream waits until all that came before was handed on, which is
// what the digests are of. After that it asks for a snapshot.
const handedWithin = 2 * time.Second

// hello is the first request of a stream, and says whether it describes what the agent has. No
// other stream is read meanwhile, so that nothing changes until the answer is there.
func (c *Client) hello(ctx context.Context) (first *stream.Request, described bool) {
	c.mu.Lock()
	first = &stream.Request{Endpoints: stream.EndpointsFrom(c.endpoints), Program: c.cfg.Program, Held: c.held}
	c.mu.Unlock()
	if first.Held != nil {
		return first, true
	}
	if c.cfg.Cluster == nil || !c.allHandedOn(ctx) {
		return first, false
	}
	if err := c.cfg.Cluster(ctx, func(held *model.Cluster) { first.Held = stream.HeldFrom(digest.HeldOf(held)) }); err != nil {
		c.cfg.Log.Warn("what the agent has is not known; a fan-out is asked for all of it", "err", err)
		first.Held = nil
	}
	if proto.Size(first) > stream.MostRequest {
		first.Held = nil
	}
	c.mu.Lock()
	c.held = first.Held // to find it again for each try would cost more than all else
	c.mu.Unlock()
	return first, first.Held != nil
}

// allHandedOn waits until all that came was handed on, and reports whether that is so, and a
// snapshot was among it.
func (c *Client) allHandedOn(ctx context.Context) bool {
	for end := time.Now().Add(handedWithin); ; {
		c.mu.Lock()
		synced, waits := c.synced, c.pending != nil || c.handing
		c.mu.Unlock()
		if !synced || !waits {
			return synced
		}
		if time.Now().After(end) {
			return false
		}
		if sleep.For(ctx, 2*time.Millisecond) != nil {
			return false
		}
	}
}

// settle makes of what came in the place of what differed the changes of what the agent has.
func (c *Client) settle(ctx context.Context, ch *model.Changes, d *stream.Delta) error {
	replaced, err := d.Buckets()
	if err != nil {
		return err
	}
	if err := c.cfg.Cluster(ctx, func(held *model.Cluster) { digest.Settle(ch, held, replaced) }); err != nil {
		return fmt.Errorf("look at what the agent has: %w", err)
	}
	return nil
}

var (
	errNoSnapshot = errors.New("changes came before a snapshot")
	errNotAsked   = errors.New("what differs came, without having been asked for")
)
