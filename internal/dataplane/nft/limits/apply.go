// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"context"
	"errors"
	"maps"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Table is the table as it is in the kernel.
type Table struct {
	*table.State
	uncounted error // why connections are not counted
	older     map[side]older
	recounted bool // Recount was called
	tracked   func(six bool, each func(conntrack.Entry)) error
}

// New is a table of which nothing is known yet. Which connections are open tracked says, as Tracked
// does.
func New(n knftables.Interface, tracked func(six bool, each func(conntrack.Entry)) error) *Table {
	return &Table{State: table.NewState(n, table.Family{Inet: true}), older: map[side]older{}, tracked: tracked}
}

// Apply makes the kernel's table what a state wants, or takes it away. Where the kernel counts no
// connections, the rest is in force all the same.
func (t *Table) Apply(ctx context.Context, s *nodestate.State) error {
	return errors.Join(t.note(s), t.apply(ctx, s))
}

func (t *Table) apply(ctx context.Context, s *nodestate.State) error {
	allowed := t.allowed
	if t.uncounted != nil {
		allowed = nil
	}
	err := t.write(ctx, Render(s, allowed))
	if err == nil || t.uncounted != nil || !counts(s) {
		return errors.Join(err, t.missing(s))
	}
	if again := t.write(ctx, Render(s, nil)); again != nil {
		return errors.Join(err, again)
	}
	t.uncounted = err
	return t.missing(s)
}

// missing says that a pod's connections are to be counted, and are not.
func (t *Table) missing(s *nodestate.State) error {
	if counts(s) {
		return t.uncounted
	}
	return nil
}

func counts(s *nodestate.State) bool {
	for _, q := range s.QoS {
		if q.CountsConnections() {
			return true
		}
	}
	return false
}

func (t *Table) write(ctx context.Context, want *table.Table) error {
	if want == nil {
		if t.Loaded && !t.There() {
			return nil
		}
		return t.Drop(ctx)
	}
	if !t.Loaded {
		t.Define(want)
		if err := t.Load(ctx); err != nil {
			return err
		}
	}
	t.Desire(want, slices.Collect(maps.Keys(want.Sets)), func(string) bool { return false })
	return t.Write(ctx)
}
