// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/weir-net/weir/internal/dataplane/nft/marks"
)

// unknownNumber is the class of peers for whose class no number was left.
const unknownNumber = 0xffff

// smallNumbers gives identifiers the numbers 1 to 65534. An identifier keeps its number while it is
// known.
type smallNumbers struct {
	byID  map[uint64]uint16
	taken map[uint16]bool
	full  bool // some have none
}

func newSmallNumbers() *smallNumbers {
	return &smallNumbers{byID: map[uint64]uint16{}, taken: map[uint16]bool{}}
}

func (n *smallNumbers) of(id uint64) (uint16, bool) {
	num, ok := n.byID[id]
	return num, ok
}

// assign gives numbers to those that are known now, and takes those of others.
func (n *smallNumbers) assign(known map[uint64]bool) {
	for id, num := range n.byID {
		if !known[id] {
			delete(n.byID, id)
			delete(n.taken, num)
		}
	}
	var fresh []uint64
	for id := range known {
		if _, ok := n.byID[id]; !ok {
			fresh = append(fresh, id)
		}
	}
	slices.Sort(fresh)
	n.full = false
	for _, id := range fresh {
		if len(n.taken) == unknownNumber-1 {
			n.full = true
			return
		}
		num := uint16(id%(unknownNumber-1)) + 1
		for n.taken[num] {
			num = num%(unknownNumber-1) + 1
		}
		n.byID[id], n.taken[num] = num, true
	}
}

// epochs gives policies the numbers by which flows remember under which one they were evaluated. It
// is made from what the policy says: under the same policy a flow would be evaluated the same. Of
// the last halfOfEpochs policies since the start no two share one. Of those before the start
// nothing is known but the number: a policy that is the first after it has that of another by a
// chance of 1 in 16,384.
type epochs struct {
	newer, older map[uint16]uint64 // sums; the newer are of policies that were in force since the older were full
	current      uint16            // in force; 0 = none yet
}

// halfOfEpochs bounds either half: one number is always free, besides 0 and AgentEpoch.
const halfOfEpochs = 0x3ffe

func newEpochs() epochs { return epochs{newer: map[uint16]uint64{}} }

// of returns the number of a policy, never 0: a flow with 0 was not evaluated.
func (e *epochs) of(sum uint64) uint16 {
	n := uint16(sum>>48^sum>>32^sum>>16^sum)&marks.EpochMask | 1
	for !e.free(n, sum) {
		n++
	}
	if _, ok := e.newer[n]; !ok && len(e.newer) == halfOfEpochs {
		e.older, e.newer = e.newer, map[uint16]uint64{}
	}
	delete(e.older, n)
	e.newer[n], e.current = sum, n
	return n
}

// free reports whether a number may be that of a policy.
func (e *epochs) free(n uint16, sum uint64) bool {
	was, ok := e.newer[n]
	if !ok {
		was, ok = e.older[n]
	}
	return n != 0 && n&marks.EpochMask == n && n != marks.AgentEpoch&marks.EpochMask && (!ok || was == sum)
}
