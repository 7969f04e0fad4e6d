// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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

var buildTags = regexp.MustCompile(`(?m)^GO_BUILD :=.* -tags (\S+)`)

// TestNoMethodsByName: the linker leaves out the methods that nobody calls, unless the program may
// call them by any name, as templates of html/template do. That is some 20 MB of each of these.
func TestNoMethodsByName(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	tags := buildTags.FindStringSubmatch(string(raw))
	if tags == nil {
		t.Fatal("the tags of GO_BUILD are not in the Makefile")
	}
	for _, program := range []string{"weir-agent", "weir-fanout", "weir-controller"} {
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags[1], "./cmd/"+program)
		list.Dir, list.Stderr = root, os.Stderr
		out, err := list.Output()
		if err != nil {
			t.Fatal(err)
		}
		deps := strings.Fields(string(out))
		if len(deps) < 100 {
			t.Errorf("%s: go list found only %d packages", program, len(deps))
		}
		for _, p := range deps {
			if p == "html/template" {
				t.Errorf("%s needs %s: go list -deps says by what", program, p)
			}
		}
	}
}
