// SPDX-License-Identifier: Apache-2.0

// Package flowlog keeps the records of flows of one node: it reads what the data plane reports of
// flows and what policy denies, gives both to a flows.Collector, ends its intervals, answers
// questions, and gives the store of flow records what comes, as it comes. Where other settings come
// into force than the data plane was opened for, the agent has to start again.
package flowlog

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/wire"
)

const (
	// readEvery is between two looks at what the data plane reports.
	readEvery = 100 * time.Millisecond
	// lookEvery is between two looks at the settings.
	lookEvery = 2 * time.Second
)

// DataPlane is where records come from.
type DataPlane interface {
	// FlowRecords hands on the records that are there, and does not wait; it is for one goroutine.
	FlowRecords(give func(dataplane.FlowRecord)) error
	LostRecords() (dataplane.LostRecords, error)
}

// Log is the flow log of a node.
type Log struct {
	Collector *flows.Collector
	Events    *events.Hub
	Driver    func() DataPlane // nil = there is none yet
	Lost      func() (dataplane.LostEvents, error)
	// Settings are the interval that is in force, and the one that a start of the agent would take;
	// not known before the cluster is.
	Settings func() (now, atStart time.Duration, known bool)
	Restart  error // what Run returns when the agent is to start again
	Log      *slog.Logger
	// Serve answers questions about records in another way than ServeHTTP, until ctx ends.
	Serve func(context.Context) error

	losses losses
}

// Run works until ctx ends, or returns Restart.
func (l *Log) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.watch(ctx) })
	if l.Collector.Interval() > 0 {
		g.Go(func() error { return l.collectDenied(ctx) })
		g.Go(func() error { return l.read(ctx) })
		g.Go(func() error { return l.Serve(ctx) })
	}
	return g.Wait()
}

// watch waits until other settings than those of the start are in force.
func (l *Log) watch(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if now, atStart, known := l.Settings(); known && now != l.Collector.Interval() && now == atStart {
			l.Log.Info("flows are accounted for otherwise; the agent starts again, no connection is lost", "interval", now, "before", l.Collector.Interval())
			return l.Restart
		}
	}
}

// collectDenied takes what policy denies, and what is dropped, from the events.
func (l *Log) collectDenied(ctx context.Context) error {
	listener, err := l.Events.Listen(events.Filter{Type: "drop"})
	if err != nil {
		return err
	}
	defer l.Events.Remove(listener)
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-listener.Events():
			l.Collector.AddEvent(e)
		}
	}
}

// read takes what the data plane reports of open and ended flows.
func (l *Log) read(ctx context.Context) error {
	read, flush := time.NewTicker(readEvery), time.NewTicker(l.Collector.Interval())
	defer read.Stop()
	defer flush.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-read.C:
			if d := l.Driver(); d != nil {
				if err := d.FlowRecords(l.Collector.Add); err != nil {
					l.Log.Warn("flow records are lost", "error", err)
				}
			}
		case <-flush.C:
			l.Collector.Flush()
		}
	}
}

// Status is that of the records, with what the data plane lost; begun counts the flows that it has
// accounted for.
func (l *Log) Status() (s flows.Status, begun uint64) {
	s = l.Collector.Status()
	if d := l.Driver(); d != nil {
		if lost, err := d.LostRecords(); err == nil {
			s.Lost["ring"], s.Lost["expired"], begun = lost.Full, lost.Queue, lost.Begun
			if lost.EvictedKnown {
				s.Lost["evicted"] = lost.Evicted
			}
		}
	}
	if lost, err := l.Lost(); err == nil && s.Interval > 0 {
		s.Lost["events"] = lost.Full + lost.Limited
	}
	return s, begun
}

// errOff is the answer where no records are kept.
const errOff = "flows are not accounted for: FelixConfiguration spec.flowLogsLocalReporter"

// ServeHTTP answers flows.Path.
func (l *Log) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	filter, err := flows.ParseQuery(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if l.Collector.Interval() == 0 {
		http.Error(w, errOff, http.StatusConflict)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	to := json.NewEncoder(w)
	l.Collector.Each(filter, func(f *flows.Flow) bool {
		err = errors.Join(err, to.Encode(flows.Line{Flow: f}))
		return err == nil
	})
	if s, _ := l.Status(); err == nil {
		err = to.Encode(flows.Line{Status: &s})
	}
	if err != nil {
		l.Log.Debug("an answer about flows ended early", "error", err)
	}
}

// beatEvery is the time between two batches where there are no records: who follows knows by them
// that the connection is there, and what is lost.
const beatEvery = 15 * time.Second

// ServeFollow answers wire.Path: the records from a position on, and then those that come, until
// the request's context ends. Who reads slowly finds that newer records took the place of some.
func (l *Log) ServeFollow(w http.ResponseWriter, r *http.Request) {
	at, err := wire.ParsePosition(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c := l.Collector
	if c.Interval() == 0 {
		http.Error(w, errOff, http.StatusConflict)
		return
	}
	if at.Boot != c.Boot() { // of the agent before
		at.Next = 0
	}
	w.Header().Set("Content-Type", wire.ContentType)
	out, flush := wire.NewWriter(w), http.NewResponseController(w)
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		records, first, flushed := c.Part(at.Next, wire.MostRecords)
		s, _ := l.Status()
		n, err := out.Write(c.Boot(), first, s.Lost, records)
		if err == nil {
			err = flush.Flush()
		}
		if err != nil {
			l.Log.Debug("flow records are no longer followed", "error", err)
			return
		}
		if at.Next = first + uint64(n); n > 0 {
			continue
		}
		select {
		case <-r.Context().Done():
			return
		case <-flushed:
		case <-beat.C:
		}
	}
}
