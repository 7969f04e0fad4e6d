// SPDX-License-Identifier: Apache-2.0

package table

import (
	"maps"

	"github.com/weir-net/weir/internal/nodestate"
)

// Table is a table of a state under work: only what differs is written to it.
type Table[K comparable, V any] struct {
	nodestate.Editor[K, V]
	equal func(a, b V) bool
}

func New[K comparable, V any](equal func(a, b V) bool) Table[K, V] {
	return Table[K, V]{equal: equal}
}

func (t *Table[K, V]) Put(k K, v V) {
	if have, ok := t.Get(k); !ok || !t.equal(have, v) {
		t.Set(k, v)
	}
}

// StoreMapFunc is StoreMap for values that equal compares.
func StoreMapFunc[K comparable, V any](have *map[K]V, want map[K]V, equal func(a, b V) bool, keys *nodestate.Keys, t nodestate.Table) {
	if maps.EqualFunc(*have, want, equal) {
		return
	}
	*have = want
	keys.Tables |= t
}

// StoreMap puts a table into a state when it differs from the one there.
func StoreMap[K, V comparable](have *map[K]V, want map[K]V, keys *nodestate.Keys, t nodestate.Table) {
	if nodestate.SameMap(*have, want) || maps.Equal(*have, want) {
		return
	}
	*have = want
	keys.Tables |= t
}

// Store puts a table into a state when something was written to it. What was written may be
// what was there before all the same: numbers of rules that one source gives back and another
// takes, for one.
func Store[K comparable, V any](from *Table[K, V], have *nodestate.Map[K, V], keys *nodestate.Keys, t nodestate.Table) {
	if !from.Changed() {
		return
	}
	if now := from.Map(); !nodestate.EqualMapsFunc(*have, now, from.equal) {
		*have = now
		keys.Tables |= t
	}
}

// StoreChanges changes a table of a state to the contents of want, and returns it: what is equal
// stays shared with the states before.
func StoreChanges[K, V comparable](have *nodestate.Map[K, V], want nodestate.Map[K, V], keys *nodestate.Keys, t nodestate.Table) nodestate.Map[K, V] {
	if have.Len() == 0 && want.Len() > 0 {
		*have = want
		keys.Tables |= t
		return want
	}
	e := have.Edit()
	for k, c := range nodestate.Changes(*have, want, func(a, b V) bool { return a == b }) {
		if c.Is {
			e.Set(k, c.After)
		} else {
			e.Delete(k)
		}
	}
	if e.Changed() {
		*have = e.Map()
		keys.Tables |= t
	}
	return *have
}
