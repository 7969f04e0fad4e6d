// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"log/slog"
	"maps"

	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/nodestate"
)

// refreshNeighbours finds out which neighbours are known, once in a while.
func (t *familyTable) refreshNeighbours(s *nodestate.State, log *slog.Logger) {
	if !t.Family.Carried(s) {
		return
	}
	found, err := chains.FindNeighbours(t.Family, s)
	if err != nil {
		log.Debug("which neighbours are known is not; the last ones stay", "error", err)
		return
	}
	t.neighbours = found
	if t.numbers == nil || !t.Current() { // they come with the next state
		return
	}
	want := map[string]string{}
	for a := range found {
		want[a.String()] = ""
	}
	t.Tracker(chains.SetNeighbours).Desire(maps.All(want))
}
