// SPDX-License-Identifier: Apache-2.0

package tablesize

import (
	"log/slog"
	"testing"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/dataplane"
)

// The connection table doubles when it is nearly full, twice at most, remembers that, and forgets
// it with another configured size.
func TestConnectionTableDoubles(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	e := config.Default()
	e.Settings.MaxFlows, e.MapSizes.ConntrackDoubles = 1000, true
	full := func(capacity int) []dataplane.Pressure {
		return []dataplane.Pressure{{Map: "weir_peers", Entries: 10, Capacity: 10}, {Map: FlowMap, Family: "ipv4", Entries: 1, Capacity: capacity},
			{Map: FlowMap, Family: "ipv6", Entries: capacity*9/10 + 1, Capacity: capacity}}
	}
	size := func(want int) {
		t.Helper()
		if got := Open(dir, log).Entries(e); got != want {
			t.Errorf("%d entries, want %d", got, want)
		}
	}
	grows := func(all []dataplane.Pressure, want bool) {
		t.Helper()
		if got := Open(dir, log).grow(e, all); got != want {
			t.Errorf("grows: %v, want %v", got, want)
		}
	}
	size(1000)
	grows([]dataplane.Pressure{{Map: FlowMap, Entries: 900, Capacity: 1000}}, false)
	grows(full(1000), true)
	size(2000)
	grows(full(1000), false) // what was remembered is not in force yet
	grows(full(2000), true)
	size(4000)
	grows(full(4000), false)
	e.MapSizes.ConntrackDoubles = false
	size(1000)
	grows(full(1000), false)
	e.MapSizes.ConntrackDoubles = true
	size(4000)
	e.Settings.MaxFlows = 3000
	size(3000)
	grows(full(3000), true)
	size(6000)
	if err := statefile.Write(dir+"/conntrack.json", []byte(`{"configured": 3000, "entries": 99999999}`), 0o600); err != nil {
		t.Fatal(err)
	}
	size(12000)
	if err := statefile.Write(dir+"/conntrack.json", []byte(`{"configured": 3000, "entries": -1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	size(3000)
}
