// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"slices"
	"strings"
	"testing"
)

// inShort are the tests that -short plays of those that need root: every scenario on the loaded
// programs, some on nftables, some rounds of random packets. What it leaves out are the same
// scenarios in IPv6, attacks, and policies between two writes: make unit plays all.
var inShort = []string{"TestPrograms", "TestProgramsShare", "TestNFT", "TestDifferential", "TestDifferentialIPv6", "TestDifferentialDual"}

const (
	shortRounds = 3 // of random packets, of each family
	shortNFT    = 8 // every so manieth scenario is played on nftables
)

// skipInShort ends a test that -short leaves out, before it loads or makes anything.
func skipInShort(t *testing.T) {
	t.Helper()
	if name, _, _ := strings.Cut(t.Name(), "/"); testing.Short() && !slices.Contains(inShort, name) {
		t.Skip("not with -short")
	}
}
