// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// Evicted says how many flows that are accounted for the kernel took out of the tables of a family,
// to make room, before they ended. Nobody is told of one. So the programs count the flows that
// begin and those that end, by their entries of the original direction, the sweep those that it
// removes and those that are there: what is missing was evicted. Flows come and go while the sweep
// works. So it counts what is missing for sure: of the flows that had begun when the round did
// those that neither ended before it was over nor were found. The others are found by a later
// round.
type Evicted struct {
	counts *ebpf.Map
	tables []*TableGC // in the order in which an entry moves
	begun  uint64     // when the round began
	rounds []int      // of the tables, then; nil = they do not begin together
	failed error      // to count what was removed in this round
	most   atomic.Uint64
	known  atomic.Bool
}

// errNoCounts is of tables whose entries do not say what is counted of them.
var errNoCounts = errors.New("entries of flows have no flags of flow records")

// NewEvicted has the sweep of the tables of a family's flows count for it. counts is weir_counts.
func NewEvicted(counts *ebpf.Map, sweeps []*TableGC) (*Evicted, error) {
	own, err := counts.Clone() // the family may be unloaded meanwhile
	if err != nil {
		return nil, fmt.Errorf("counting evicted flows: %w", err)
	}
	e := &Evicted{counts: own}
	for _, s := range sweeps {
		if s.expired == nil {
			continue
		}
		if s.account < 0 {
			e.Close()
			return nil, errNoCounts
		}
		s.evicted = e
		e.tables = append(e.tables, s)
	}
	return e, nil
}

// Close lets go of the map.
func (e *Evicted) Close() { e.counts.Close() }

// Count returns how many there were since the maps were made; not known before the first round.
func (e *Evicted) Count() (n uint64, known bool) { return e.most.Load(), e.known.Load() }

// Begin begins a round, in which the tables are swept in their order.
func (e *Evicted) Begin() error {
	e.rounds, e.failed = nil, nil
	for _, s := range e.tables {
		if s.Begun {
			return nil // in the middle: the next round counts
		}
	}
	n, err := e.read(abi.CountFlowsBegun)
	if err != nil {
		return err
	}
	e.begun = n
	for _, s := range e.tables {
		e.rounds = append(e.rounds, s.rounds)
	}
	return nil
}

// End ends a round.
func (e *Evicted) End() error {
	if e.failed != nil {
		return e.failed
	}
	var live uint64
	for i, s := range e.tables {
		if e.rounds == nil || s.rounds != e.rounds[i]+1 {
			return nil // not all of it was looked at
		}
		live += uint64(s.lastLive)
	}
	over, err := e.read(abi.CountFlowsOver)
	if err != nil {
		return err
	}
	expired, err := e.read(abi.CountFlowsExpired)
	if err != nil {
		return err
	}
	if seen := over + expired + live; e.begun > seen {
		e.most.Store(max(e.most.Load(), e.begun-seen))
	}
	e.known.Store(true)
	return nil
}

func (e *Evicted) read(which uint32) (n uint64, err error) {
	var cpus []uint64
	if err := e.counts.Lookup(which, &cpus); err != nil {
		return 0, fmt.Errorf("reading map weir_counts: %w", err)
	}
	for _, c := range cpus {
		n += c
	}
	return n, nil
}

// removed counts flows that the sweep took out. They are counted in the map, so that they are known
// after a restart of the agent. What fails does not hold the sweep up: End returns it.
func (e *Evicted) removed(n int) bool {
	if n == 0 {
		return true
	}
	const which = uint32(abi.CountFlowsExpired)
	var cpus []uint64
	if err := e.counts.Lookup(which, &cpus); err != nil {
		e.failed = fmt.Errorf("reading map weir_counts: %w", err)
		return false
	}
	cpus[0] += uint64(n)
	if err := e.counts.Update(which, cpus, ebpf.UpdateExist); err != nil {
		e.failed = fmt.Errorf("writing map weir_counts: %w", err)
		return false
	}
	return true
}

// accounted reports whether an entry stands for a flow that is accounted for and has not ended.
func (s *TableGC) accounted(value []byte) bool {
	return s.evicted != nil && value[s.account]&(abi.AccountBegun|abi.AccountOver) == abi.AccountBegun
}
