// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// The pods of a pool that was deleted under them are reached as before: the pool stays until its
// last block is gone.
func TestHostilePoolDeletedUnderPods(t *testing.T) {
	hostile.Record(t, "a pool is deleted under its pods, and they are cut off from other nodes", hostile.Operator, hostile.ControlPlane, hostile.Both)
	c := evil()
	k := New()
	was, _ := k.Update(c, model.AllDirty())
	for name, p := range c.Pools {
		gone := *p
		gone.Deleted = 300 // after the blocks
		c.Pools[name] = &gone
	}
	is, _ := k.Update(c, model.Dirty{Kinds: model.KindPools})
	for _, a := range ours {
		if x, y := see(was, a), see(is, a); x != y {
			t.Errorf("%s: before %s, after %s", a, x, y)
		}
	}
	if len(k.Refused()) > 0 {
		t.Errorf("refused: %+v", k.Refused())
	}
}

// A node takes nothing of a pool that is being deleted, so it cannot keep it for ever either.
func TestHostileBlockOfDeletedPool(t *testing.T) {
	hostile.Record(t, "a node claims a block of a pool that was deleted", hostile.Node, hostile.ControlPlane, hostile.Both)
	c := evil()
	for _, p := range c.Pools {
		p.Deleted = 300
	}
	unmoved(t, c, func(c *model.Cluster) { // at 900
		block(c, "10.244.64.0/26", "far")
		block(c, "fd00:10:244:64::/122", "far")
	})
	s, _ := New().Update(c, model.AllDirty())
	for _, cidr := range []string{"10.244.64.0/26", "fd00:10:244:64::/122"} {
		if r, is := s.Routes[prefix(cidr)]; is {
			t.Errorf("%s is routed: %+v", cidr, r)
		}
	}
}
