// SPDX-License-Identifier: Apache-2.0

// Package tablesize remembers how far the connection table of eBPF has grown
// (bpfMapSizeConntrackScaling), also over a reboot: the size of a map is fixed, so that a table
// that is nearly full is made anew, twice as large, by the next start of the agent. How far it
// grows is bounded, because pods can fill it, and it costs the node memory.
package tablesize

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/dataplane"
)

const (
	// FlowMap is the name of the table of connections.
	FlowMap = "weir_flows"
	// maxGrowth bounds how far the connection table grows beyond what is configured: what pods can
	// fill costs the node memory.
	maxGrowth = 4
	// checkEvery is between two looks at the connection table.
	checkEvery = 10 * time.Second
)

// Size remembers how large the table is to be.
type Size struct {
	file *statefile.File[rememberedSize]
	log  *slog.Logger
}

// rememberedSize is the size of the connection table, and the configured one that it has grown
// from.
type rememberedSize struct {
	Configured int `json:"configured"`
	Entries    int `json:"entries"`
}

// Open reads what was remembered below the state directory.
func Open(stateDir string, log *slog.Logger) *Size {
	return &Size{file: statefile.New[rememberedSize](filepath.Join(stateDir, "conntrack.json"), log), log: log}
}

// Entries returns how many entries the table has from the start of the agent on. Another configured
// size begins anew.
func (f *Size) Entries(e config.Effective) int {
	configured := e.Settings.MaxFlows
	g := f.file.Load()
	if !e.MapSizes.ConntrackDoubles || g.Configured != configured {
		return configured
	}
	return min(max(g.Entries, configured), maxGrowth*configured)
}

// grow remembers twice the size when the table is nearly full, and reports whether the agent has to
// start again for it.
func (f *Size) grow(e config.Effective, all []dataplane.Pressure) bool {
	configured := e.Settings.MaxFlows
	for _, p := range all {
		if p.Map != FlowMap || !p.High() || !e.MapSizes.ConntrackDoubles {
			continue
		}
		// A table of another size than the one of the next start is one that the next start
		// changes.
		if f.Entries(e) != p.Capacity || 2*p.Capacity > maxGrowth*configured {
			continue
		}
		if f.file.Save(rememberedSize{Configured: configured, Entries: 2 * p.Capacity}) == nil {
			f.log.Warn("the connection table is nearly full and doubles; the agent starts again, no connection is lost", "entries", p.Entries, "of", p.Capacity, "now", 2*p.Capacity)
			return true
		}
	}
	return false
}

// Run looks at the connection table until it has to grow: then it returns restart. Settings are
// those in force, pressures how full the tables are.
func (f *Size) Run(ctx context.Context, settings func() config.Effective, pressures func() []dataplane.Pressure, restart error) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if f.grow(settings(), pressures()) {
			return restart
		}
	}
}
