// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
)

// Source is where events come from: the driver.
type Source interface {
	// Read waits for the next event; os.ErrClosed when the source was closed.
	Read() (dataplane.Event, error)
	Close() error
}

// queue is how many events wait for a listener.
const queue = 1024

// Filter says which events somebody wants; the zero value wants all.
type Filter struct {
	Type string // "drop": denied; "log": a rule with action Log matched; "verdict", "all", "": any
	Pod  string // "namespace/name" at either end; "" = any
}

// ErrFilter: a filter that means nothing.
var ErrFilter = errors.New("not a filter of events")

// Check says what is wrong with a filter.
func (f Filter) Check() error {
	switch f.Type {
	case "", "all", "drop", "verdict", "log":
	default:
		return fmt.Errorf("%w: type %q: drop, verdict, log or all", ErrFilter, f.Type)
	}
	if f.Pod != "" && strings.Count(f.Pod, "/") != 1 {
		return fmt.Errorf("%w: pod %q: namespace/name", ErrFilter, f.Pod)
	}
	return nil
}

// wants: is the event what the filter is about?
func (f Filter) wants(e *Event) bool {
	switch {
	case f.Type == "drop" && e.Verdict != "denied" && e.Reason == "", f.Type == "log" && !e.Log:
		return false
	}
	return f.Pod == "" || e.Source.Pod == f.Pod || e.Destination.Pod == f.Pod
}

// everything: does the filter need flows that are allowed?
func (f Filter) everything() bool { return f.Type != "log" && f.Type != "drop" }

// Hub hands events to listeners. It is safe for concurrent use.
type Hub struct {
	node   string
	by     Namer
	log    *slog.Logger
	listen func(on bool) error // the programs report every evaluated flow

	mu        sync.Mutex
	listeners map[*Listener]bool
	lost      atomic.Uint64
}

// NewHub returns a hub of a node. listen makes the programs report every evaluated flow, or only
// what they always report.
func NewHub(node string, by Namer, listen func(on bool) error, log *slog.Logger) *Hub {
	return &Hub{node: node, by: by, listen: listen, log: log, listeners: map[*Listener]bool{}}
}

// Listener is somebody who listens.
type Listener struct {
	filter Filter
	events chan Event
	missed uint64 // since the last event that found room
}

// Events are what the listener gets; closed when it was removed.
func (l *Listener) Events() <-chan Event { return l.events }

// Listen adds a listener. Who added it must remove it.
func (h *Hub) Listen(f Filter) (*Listener, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	l := &Listener{filter: f, events: make(chan Event, queue)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners[l] = true
	if err := h.configure(); err != nil {
		delete(h.listeners, l)
		return nil, err
	}
	return l, nil
}

// Remove ends a listener.
func (h *Hub) Remove(l *Listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.listeners[l] {
		return
	}
	delete(h.listeners, l)
	close(l.events)
	if err := h.configure(); err != nil {
		h.log.Error("the programs still report every flow, although nobody listens", "error", err)
	}
}

// configure sets in the programs what is wanted.
func (h *Hub) configure() error {
	on := false
	for l := range h.listeners {
		on = on || l.filter.everything()
	}
	if err := h.listen(on); err != nil {
		return fmt.Errorf("asking the programs for events: %w", err)
	}
	return nil
}

// Lost counts the events that listeners were too slow for.
func (h *Hub) Lost() uint64 { return h.lost.Load() }

// Run reads events until ctx ends.
func (h *Hub) Run(ctx context.Context, from Source) error {
	defer context.AfterFunc(ctx, func() { from.Close() })()
	for {
		d, err := from.Read()
		switch {
		case ctx.Err() != nil || errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return err
		}
		h.give(name(d, h.node, h.by, time.Now()))
	}
}

// give hands an event to who wants it. A listener whose queue is full loses it.
func (h *Hub) give(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.listeners {
		if !l.filter.wants(&e) {
			continue
		}
		mine := e
		mine.Lost = l.missed
		select {
		case l.events <- mine:
			l.missed = 0
		default:
			l.missed++
			h.lost.Add(1)
		}
	}
}
