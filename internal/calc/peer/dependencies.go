// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// dependencies are what policy depends on in some clusters only.
type dependencies struct {
	nodes    bool                // nodes' labels and addresses
	services map[model.Name]bool // the endpoints of these Services
	slices   map[model.Name]bool // which are in these slices now
}

// affected reports whether a change concerns them.
func (d *dependencies) affected(c *cluster.View, dirty *model.Dirty) bool {
	if d.nodes && dirty.Has(model.KindNodes) {
		return true
	}
	if len(d.services) == 0 {
		return false
	}
	if dirty.Has(model.KindSlices) {
		return true
	}
	for name := range dirty.Slices {
		if sl := c.Slices[name]; d.slices[name] || sl != nil && d.services[sl.Service] {
			return true
		}
	}
	return false
}
