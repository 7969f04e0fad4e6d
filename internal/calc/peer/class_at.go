// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"net/netip"

	"github.com/weir-net/weir/internal/calc/port"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// ClassesAt returns what finds the class of one address among the atoms, and those of the ports
// that rules call by a name; nil is class 0. It is made from the objects, with nothing that is
// kept, and counts as long as no atom comes.
func (x *Atoms) ClassesAt(named map[port.Name]bool) func(netip.Addr) *Class {
	pods := NewPodIndex(x.c)
	for n := range named {
		x.Ports(n, pods)
	}
	k := NewClasses(table.Digest64[nodestate.Class])
	for _, of := range x.byText {
		for p := range of.Each() {
			k.partition.add(p, p.CIDRs, p.Except)
		}
	}
	return func(a netip.Addr) *Class {
		if of := k.classify(pods, x, a); of != nil {
			return k.of(of)
		}
		return k.of(k.partition.at(netip.PrefixFrom(a, a.BitLen())))
	}
}
