// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// Much of what fails in one combination of data plane, family and settings fails by one of these
// values or by two of them together. So make test plays combinations in which every two values
// occur together, and make soak all of them (WEIR_MATRIX=full).

// kind is one of the things by which a test's combinations differ: it has a value of so many.
type kind struct{ value, of int }

// either is a kind of two values.
func either(b bool) kind {
	if b {
		return kind{1, 2}
	}
	return kind{0, 2}
}

// one is the kind of a value of a list.
func one[V comparable](all []V, v V) kind { return kind{slices.Index(all, v), len(all)} }

// plays reports whether a combination is to be played: kinds are what it has beyond its family and
// the data plane that the names of tests have.
func plays(t *testing.T, fam family, kinds ...kind) bool {
	t.Helper()
	if os.Getenv("WEIR_MATRIX") == "full" {
		return true
	}
	kinds = append([]kind{either(fam == ipv6)}, kinds...)
	name, _, _ := strings.Cut(t.Name(), "/")
	if _, alone := nftSkips(t)[name]; !alone && !strings.Contains(t.Name(), "/mixed-") {
		kinds = append([]kind{either(strings.Contains(t.Name(), "/nft-"))}, kinds...)
	}
	sizes, values := make([]int, len(kinds)), make([]int, len(kinds))
	for i, k := range kinds {
		values[i], sizes[i] = k.value, k.of
	}
	return slices.ContainsFunc(covering(sizes), func(c []int) bool { return slices.Equal(c, values) })
}

// covering returns combinations of values, one of each kind, in which every two values of two kinds
// occur together. It takes the combination that has most of those pairs that are left, until none
// is, and is the same each time.
func covering(sizes []int) (out [][]int) {
	type pair struct{ kind, value, kind2, value2 int }
	left := map[pair]bool{}
	each := func(c []int, do func(pair)) {
		for i := range c {
			for j := range i {
				do(pair{i, c[i], j, c[j]})
			}
		}
	}
	all := combinations(sizes)
	for _, c := range all {
		each(c, func(p pair) { left[p] = true })
	}
	for len(left) > 0 {
		var best []int
		most := 0
		for _, c := range all {
			n := 0
			each(c, func(p pair) {
				if left[p] {
					n++
				}
			})
			if n > most {
				best, most = c, n
			}
		}
		each(best, func(p pair) { delete(left, p) })
		out = append(out, best)
	}
	return out
}

// combinations are all that there are.
func combinations(sizes []int) [][]int {
	out := [][]int{nil}
	for _, n := range sizes {
		var longer [][]int
		for _, c := range out {
			for v := range n {
				longer = append(longer, append(slices.Clone(c), v))
			}
		}
		out = longer
	}
	return out
}

func TestCovering(t *testing.T) {
	for _, c := range []struct {
		sizes []int
		most  int
	}{{[]int{2, 2}, 4}, {[]int{2, 2, 2}, 4}, {[]int{2, 2, 3}, 6}, {[]int{2, 2, 2, 2}, 6}, {[]int{3, 3, 3, 3}, 12}} {
		got := covering(c.sizes)
		if len(got) > c.most {
			t.Errorf("%v: %d combinations, want at most %d: %v", c.sizes, len(got), c.most, got)
		}
		for i := range c.sizes {
			for j := range i {
				for v := range c.sizes[i] {
					for w := range c.sizes[j] {
						if !slices.ContainsFunc(got, func(c []int) bool { return c[i] == v && c[j] == w }) {
							t.Errorf("%v: value %d of kind %d never with value %d of kind %d: %v", c.sizes, v, i, w, j, got)
						}
					}
				}
			}
		}
		if again := covering(c.sizes); !slices.EqualFunc(got, again, slices.Equal) {
			t.Errorf("%v: %v, and again %v", c.sizes, got, again)
		}
	}
}

// TestMatrix: what combinations are left out follows from the names of tests.
func TestMatrix(t *testing.T) {
	t.Setenv("WEIR_MATRIX", "")
	for _, name := range []string{"IPv4", "nft-IPv4", "mixed-IPv4"} {
		t.Run(name, func(t *testing.T) {
			n := 0
			for _, fam := range []family{ipv4, ipv6} {
				for _, mode := range modes {
					if plays(t, fam, either(mode.dsr), either(mode.routed)) {
						n++
					}
				}
			}
			if n < 2 || n > 4 {
				t.Errorf("%d of 8 combinations are played", n)
			}
			t.Setenv("WEIR_MATRIX", "full")
			if !plays(t, ipv4, either(true), either(true)) || !plays(t, ipv6, either(false), either(true)) {
				t.Error("WEIR_MATRIX=full leaves something out")
			}
		})
	}
}

// mode is how one node hands on to another: the backend's node answers clients itself, nodes are
// not on one link.
type mode struct{ dsr, routed bool }

var modes = []mode{{}, {dsr: true}, {routed: true}, {dsr: true, routed: true}}

func (m mode) String() string { return fmt.Sprintf("dsr=%v,tunnel=%v", m.dsr, m.routed) }

// inModes plays a test in each mode.
func inModes(t *testing.T, fam family, play func(*testing.T, mode)) {
	for _, m := range modes {
		if plays(t, fam, either(m.dsr), either(m.routed)) {
			t.Run(m.String(), func(t *testing.T) { play(t, m) })
		}
	}
}
