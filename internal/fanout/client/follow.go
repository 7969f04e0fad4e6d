// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// followOne follows one fan-out, until it ends or another one takes its place.
func (c *Client) followOne(ctx context.Context, addr string) error {
	k, err := c.connect(ctx, addr)
	if err != nil {
		return err
	}
	for {
		next, err := c.serve(ctx, k)
		k.close()
		if err != nil {
			return err
		}
		k = next
	}
}

// serve hands on what a connection brings until it ends, or another one is to be used instead,
// which it returns.
func (c *Client) serve(ctx context.Context, k *connection) (*connection, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	responses, failed := make(chan *stream.Response), make(chan error, 1)
	go func() {
		resp := k.first
		for {
			select {
			case responses <- resp:
			case <-ctx.Done():
				return
			}
			var err error
			if resp, err = k.stream.Recv(); err != nil {
				failed <- err
				return
			}
		}
	}()
	in := &intake{client: c, decoder: &wire.Decoder{Expression: c.cfg.Expression}, described: k.described}
	look := time.NewTicker(silence / looks)
	defer look.Stop()
	silent := 0 // looks since something came
	token := time.NewTicker(tokenEvery)
	defer token.Stop()
	other := time.NewTicker(c.cfg.OtherEvery)
	defer other.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case err := <-failed:
			return nil, fmt.Errorf("fan-out %s: %w", k.addr, err)
		case <-look.C:
			if silent++; silent > looks {
				return nil, fmt.Errorf("fan-out %s: it has said nothing for %s", k.addr, silence)
			}
		case resp := <-responses:
			if err := in.take(ctx, resp); err != nil {
				return nil, fmt.Errorf("fan-out %s: %w", k.addr, err)
			}
			c.noteOwners(resp.Owners)
			c.notePods(resp.Pods)
			if resp.Fresh != nil {
				c.noteFresh(k.addr, resp.Fresh)
			}
			silent = 0
		case <-c.moved:
			c.mu.Lock()
			now := stream.EndpointsFrom(c.endpoints)
			c.mu.Unlock()
			if err := k.stream.Send(&stream.Request{Endpoints: now}); err != nil {
				return nil, fmt.Errorf("fan-out %s: %w", k.addr, err)
			}
		case <-c.ask:
			if err := k.stream.Send(c.takeAsked()); err != nil {
				return nil, fmt.Errorf("fan-out %s: %w", k.addr, err)
			}
		case <-token.C:
			if t, err := c.cfg.Token(); err != nil {
				c.cfg.Log.Warn("the token for fan-outs cannot be read", "err", err)
			} else if err := k.stream.Send(&stream.Request{Token: t}); err != nil {
				return nil, fmt.Errorf("fan-out %s: %w", k.addr, err)
			}
		case <-other.C:
			if next := c.fresher(ctx, k); next != nil {
				return next, nil
			}
		}
	}
}

// noteFresh notes how fresh what is fed is.
func (c *Client) noteFresh(addr string, f *stream.Fresh) {
	c.mu.Lock()
	before := c.fresh
	c.fresh, c.freshAt = f, time.Now()
	if c.asOf = c.freshAt; !f.Connected {
		c.asOf = c.freshAt.Add(-time.Duration(f.SinceMs) * time.Millisecond)
	}
	c.mu.Unlock()
	if before == nil || before.Connected != f.Connected {
		c.cfg.Log.Info("a fan-out feeds this agent", "replica", string(f.Replica), "address", addr, "in touch with the API server", f.Connected)
	}
	c.note(addr, nil)
}

// fresher returns a connection to another fan-out, when that of k is out of touch with the API
// server and the other one is not; nil = stay.
func (c *Client) fresher(ctx context.Context, k *connection) *connection {
	c.mu.Lock()
	f := c.fresh
	c.mu.Unlock()
	if f == nil || f.Connected || time.Duration(f.SinceMs)*time.Millisecond < staleAfter {
		return nil
	}
	addr, err := c.choose(ctx, k.addr)
	if err != nil || addr == k.addr {
		return nil
	}
	next, err := c.connect(context.WithoutCancel(ctx), addr)
	if err != nil {
		return nil
	}
	if first := next.first.GetFresh(); first == nil || !first.Connected {
		next.close()
		return nil
	}
	c.cfg.Log.Info("a fan-out that is out of touch with the API server is left for another one", "from", k.addr, "to", addr)
	return next
}

// intake collects what belongs together.
type intake struct {
	client  *Client
	decoder *wire.Decoder
	whole   bool // the snapshot came, or what it would have had that the agent had not
	changes *model.Changes

	described bool // the fan-out was told what the agent has
}

func (in *intake) take(ctx context.Context, resp *stream.Response) error {
	if len(resp.Changes) > 0 {
		d, err := in.decoder.Decode(resp.Changes)
		if err != nil {
			return err
		}
		for _, text := range d.NotUnderstood {
			in.client.cfg.Log.Warn("a fan-out of another version sent what is not understood here; it allows nothing, or denies everything", "what", text)
		}
		if in.changes == nil {
			in.changes = d.Changes
		} else {
			in.changes.Merge(d.Changes)
		}
	}
	if resp.More || in.changes == nil && resp.Settings == nil && resp.Delta == nil {
		return nil
	}
	switch {
	case in.whole || resp.Snapshot:
	case resp.Delta == nil:
		return errNoSnapshot
	case !in.described:
		return errNotAsked
	default:
		if in.changes == nil {
			in.changes = &model.Changes{}
		}
		if err := in.client.settle(ctx, in.changes, resp.Delta); err != nil {
			return err
		}
	}
	b := &watch.Batch{Full: resp.Snapshot}
	if in.changes != nil {
		b.Changes = *in.changes
	}
	if s := resp.Settings; s != nil {
		e, err := stream.ExtraOf(s)
		if err != nil {
			return err
		}
		e.Since(in.client.extra, b)
		in.client.extra = e
	}
	first := !in.whole
	in.changes, in.whole = nil, true
	if first || resp.Snapshot { // what it shares texts with is not kept for ever
		in.decoder = &wire.Decoder{Expression: in.client.cfg.Expression}
	}
	in.client.deliver(b)
	return nil
}

// deliver adds a batch to those that wait.
func (c *Client) deliver(b *watch.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = nil
	for name, n := range b.Nodes {
		if n != nil {
			n.Since = c.claims.Note(n) // nobody else has the value yet
		} else {
			c.claims.Gone(name)
		}
	}
	if c.pending == nil {
		c.pending = b
	} else {
		c.pending.Merge(b)
	}
	c.synced = c.synced || b.Full
	signal(c.wake)
}

// noteOwn keeps the pods of the node that a batch brings.
func (c *Client) noteOwn(b *watch.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handing = false
	b.NoteOwn(c.own, c.cfg.Node)
}
