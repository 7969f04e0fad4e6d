// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"time"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/limits"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/nodestate"
)

// tracked hands on the connections of a family that the kernel tracks.
func (d *Driver) tracked(six bool, each func(conntrack.Entry)) error {
	if !d.live {
		return nil
	}
	return limits.Tracked(six, each)
}

// recountConnections looks until ctx ends which connections are over that were open when a limit
// came.
func (d *Driver) recountConnections(ctx context.Context) {
	tick := time.NewTicker(limits.CountEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := d.recountOnce(ctx); err != nil {
			d.log.Error("connections of pods that are over still count", "error", err)
		}
	}
}

func (d *Driver) recountOnce(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil || d.left {
		return nil
	}
	return d.limits.Recount(ctx, d.state)
}

// EvaluatesForwarded reports whether policies of host endpoints apply to what passes the node, of a
// family.
func EvaluatesForwarded(s *nodestate.State, six bool) bool { return expr.AppliesToForwarded(s, six) }

// MaxHashed is up to how many backends consistent hashing is done.
const MaxHashed = services.MaxHashed
