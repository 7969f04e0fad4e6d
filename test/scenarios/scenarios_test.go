// SPDX-License-Identifier: Apache-2.0

// Package scenarios_test plays the scenario files of this folder on everything that carries
// packets.
package scenarios_test

import (
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/weir-net/weir/test/scenarios/scenario"
)

var dir = os.DirFS(".")

// files are the names of all scenarios.
func files(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(dir, "*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	return names
}

func read(t *testing.T, name string) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Read(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSim plays every scenario on calc and the oracle.
func TestSim(t *testing.T) {
	for _, name := range files(t) {
		t.Run(strings.TrimSuffix(name, ".txtar"), func(t *testing.T) {
			t.Parallel()
			s := read(t, name)
			for seed := range uint64(8) { // other choices of backends and ports
				if err := s.Play(scenario.NewSim(seed)); err != nil {
					t.Fatalf("seed %d: %s: %v", seed, name, err)
				}
			}
		})
	}
}
