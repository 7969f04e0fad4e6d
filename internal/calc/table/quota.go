// SPDX-License-Identifier: Apache-2.0

package table

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
//   - With the other half a namespace may have up to its share, one in ShareParts of the table, in
//     all; the older claim comes first. What is granted so is never taken back for a younger claim.
//   - What is left then is lent, to the namespace that has least first: the largest consumer is the
//     first to be refused. What is lent goes back when others claim what is theirs.
const (
	shareOwners = 128 // namespaces whose reserved parts make up half of a table
	ShareParts  = 8   // how many whole shares make up a table
)

// Claim asks for places in a table, all of them or none.
type Claim struct {
	Owner   string // the namespace; empty: those who write cluster-wide objects
	Created int64  // seconds: the older claim is kept
	Name    string // decides between equal ages
	Size    int
}

func compareClaimAge(a, b *Claim) int {
	return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.Name, b.Name), strings.Compare(a.Owner, b.Owner))
}

// Reserved is how much of a table each of some owners has in any case.
func Reserved(total, owners int) int { return total / 2 / max(shareOwners, owners) }

// outcome is how a claim was decided.
type outcome uint8

const (
	Refused outcome = iota
	lent            // until somebody claims what is theirs
	kept            // whatever younger claims there will be
)

// Grant decides which claims get their places in a table of total.
func Grant(total int, claims []Claim) (granted []outcome) {
	granted = make([]outcome, len(claims))
	order := make([]int, len(claims))
	held := map[string]int{}
	for i := range claims {
		order[i], held[claims[i].Owner] = i, 0
	}
	slices.SortFunc(order, func(a, b int) int { return compareClaimAge(&claims[a], &claims[b]) })
	own, common := Reserved(total, len(held)), total-total/2
	for _, i := range order {
		c := &claims[i]
		most := total / ShareParts
		if c.Owner == "" {
			most *= 2
		}
		beyond := max(0, c.Size-max(0, own-held[c.Owner]))
		if held[c.Owner]+c.Size <= max(own, most) && beyond <= common {
			granted[i] = kept
			held[c.Owner] += c.Size
			common -= beyond
		}
	}
	grantRest(total, claims, order, held, granted)
	return granted
}

// grantRest grants what is left, to the owner with the least first.
func grantRest(total int, claims []Claim, order []int, held map[string]int, granted []outcome) {
	left := total
	for _, n := range held {
		left -= n
	}
	waiting := map[string]*borrower{}
	var all borrowers
	for _, i := range order {
		if c := &claims[i]; granted[i] == Refused {
			b := waiting[c.Owner]
			if b == nil {
				b = &borrower{owner: c.Owner, held: held[c.Owner]}
				waiting[c.Owner], all = b, append(all, b)
			}
			b.claims = append(b.claims, i)
		}
	}
	heap.Init(&all)
	for len(all) > 0 {
		b := all[0]
		i := b.claims[0]
		if b.claims = b.claims[1:]; claims[i].Size <= left {
			granted[i] = lent
			b.held += claims[i].Size
			left -= claims[i].Size
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
