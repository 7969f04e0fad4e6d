// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// claimants makes the claims of some namespaces, many of them for more than there is.
func claimants(r *rand.Rand, total int) (out []claim) {
	for i := range 1 + r.IntN(12) {
		most := 1 + r.IntN([]int{total / 300, total / 20, total / 3}[r.IntN(3)])
		for j := range 1 + r.IntN(20) {
			out = append(out, claim{owner: fmt.Sprint("ns-", i), created: int64(r.IntN(50)), name: fmt.Sprint("set-", j), size: 1 + r.IntN(most)})
		}
	}
	return out
}

// sums adds up what each asks for and has, and what all have.
func sums(claims []claim, granted []outcome) (asked, held map[string]int, all int) {
	asked, held = map[string]int{}, map[string]int{}
	for i, c := range claims {
		asked[c.owner] += c.size
		if granted[i] != refused {
			held[c.owner] += c.size
			all += c.size
		}
	}
	return asked, held, all
}

// Who asks for no more than is reserved gets it, whatever others ask for; nobody is refused while
// there is room; and the table is never overdrawn.
func TestGrantKeepsWhatIsReserved(t *testing.T) {
	t.Parallel()
	const total = 20_000
	times := 0
	for seed := range uint64(3000) {
		claims := claimants(rand.New(rand.NewPCG(seed, 1)), total)
		granted := grant(total, claims)
		asked, _, all := sums(claims, granted)
		if all > total {
			t.Fatalf("seed %d: %d granted of %d", seed, all, total)
		}
		for i, c := range claims {
			if granted[i] != refused {
				continue
			}
			times++
			if asked[c.owner] <= reserved(total, len(asked)) {
				t.Fatalf("seed %d: %s asks for %d in all, and is refused %d", seed, c.owner, asked[c.owner], c.size)
			}
			if all+c.size <= total {
				t.Fatalf("seed %d: %s is refused %d while %d of %d are free", seed, c.owner, c.size, total-all, total)
			}
		}
	}
	if times < 1000 {
		t.Fatalf("%d claims were refused: the worlds are too plain", times)
	}
}

// What is left when all have what is kept for them goes to who has least: the largest consumer is
// refused first.
func TestGrantRefusesTheLargestConsumerFirst(t *testing.T) {
	t.Parallel()
	var claims []claim
	for i := range 40 {
		claims = append(claims, claim{owner: "large", created: 1, name: fmt.Sprintf("%02d", i), size: 500})
	}
	for i := range 10 {
		claims = append(claims, claim{owner: "middle", created: 2, name: fmt.Sprintf("%02d", i), size: 500})
	}
	granted := grant(20_000, claims)
	if _, held, _ := sums(claims, granted); held["middle"] != 5_000 || held["large"] != 15_000 {
		t.Fatalf("with room for 20,000 held %v", held)
	}
	if i := slices.Index(granted, refused); i != 30 {
		t.Errorf("the claim %d was refused first, which is not the youngest that did not fit", i)
	}
}

// A younger claim takes nothing that is kept for somebody. The order in which claims are written
// down means nothing.
func TestGrantKeepsTheOlderClaim(t *testing.T) {
	t.Parallel()
	const total = 20_000
	back := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		claims := claimants(r, total)
		before := grant(total, claims)
		newcomer := claim{owner: fmt.Sprint("ns-", r.IntN(14)), created: 100, name: "new", size: 1 + r.IntN(total/2)}
		at := r.IntN(len(claims) + 1)
		after := slices.Delete(grant(total, slices.Insert(slices.Clone(claims), at, newcomer)), at, at+1)
		for i, c := range claims {
			if (before[i] == kept) != (after[i] == kept) {
				t.Fatalf("seed %d: %d of %s became %d from %d by a younger claim of %s", seed, c.size, c.owner, after[i], before[i], newcomer.owner)
			}
			if before[i] == lent && after[i] == refused && c.owner != newcomer.owner {
				back++
			}
		}
	}
	if back == 0 {
		t.Fatal("nothing lent was ever taken back: the worlds are too plain")
	}
}
