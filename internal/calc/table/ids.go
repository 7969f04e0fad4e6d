// SPDX-License-Identifier: Apache-2.0

package table

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
)

// Ids gives texts numbers that are made from the texts: the start of their SHA-256. Two texts with
// one digest are distinguished by their order: the smaller keeps it, the larger is hashed again
// with a salt. The numbers depend on the set of texts only, not on how it came about. 0 is never
// given.
type Ids[T ~uint32 | ~uint64] struct {
	Digest func(text string) T
	ByText map[string]T
	owners map[T]string // of unsalted digests
	losers []string     // texts whose digest is another's, sorted
}

func NewIDs[T ~uint32 | ~uint64](digest func(string) T) *Ids[T] {
	return &Ids[T]{Digest: digest, ByText: map[string]T{}, owners: map[T]string{}}
}

// assign gives each of the texts its number.
func assign[T ~uint32 | ~uint64](digest func(string) T, texts []string) map[string]T {
	g := NewIDs(digest)
	g.Update(nil, texts)
	return g.ByText
}

// Update takes texts out and puts texts in, and returns the others whose numbers changed thereby.
func (g *Ids[T]) Update(remove, add []string) (changed []string) {
	for _, t := range remove {
		changed = g.remove(t, changed)
	}
	for _, t := range add {
		changed = g.add(t, changed)
	}
	if len(g.losers) > 0 {
		changed = g.salt(changed)
	}
	return changed
}

func (g *Ids[T]) add(t string, changed []string) []string {
	if _, ok := g.ByText[t]; ok {
		return changed
	}
	d := g.Digest(t)
	owner, taken := g.owners[d]
	switch {
	case d == 0 || taken && owner < t:
		g.lose(t)
		return changed
	case taken:
		g.lose(owner)
		changed = append(changed, owner)
	}
	g.owners[d], g.ByText[t] = t, d
	return changed
}

func (g *Ids[T]) lose(t string) {
	i, _ := slices.BinarySearch(g.losers, t)
	g.losers = slices.Insert(g.losers, i, t)
	g.ByText[t] = 0
}

func (g *Ids[T]) remove(t string, changed []string) []string {
	if _, ok := g.ByText[t]; !ok {
		return changed
	}
	delete(g.ByText, t)
	d := g.Digest(t)
	if g.owners[d] != t {
		if i, ok := slices.BinarySearch(g.losers, t); ok {
			g.losers = slices.Delete(g.losers, i, i+1)
		}
		return changed
	}
	delete(g.owners, d)
	heir := slices.IndexFunc(g.losers, func(l string) bool { return g.Digest(l) == d })
	if heir >= 0 {
		l := g.losers[heir]
		g.losers = slices.Delete(g.losers, heir, heir+1)
		g.owners[d], g.ByText[l] = l, d
		changed = append(changed, l)
	}
	return changed
}

// salt numbers the losers anew, in their order.
func (g *Ids[T]) salt(changed []string) []string {
	given := map[T]bool{}
	for _, t := range g.losers {
		var d T
		for n := 1; ; n++ {
			d = g.Digest(t + "\x00" + strconv.Itoa(n))
			if _, taken := g.owners[d]; d != 0 && !taken && !given[d] {
				break
			}
		}
		given[d] = true
		if g.ByText[t] != d {
			g.ByText[t] = d
			changed = append(changed, t)
		}
	}
	return changed
}

func Digest64[T ~uint64](text string) T {
	sum := sha256.Sum256([]byte(text))
	return T(binary.BigEndian.Uint64(sum[:8]))
}

// The numbers of rules of services and of policies are apart by their top bit, so that the ones do
// not depend on the others.
const PolicyRuleBit = 1 << 31

func DigestServiceRule[T ~uint32](text string) T {
	sum := sha256.Sum256([]byte(text))
	return T(binary.BigEndian.Uint32(sum[:4]) &^ PolicyRuleBit)
}

func DigestPolicyRule[T ~uint32](text string) T {
	sum := sha256.Sum256([]byte(text))
	return T(binary.BigEndian.Uint32(sum[:4]) | PolicyRuleBit)
}
