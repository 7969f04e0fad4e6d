// SPDX-License-Identifier: Apache-2.0

package table

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// narrow is a digest with few values, 0 among them, so that most texts collide.
func narrow(text string) uint32 {
	if len(text) > 2 { // salted: leave the narrow range by and by
		return DigestServiceRule[uint32](text) % 61
	}
	return DigestServiceRule[uint32](text) % 7
}

func TestNumbersDependOnTheSetOfTextsOnly(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	g := NewIDs(narrow)
	have := map[string]bool{}
	for step := range 2000 {
		var add, remove []string
		for range r.IntN(3) {
			text := string([]byte{byte('a' + r.IntN(5)), byte('a' + r.IntN(4))})
			if have[text] {
				remove = append(remove, text)
				delete(have, text)
				continue
			}
			if !slices.Contains(remove, text) || r.IntN(2) == 0 { // out and in again is fine too
				add = append(add, text)
				have[text] = true
			}
		}
		// A text that is taken out after it was put in: update does the removals first.
		add = slices.DeleteFunc(add, func(x string) bool { return !have[x] })
		before := maps.Clone(g.ByText)
		changed := g.Update(remove, add)

		texts := slices.Collect(maps.Keys(have))
		r.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
		if want := assign(narrow, texts); !maps.Equal(g.ByText, want) {
			t.Fatalf("step %d: numbers %v, by all at once %v", step, g.ByText, want)
		}
		seen := map[uint32]string{}
		for text, id := range g.ByText {
			if other, twice := seen[id]; twice || id == 0 {
				t.Fatalf("step %d: %q has number %d, as has %q", step, text, id, other)
			}
			seen[id] = text
			if old, was := before[text]; was && old != id && !slices.Contains(changed, text) && !slices.Contains(add, text) {
				t.Fatalf("step %d: %q went from %d to %d unsaid", step, text, old, id)
			}
		}
	}
}

func TestSmallerTextKeepsItsDigest(t *testing.T) {
	t.Parallel()
	same := func(text string) uint32 { // Equal for all unsalted ones
		if len(text) == 1 {
			return 5
		}
		return DigestServiceRule[uint32](text)
	}
	for _, order := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "a", "c"}} {
		got := assign(same, order)
		if got["a"] != 5 || got["b"] != same("b\x001") || got["c"] != same("c\x001") {
			t.Fatalf("order %v: %v", order, got)
		}
	}
}
