// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var requirement = regexp.MustCompile(`(?m)^(?:require )?\s*([a-z0-9.-]+\.[a-z]+/\S+) (v\S+)`)

// TestModulesAgree: Weir and the lab have the same versions of the modules that both need.
// Kubernetes and CoreDNS are built with the lab's (lab/internal/build), so what all four share,
// client-go above all, is compiled once.
func TestModulesAgree(t *testing.T) {
	t.Parallel()
	read := func(path string) map[string]string {
		raw, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, m := range requirement.FindAllStringSubmatch(string(raw), -1) {
			out[m[1]] = m[2]
		}
		return out
	}
	weir, lab := read("go.mod"), read("lab/go.mod")
	shared := 0
	for path, version := range lab {
		other, ok := weir[path]
		if !ok {
			continue
		}
		shared++
		if other != version {
			t.Errorf("%s is %s in go.mod and %s in lab/go.mod: go get the newer one in both", path, other, version)
		}
	}
	if shared < 30 {
		t.Errorf("%d modules are in both go.mod and lab/go.mod: their requirements were not read", shared)
	}
}
