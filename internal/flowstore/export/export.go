// SPDX-License-Identifier: Apache-2.0

// Package export sends flow records to other programs as the store takes them. The store waits for
// none of them: each has a queue with a bound, and a batch that cannot be sent is tried again until
// it can. What does not get there is counted, by why. Packages otlp and ipfix have the protocols.
package export

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/sleep"
)

// Why records do not get there.
const (
	LostQueue   = "queue"   // they came faster than they are taken, or it is away
	LostRefused = "refused" // it does not want them, or they cannot be said in its protocol
	LostEnd     = "end"     // the store ended first
)

const (
	queueMost = 32 << 10 // records, of some 600 bytes each
	batchMost = 1024
	gather    = time.Second // for a batch to fill
	retry     = time.Second
	retryMost = 30 * time.Second
	sendTime  = 30 * time.Second
	endTime   = 5 * time.Second // for what is in the queue when the store ends
)

// Sender sends records by a protocol. It is called by one goroutine.
type Sender interface {
	// Send returns nil when all were sent, a *Refused when some will never be, and any other error
	// when it makes sense to send all of them again.
	Send(ctx context.Context, records []*flows.Flow) error
	Close() error
}

// Refused says how many of the records of a batch are not taken; the others are.
type Refused struct {
	Records int
	Why     error
}

func (r *Refused) Error() string { return fmt.Sprintf("%d records are refused: %v", r.Records, r.Why) }

func (r *Refused) Unwrap() error { return r.Why }

// Exporter sends records to one program. It is a prometheus.Collector.
type Exporter struct {
	to     string // the protocol
	sender Sender
	log    *slog.Logger
	queue  chan *flows.Flow

	mu   sync.Mutex
	sent uint64
	lost map[string]uint64
	last time.Time // that records were lost
}

// New returns one that sends nothing before Run. to names the protocol in metrics.
func New(to string, sender Sender, log *slog.Logger) *Exporter {
	return &Exporter{to: to, sender: sender, log: log.With("export", to), queue: make(chan *flows.Flow, queueMost), lost: map[string]uint64{LostQueue: 0, LostRefused: 0, LostEnd: 0}}
}

// Offer has a record sent, which nobody changes any more. It does not wait.
func (e *Exporter) Offer(f *flows.Flow) {
	select {
	case e.queue <- f:
	default:
		e.count(0, LostQueue, 1)
	}
}

func (e *Exporter) count(sent int, why string, lost int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent += uint64(sent)
	if lost > 0 {
		e.lost[why] += uint64(lost)
		e.last = time.Now()
	}
}

// Run sends until ctx ends, and then for some seconds what there is.
func (e *Exporter) Run(ctx context.Context) {
	batch := make([]*flows.Flow, 0, batchMost)
	for e.fill(ctx, &batch) {
		e.send(ctx, batch)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	for drained := false; !drained; {
		select {
		case f := <-e.queue:
			batch = append(batch, f)
		default:
			drained = true
		}
		if len(batch) == batchMost || drained && len(batch) > 0 {
			if last.Err() != nil || !e.try(last, batch) {
				e.count(0, LostEnd, len(batch))
				cancel()
			}
			clear(batch)
			batch = batch[:0]
		}
	}
	if err := e.sender.Close(); err != nil {
		e.log.Debug("the connection was not closed", "err", err)
	}
}

// fill waits for records, and then for more up to a batch; false = ctx has ended, and what is in
// the batch is to be sent.
func (e *Exporter) fill(ctx context.Context, batch *[]*flows.Flow) bool {
	clear(*batch)
	*batch = (*batch)[:0]
	var late <-chan time.Time
	for len(*batch) < batchMost {
		select {
		case <-ctx.Done():
			return false
		case f := <-e.queue:
			if *batch = append(*batch, f); late == nil {
				late = time.After(gather)
			}
		case <-late:
			return true
		}
	}
	return true
}

// send tries until the batch is sent, or ctx ends.
func (e *Exporter) send(ctx context.Context, batch []*flows.Flow) {
	for wait := retry; !e.try(ctx, batch); wait = min(2*wait, retryMost) {
		if sleep.For(ctx, wait/2+rand.N(wait)) != nil {
			e.count(0, LostEnd, len(batch))
			return
		}
	}
}

// try sends once; false = it is to be tried again.
func (e *Exporter) try(ctx context.Context, batch []*flows.Flow) bool {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	err := e.sender.Send(ctx, batch)
	var refused *Refused
	switch {
	case err == nil:
		e.count(len(batch), "", 0)
	case errors.As(err, &refused):
		n := min(max(refused.Records, 0), len(batch))
		e.count(len(batch)-n, LostRefused, n)
		e.log.Warn("flow records are refused", "records", n, "why", refused.Why)
	default:
		e.log.Warn("flow records are not sent; trying again", "records", len(batch), "err", err)
		return false
	}
	return true
}

// To is the protocol.
func (e *Exporter) To() string { return e.to }

// Lost are the records that did not get there, by why; nil where none were lost after a time.
func (e *Exporter) Lost(since time.Time) map[string]uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.last.After(since) {
		return nil
	}
	return maps.Clone(e.lost)
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_"+name, help, labels, nil)
}

var (
	descSent = describe("flowstore_exported_total", "Flow records that were sent to another program, by protocol: otlp, ipfix. By UDP nobody knows whether they arrived.", "to")
	descLost = describe("flowstore_export_lost_total", "Flow records that another program did not get, by protocol and why: queue (they came faster than it takes them, or it is away), refused (it does not want them, or the protocol cannot say them), end (the store ended first).", "to", "why")
)

// Describe implements prometheus.Collector.
func (e *Exporter) Describe(ch chan<- *prometheus.Desc) {
	ch <- descSent
	ch <- descLost
}

// Collect implements prometheus.Collector.
func (e *Exporter) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	count(descSent, e.sent, e.to)
	for why, n := range e.lost {
		count(descLost, n, e.to, why)
	}
}
