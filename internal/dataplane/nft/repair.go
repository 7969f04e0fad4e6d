// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/dataplane/nft/names"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

const (
	// checkEvery bounds how long a table that somebody deleted or flushed goes unnoticed.
	checkEvery = 300 * time.Millisecond
	// lookEvery bounds how long elements that somebody deleted, devices and routes do: to look at
	// all of them costs more.
	lookEvery = 10 * time.Second
)

// Run keeps the kernel as the last state wants it until ctx ends. Each transaction of nftables by
// anybody raises the ruleset's generation by one: that number, less what we wrote, says whether
// there is anything to look at.
func (d *Driver) Run(ctx context.Context) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	if d.live {
		var counting sync.WaitGroup
		defer counting.Wait()
		counting.Go(func() { d.shareConnections(ctx) })
		counting.Go(func() { d.recountConnections(ctx) })
		if d.names != nil {
			counting.Go(func() { d.names.Run(ctx) })
		}
	}
	looked, seen, written := time.Now(), uint32(0), uint32(0)
	stale := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, commits, err := d.generation()
		if err != nil {
			d.log.Error("asking for the generation of nftables", "error", err)
			continue
		}
		changed := now != seen+commits-written // by somebody else
		seen, written = now, commits
		stale = stale || changed
		full := time.Since(looked) > lookEvery
		if full {
			looked = time.Now()
		}
		if changed || full {
			d.check(ctx, full, full && stale)
		}
		if full {
			stale = false
		}
	}
}

// check compares the kernel's rules with ours and repairs them; with machine devices and routes
// too, with elements all of the tables.
func (d *Driver) check(ctx context.Context, machine, elements bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil || d.left {
		return
	}
	broken := false
	all := []*table.State{d.limits.State}
	for _, f := range table.Families {
		all = append(all, d.tables[f].State)
	}
	for _, t := range all {
		if !t.Current() {
			continue
		}
		if err := t.Intact(); err != nil {
			d.log.Warn("a table was changed by somebody else; making it again", "table", string(t.Family.NFT())+" "+table.Name, "found", err)
			d.count.repaired("table")
			t.Invalidate()
			broken = true
		} else if elements {
			t.Invalidate()
		}
	}
	for _, t := range []*table.RuleTable{&d.tunnelTable.RuleTable, &d.arpTable.RuleTable} {
		if err := t.Lost(); err != nil {
			d.log.Warn("a table was changed by somebody else; making it again", "table", t.Name, "found", err)
			d.count.repaired("table")
			broken = true
		}
	}
	if d.names != nil && d.names.Check() {
		d.log.Warn("a table was changed by somebody else; making it again", "table", names.TableName)
		d.count.repaired("table")
		broken = true
	}
	if !broken && !machine && !elements {
		return
	}
	before := len(d.problems)
	if err := d.reconcile(ctx); err != nil && before == 0 {
		d.log.Error("keeping the data plane as it should be", "error", err)
	}
}

// generation is that of nftables, with the number of transactions that were ours until then.
func (d *Driver) generation() (now, ours uint32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now, ours, err = d.namesGeneration(); err != nil {
		return 0, 0, err
	}
	for _, t := range d.tables {
		ours += t.Commits
	}
	return now, ours + d.tunnelTable.Commits + d.arpTable.Commits + d.limits.Commits, err
}

// namesGeneration reads the number, and how many of the changes were those of names, which are
// written while others look.
func (d *Driver) namesGeneration() (now, ours uint32, err error) {
	if d.names == nil {
		now, err = table.Generation()
		return now, 0, err
	}
	return d.names.Generation(table.Generation)
}
