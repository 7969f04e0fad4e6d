// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/dataplane"
)

// ErrRestart says that the agent is to be started again at once.
var ErrRestart = errors.New("to be started again")

const (
	flowMap = "weir_flows"
	// maxGrowth bounds how far the connection table grows beyond what is configured: what pods can
	// fill costs the node memory.
	maxGrowth = 4
	// conntrackCheckEvery is between two looks at the connection table.
	conntrackCheckEvery = 10 * time.Second
)

// conntrackSize remembers how far the connection table has grown (bpfMapSizeConntrackScaling), also
// over a reboot.
type conntrackSize struct {
	file *statefile.File[rememberedSize]
	log  *slog.Logger
}

// rememberedSize is the size of the connection table, and the configured one that it has grown
// from.
type rememberedSize struct {
	Configured int `json:"configured"`
	Entries    int `json:"entries"`
}

func openConntrackSize(stateDir string, log *slog.Logger) *conntrackSize {
	return &conntrackSize{file: statefile.New[rememberedSize](filepath.Join(stateDir, "conntrack.json"), log), log: log}
}

// entries returns how many entries the table has from the start of the agent on. Another configured
// size begins anew.
func (f *conntrackSize) entries(e config.Effective) int {
	configured := e.Settings.MaxFlows
	g := f.file.Load()
	if !e.MapSizes.ConntrackDoubles || g.Configured != configured {
		return configured
	}
	return min(max(g.Entries, configured), maxGrowth*configured)
}

// grow remembers twice the size when the table is nearly full, and reports whether the agent has to
// start again for it.
func (f *conntrackSize) grow(e config.Effective, all []dataplane.Pressure) bool {
	configured := e.Settings.MaxFlows
	for _, p := range all {
		if p.Map != flowMap || !p.High() || !e.MapSizes.ConntrackDoubles {
			continue
		}
		// A table of another size than the one of the next start is one that the next start
		// changes.
		if f.entries(e) != p.Capacity || 2*p.Capacity > maxGrowth*configured {
			continue
		}
		if f.file.Save(rememberedSize{Configured: configured, Entries: 2 * p.Capacity}) == nil {
			f.log.Warn("the connection table is nearly full and doubles; the agent starts again, no connection is lost", "entries", p.Entries, "of", p.Capacity, "now", 2*p.Capacity)
			return true
		}
	}
	return false
}

// growConntrack looks at the connection table until it has to grow.
func (a *Agent) growConntrack(ctx context.Context) error {
	tick := time.NewTicker(conntrackCheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if a.conntrackSize.grow(a.cluster.snapshot().config.Effective, a.driver.Pressures()) {
			return ErrRestart
		}
	}
}
