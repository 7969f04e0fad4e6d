// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// claimants makes the claims of some namespaces, many of them for more than there is.
func claimants(r *rand.Rand, total int) (out []Claim) {
	for i := range 1 + r.IntN(12) {
		most := 1 + r.IntN([]int{total / 300, total / 20, total / 3}[r.IntN(3)])
		for j := range 1 + r.IntN(20) {
			out = append(out, Claim{Owner: fmt.Sprint("ns-", i), Created: int64(r.IntN(50)), Name: fmt.Sprint("set-", j), Size: 1 + r.IntN(most)})
		}
	}
	return out
}

// sums adds up what each asks for and has, and what all have.
func sums(claims []Claim, granted []outcome) (asked, held map[string]int, all int) {
	asked, held = map[string]int{}, map[string]int{}
	for i, c := range claims {
		asked[c.Owner] += c.Size
		if granted[i] != Refused {
			held[c.Owner] += c.Size
			all += c.Size
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
		granted := Grant(total, claims)
		asked, _, all := sums(claims, granted)
		if all > total {
			t.Fatalf("seed %d: %d granted of %d", seed, all, total)
		}
		for i, c := range claims {
			if granted[i] != Refused {
				continue
			}
			times++
			if asked[c.Owner] <= Reserved(total, len(asked)) {
				t.Fatalf("seed %d: %s asks for %d in all, and is refused %d", seed, c.Owner, asked[c.Owner], c.Size)
			}
			if all+c.Size <= total {
				t.Fatalf("seed %d: %s is refused %d while %d of %d are free", seed, c.Owner, c.Size, total-all, total)
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
	var claims []Claim
	for i := range 40 {
		claims = append(claims, Claim{Owner: "large", Created: 1, Name: fmt.Sprintf("%02d", i), Size: 500})
	}
	for i := range 10 {
		claims = append(claims, Claim{Owner: "middle", Created: 2, Name: fmt.Sprintf("%02d", i), Size: 500})
	}
	granted := Grant(20_000, claims)
	if _, held, _ := sums(claims, granted); held["middle"] != 5_000 || held["large"] != 15_000 {
		t.Fatalf("with room for 20,000 held %v", held)
	}
	if i := slices.Index(granted, Refused); i != 30 {
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
		before := Grant(total, claims)
		newcomer := Claim{Owner: fmt.Sprint("ns-", r.IntN(14)), Created: 100, Name: "new", Size: 1 + r.IntN(total/2)}
		at := r.IntN(len(claims) + 1)
		after := slices.Delete(Grant(total, slices.Insert(slices.Clone(claims), at, newcomer)), at, at+1)
		for i, c := range claims {
			if (before[i] == kept) != (after[i] == kept) {
				t.Fatalf("seed %d: %d of %s became %d from %d by a younger claim of %s", seed, c.Size, c.Owner, after[i], before[i], newcomer.Owner)
			}
			if before[i] == lent && after[i] == Refused && c.Owner != newcomer.Owner {
				back++
			}
		}
	}
	if back == 0 {
		t.Fatal("nothing lent was ever taken back: the worlds are too plain")
	}
}
