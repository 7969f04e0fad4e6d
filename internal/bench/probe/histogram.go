// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Times below a nanosecond or above two minutes do not occur; three significant digits are kept.
const (
	maxTime    = 2 * time.Minute
	timeDigits = 3
	binDigits  = 2
)

// times is a histogram in nanoseconds: a fixed amount of memory however long a test runs.
type times struct{ h *hdr.Histogram }

func newTimes() times { return times{hdr.New(1, maxTime.Nanoseconds(), timeDigits)} }

func (t times) add(d time.Duration) {
	_ = t.h.RecordValue(min(max(d.Nanoseconds(), 1), maxTime.Nanoseconds())) // within bounds
}

func (t times) merge(o times) { t.h.Merge(o.h) }

// latency returns nil where nothing was measured.
func (t times) latency() *Latency {
	if t.h.TotalCount() == 0 {
		return nil
	}
	us := func(ns int64) float64 { return float64(ns) / 1000 }
	l := &Latency{Count: t.h.TotalCount(), Mean: t.h.Mean() / 1000, P50: us(t.h.ValueAtQuantile(50)), P90: us(t.h.ValueAtQuantile(90)),
		P99: us(t.h.ValueAtQuantile(99)), P999: us(t.h.ValueAtQuantile(99.9)), Min: us(t.h.Min()), Max: us(t.h.Max())}
	coarse := hdr.New(1, maxTime.Nanoseconds(), binDigits)
	for _, b := range t.h.Distribution() {
		if b.Count > 0 {
			_ = coarse.RecordValues(b.From, b.Count)
		}
	}
	for _, b := range coarse.Distribution() {
		if b.Count > 0 {
			l.Bins = append(l.Bins, Bin{UpTo: us(b.To), Count: b.Count})
		}
	}
	return l
}
