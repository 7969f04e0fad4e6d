// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
)

// A table of the node that tenants fill is divided among their namespaces. The result depends on
// what is asked for alone, never on what came first to this agent, so a restart decides the same:
//
//   - One half of the table is reserved: each namespace has a part of it, shareOwners of them fit.
//     Who asks for no more is never refused, whatever others ask for.
//   - With the other half a namespace may have up to its share, one in shareParts of the table, in
//     all; the older claim comes first. What is granted so is never taken back for a younger claim.
//   - What is left then is lent, to the namespace that has least first: the largest consumer is the
//     first to be refused. What is lent goes back when others claim what is theirs.
const (
	shareOwners = 128 // namespaces whose reserved parts make up half of a table
	shareParts  = 8   // how many whole shares make up a table
)

// claim asks for places in a table, all of them or none.
type claim struct {
	owner   string // the namespace; empty: those who write cluster-wide objects
	created int64  // seconds: the older claim is kept
	name    string // decides between equal ages
	size    int
}

func compareClaimAge(a, b *claim) int {
	return cmp.Or(cmp.Compare(a.created, b.created), strings.Compare(a.name, b.name), strings.Compare(a.owner, b.owner))
}

// reserved is how much of a table each of some owners has in any case.
func reserved(total, owners int) int { return total / 2 / max(shareOwners, owners) }

// outcome is how a claim was decided.
type outcome uint8

const (
	refused outcome = iota
	lent            // until somebody claims what is theirs
	kept            // whatever younger claims there will be
)

// grant decides which claims get their places in a table of total.
func grant(total int, claims []claim) (granted []outcome) {
	granted = make([]outcome, len(claims))
	order := make([]int, len(claims))
	held := map[string]int{}
	for i := range claims {
		order[i], held[claims[i].owner] = i, 0
	}
	slices.SortFunc(order, func(a, b int) int { return compareClaimAge(&claims[a], &claims[b]) })
	own, common := reserved(total, len(held)), total-total/2
	for _, i := range order {
		c := &claims[i]
		most := total / shareParts
		if c.owner == "" {
			most *= 2
		}
		beyond := max(0, c.size-max(0, own-held[c.owner]))
		if held[c.owner]+c.size <= max(own, most) && beyond <= common {
			granted[i] = kept
			held[c.owner] += c.size
			common -= beyond
		}
	}
	lend(total, claims, order, held, granted)
	return granted
}

// lend grants what is left, to the owner with the least first.
func lend(total int, claims []claim, order []int, held map[string]int, granted []outcome) {
	left := total
	for _, n := range held {
		left -= n
	}
	waiting := map[string]*borrower{}
	var all borrowers
	for _, i := range order {
		if c := &claims[i]; granted[i] == refused {
			b := waiting[c.owner]
			if b == nil {
				b = &borrower{owner: c.owner, held: held[c.owner]}
				waiting[c.owner], all = b, append(all, b)
			}
			b.claims = append(b.claims, i)
		}
	}
	heap.Init(&all)
	for len(all) > 0 {
		b := all[0]
		i := b.claims[0]
		if b.claims = b.claims[1:]; claims[i].size <= left {
			granted[i] = lent
			b.held += claims[i].size
			left -= claims[i].size
		}
		if len(b.claims) == 0 {
			heap.Pop(&all)
		} else {
			heap.Fix(&all, 0)
		}
	}
}

// borrower is an owner with claims that are not granted yet, the oldest first.
type borrower struct {
	owner  string
	held   int
	claims []int
}

// borrowers is a heap: the one that has least is its root.
type borrowers []*borrower

func (b borrowers) Len() int { return len(b) }
func (b borrowers) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(b[i].held, b[j].held), strings.Compare(b[i].owner, b[j].owner)) < 0
}
func (b borrowers) Swap(i, j int) { b[i], b[j] = b[j], b[i] }
func (b *borrowers) Push(x any)   { *b = append(*b, x.(*borrower)) }
func (b *borrowers) Pop() any {
	last := (*b)[len(*b)-1]
	*b = (*b)[:len(*b)-1]
	return last
}
