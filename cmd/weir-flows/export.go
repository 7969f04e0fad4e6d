// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flowstore/export"
	"github.com/weir-net/weir/internal/flowstore/export/ipfix"
	"github.com/weir-net/weir/internal/flowstore/export/otlp"
	"github.com/weir-net/weir/internal/version"
)

// exporters are for the programs that get each record, too.
type exporters []*export.Exporter

// taken is what the store calls with each record: nil where nobody wants them, as it makes them of
// its rows for it.
func (e exporters) taken() func(*flows.Flow) {
	if len(e) == 0 {
		return nil
	}
	return e.offer
}

func (e exporters) offer(f *flows.Flow) {
	for _, to := range e {
		to.Offer(f)
	}
}

// lost are the records that programs did not get, of those that lost some after a time.
func (e exporters) lost(since time.Time) map[string]map[string]uint64 {
	out := map[string]map[string]uint64{}
	for _, to := range e {
		if lost := to.Lost(since); lost != nil {
			out[to.To()] = lost
		}
	}
	return out
}

func exportersOf(s settings, log *slog.Logger) (out exporters, err error) {
	if s.otlp != "" {
		sender, err := otlp.New(s.otlp, s.certificates, version.Version)
		if err != nil {
			return nil, fmt.Errorf("-otlp: %w", err)
		}
		out = append(out, export.New("otlp", sender, log))
	}
	if s.ipfix != "" {
		sender, err := ipfix.New(s.ipfix, s.certificates)
		if err != nil {
			return nil, fmt.Errorf("-ipfix: %w", err)
		}
		out = append(out, export.New("ipfix", sender, log))
	}
	return out, nil
}
