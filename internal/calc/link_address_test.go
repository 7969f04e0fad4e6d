// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// TestLinkAddressOfClouds: with another CNI plugin nothing is reported of nodes for which their
// network answers with another link address than they have, and that one does not count. What a
// node publishes of another one is reported as anywhere.
func TestLinkAddressOfClouds(t *testing.T) {
	for _, chained := range []bool{false, true} {
		for _, others := range []bool{false, true} {
			c := evil()
			c.Settings.Chained = chained
			n := *c.Nodes["far"]
			n.LinkAddress = [6]byte{6, 0, 0, 0, 0, 7}
			n.Addrs = append(slices.Clone(n.Addrs), addr("172.31.1.9"))
			if others {
				c.Local.Neighbours[addr("172.31.1.1")] = n.LinkAddress
			} else {
				c.Local.Neighbours[addr("172.31.1.9")] = [6]byte{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}
			}
			c.Nodes["far"] = &n
			k := New()
			s, _ := k.Update(c, model.AllDirty())
			for a, v := range s.Addrs {
				if v.Owner.Name == "far" && v.MAC == n.LinkAddress {
					t.Errorf("chained %v: %s is reached at the link address that the network does not have", chained, a)
				}
			}
			reported := slices.ContainsFunc(k.Refused(), func(r cluster.Refusal) bool { return r.Field == "status.linkAddress" && r.Node == "far" })
			if want := !chained || others; reported != want {
				t.Errorf("chained %v, the address is another's %v: reported %v: %+v", chained, others, reported, k.Refused())
			}
		}
	}
}
