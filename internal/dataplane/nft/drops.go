// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"maps"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

// tally is what a chain counted: what it says, and what those before it of the same name said,
// which are gone.
type tally struct{ now, before [2]uint64 } // packets, bytes

// Drops reads what policy dropped since the driver's start, or, where the table is older, since
// that was made.
func (d *Driver) Drops() ([]dataplane.Drop, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sums := map[dataplane.Drop][2]uint64{}
	var errs []error
	all := map[table.Family]*familyTable{{Inet: true}: d.overLimits}
	maps.Copy(all, d.tables)
	for f, t := range all {
		for name := range t.InKernel() {
			if _, _, ok := expr.DenyChain(name); !ok {
				continue
			}
			if _, err := t.count(f, name); err != nil {
				errs = append(errs, err)
			}
		}
		for name, c := range t.tallies {
			if why, rule, ok := expr.DenyChain(name); ok {
				k, n := dataplane.Drop{Reason: uint32(why), Rule: rule}, c.sum()
				sums[k] = [2]uint64{sums[k][0] + n[0], sums[k][1] + n[1]}
			}
		}
	}
	var out []dataplane.Drop
	for k, n := range sums {
		if n[0] > 0 {
			k.Packets, k.Bytes = n[0], n[1]
			out = append(out, k)
		}
	}
	return out, errors.Join(errs...)
}

func (c tally) sum() [2]uint64 { return [2]uint64{c.now[0] + c.before[0], c.now[1] + c.before[1]} }

// count reads what a chain has counted.
func (t *familyTable) count(f table.Family, name string) ([2]uint64, error) {
	n, err := table.Counter(f, name)
	if err != nil {
		return n, err
	}
	if t.tallies == nil {
		t.tallies = map[string]tally{}
	}
	c := t.tallies[name]
	if n[0] < c.now[0] { // it was made anew
		c.before = c.sum()
	}
	c.now = n
	t.tallies[name] = c
	return c.sum(), nil
}
