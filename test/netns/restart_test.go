// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// nftElements are what nft lists between the braces of a set's elements.
var nftElements = regexp.MustCompile(`(?s)\belements = \{(.*?)\}`)

// startAgain starts the driver of a node whose last one was killed. The first apply writes nothing
// but the neighbours that the kernel has found, or lost, since the last driver looked: its table of
// neighbours changes with traffic, also while no driver is there, and sets of nftables follow it.
func (n *node) startAgain(t *testing.T) {
	t.Helper()
	before := n.knownNeighbours(t)
	n.driver.start()
	n.apply()
	now := n.knownNeighbours(t)
	changed := len(missing(before, now)) + len(missing(now, before))
	if w := n.driver.writes(); w != uint64(changed) {
		t.Errorf("%s: the first apply after a restart wrote %d map entries, want %d: neighbours were %v, are %v", n.name, w, changed, before, now)
	}
}

// knownNeighbours are the elements of the sets of neighbours of both families; none on a node of
// the eBPF driver.
func (n *node) knownNeighbours(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, table := range []string{"ip weir", "ip6 weir"} {
		list := run(t, "ip netns exec %s nft list set %s neighbours 2>&1 || true", n.netns, table)
		if m := nftElements.FindStringSubmatch(list); m != nil {
			out = append(out, words(m[1])...)
		}
	}
	return out
}

// words are those of what nft lists, sorted: what was made again is listed in another order.
func words(list string) []string {
	w := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(" \t\n,", r) })
	slices.Sort(w)
	return w
}
