// SPDX-License-Identifier: Apache-2.0

// Package collect follows the records of the agents that are connected, and gives them to a store,
// from where it left off: of an agent that restarted, or of a store that did, nothing is taken
// twice, and what an agent has no more is counted. An agent waits for nobody: while the store is
// behind, what it does not read stays with the agent until newer records take its place.
package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/flows/wire"
	"github.com/weir-net/weir/internal/flowstore"
	"github.com/weir-net/weir/internal/sleep"
)

const (
	// retry is the first time between two attempts to follow an agent, mostRetry the longest.
	retry     = time.Second
	mostRetry = 30 * time.Second
	// silence is for how long an agent may say nothing: it sends something each 15 s.
	silence = 45 * time.Second
	// room is how long is waited for the disk.
	room = 20 * time.Millisecond
	// bootMost bounds the name of an agent's start.
	bootMost = 64
)

// Agent is asked for its records: tunnel.Conn.
type Agent interface {
	Ask(ctx context.Context, method, path string, body io.Reader) (*http.Response, error)
}

// Collector is safe for concurrent use.
type Collector struct {
	Store *flowstore.Store
	Log   *slog.Logger

	mu    sync.Mutex
	turns map[string]chan struct{} // by node: one follows it at a time
}

// Follow takes a node's records from its agent until ctx ends. Another one for the same node, of
// the agent before, has ended then.
func (c *Collector) Follow(ctx context.Context, node string, agent Agent) {
	turn := c.turn(node)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return
	}
	said := ""
	for wait := retry; ; wait = min(2*wait, mostRetry) {
		began := time.Now()
		err := c.once(ctx, node, agent)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > mostRetry {
			wait, said = retry, ""
		}
		if text := err.Error(); text != said {
			said = text
			c.Log.Info("a node's flow records are not followed; trying again", "node", node, "err", text)
		}
		if sleep.For(ctx, wait/2+rand.N(wait)) != nil {
			return
		}
	}
}

func (c *Collector) turn(node string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turns == nil {
		c.turns = map[string]chan struct{}{}
	}
	if c.turns[node] == nil {
		c.turns[node] = make(chan struct{}, 1)
	}
	return c.turns[node]
}

// once follows an agent until its answer or ctx ends; the error says why.
func (c *Collector) once(ctx context.Context, node string, agent Agent) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(silence, cancel)
	defer late.Stop()
	path := wire.Path
	if q := c.Store.Next(node).Query().Encode(); q != "" {
		path += "?" + q
	}
	resp, err := agent.Ask(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("the agent answers %s: %q", resp.Status, strings.TrimSpace(string(text)))
	}
	for r := wire.NewReader(resp.Body); ; {
		late.Reset(silence)
		b, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("the agent ended the answer")
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("the agent says nothing any more: %w", err)
		case err != nil:
			return err
		}
		late.Stop()
		if err := c.take(ctx, node, b); err != nil {
			return err
		}
	}
}

// take gives a batch to the store, and waits while the disk is behind: so does the agent.
func (c *Collector) take(ctx context.Context, node string, b *wire.Batch) error {
	records, err := b.Rows(node)
	if err != nil {
		return err
	}
	if b.Boot == "" || len(b.Boot) > bootMost {
		return errors.New("the agent does not say since when it numbers records")
	}
	batch := &flowstore.Batch{Node: node, At: wire.Position{Boot: b.Boot, Next: b.First}, Lost: b.Lost, Records: records}
	for {
		switch taken, err := c.Store.Take(batch); {
		case err != nil:
			return err
		case taken == records.Len():
			return nil
		}
		if err := sleep.For(ctx, room); err != nil {
			return err
		}
	}
}
