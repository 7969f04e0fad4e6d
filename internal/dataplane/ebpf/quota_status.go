// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
)

// Held is a pod that is held to its share of the table of connections.
type Held = flowtable.Held

// Held reads which pods are held, by their addresses. They are few: each has more than an eighth of
// a table.
func (d *Driver) Held() ([]Held, error) {
	type source struct {
		s          *flowtable.Quotas
		each, most uint32
	}
	var sources []source
	d.mu.Lock()
	for i, l := range d.both() {
		s, err := flowtable.NewQuotas(l.Maps["weir_shares"], 0, 0) // the family may be unloaded meanwhile
		if err != nil {
			d.mu.Unlock()
			return nil, err
		}
		defer s.Close()
		each, most := d.tables.Families()[i].ShareLimits()
		sources = append(sources, source{s, each, most})
	}
	d.mu.Unlock()
	var out []Held
	for _, from := range sources {
		held, err := from.s.Held(from.each, from.most)
		if err != nil {
			return nil, fmt.Errorf("reading shares: %w", err)
		}
		out = append(out, held...)
	}
	slices.SortFunc(out, func(a, b Held) int { return a.Addr.Compare(b.Addr) })
	return out, nil
}
