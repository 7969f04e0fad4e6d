// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strconv"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

// TestEpochs: of as many policies as the documentation says, one after the other, no two have the
// same number, also when far more than there are numbers came; and one that comes back among them
// keeps its own.
func TestEpochs(t *testing.T) {
	e := &New().epochs
	last := map[uint16]int{}
	assign := func(i int, sum uint64) uint16 {
		n := e.of(sum)
		if before, ok := last[n]; n == 0 || n != e.current || ok && i-before < halfOfEpochs {
			t.Fatalf("policy %d has the number %d, which policy %d had", i, n, before)
		}
		last[n] = i
		return n
	}
	const many = 5 * halfOfEpochs // both halves are filled again
	for i := range many {
		n := assign(i, table.Hash("policy", strconv.Itoa(i)))
		if i%1000 == 0 {
			if again := e.of(table.Hash("policy", strconv.Itoa(i))); again != n {
				t.Fatalf("policy %d has the number %d, then %d", i, n, again)
			}
		}
	}
	for i := range 100 { // that would like the number in force
		n := uint64(e.current)
		assign(many+i, uint64(i+1)<<48|uint64(i+1)<<32|n)
	}
}
