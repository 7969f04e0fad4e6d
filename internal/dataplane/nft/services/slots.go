// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

// place gives backends slots: those that had one keep it as far as there are no holes, which the
// last ones fill.
func place(before, want []netip.AddrPort) []netip.AddrPort {
	wanted := make(map[netip.AddrPort]bool, len(want))
	for _, b := range want {
		wanted[b] = true
	}
	var slots []netip.AddrPort
	var holes []int
	for i, b := range before {
		if wanted[b] {
			delete(wanted, b)
		} else {
			holes = append(holes, i)
		}
		slots = append(slots, b)
	}
	for _, b := range want {
		if !wanted[b] {
			continue
		}
		if len(holes) > 0 {
			slots[holes[0]], holes = b, holes[1:]
		} else {
			slots = append(slots, b)
		}
	}
	for len(holes) > 0 {
		last := len(slots) - 1
		if holes[len(holes)-1] == last {
			holes = holes[:len(holes)-1]
		} else {
			slots[holes[0]], holes = slots[last], holes[1:]
		}
		slots = slots[:last]
	}
	return slots
}

// backendNumbers gives each slot's backend a number of its own, made from the backend: it does not
// change with the slot. It lies in a new flow's ct mark while that is translated, and must not say
// there that the flow is handed on.
func backendNumbers(slots []netip.AddrPort) []uint32 {
	order := make([]int, len(slots))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return slots[a].Compare(slots[b]) })
	out, taken := make([]uint32, len(slots)), map[uint32]bool{}
	for _, i := range order {
		b, _ := slots[i].MarshalBinary() // fails never
		n := table.Hash32(b) &^ marks.HandedBit
		for taken[n] {
			n = (n + 1) &^ marks.HandedBit
		}
		out[i], taken[n] = n, true
	}
	return out
}
