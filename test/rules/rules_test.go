// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mayImport lists, for packages on a seam, the packages of ours that they may import. A package
// that is not listed is free, but see never.
var mayImport = map[string][]string{
	"internal/model":                   {},
	"internal/nodestate":               {"internal/model"},
	"internal/calc":                    {"internal/model", "internal/nodestate", "internal/selector"},
	"internal/nodeview":                {"internal/calc", "internal/model", "internal/selector"},
	"internal/fanout/wire":             {"internal/model"},
	"internal/fanout/digest":           {"internal/model"},
	"internal/fanout/names":            {"internal/model"},
	"internal/packet":                  {"internal/model"},
	"internal/jhash":                   {},
	"internal/maglev":                  {"internal/jhash"},
	"internal/sim":                     {"internal/maglev", "internal/model", "internal/nodestate", "internal/packet", "internal/reason"},
	"internal/reason":                  {},
	"internal/noeffect":                {},
	"internal/policy/defaults":         {"internal/model"},
	"internal/selector":                {},
	"internal/delta":                   {},
	"internal/kernel":                  {},
	"internal/sleep":                   {},
	"internal/conntrack":               {"internal/kernel"},
	"internal/dataplane":               {"internal/model", "internal/nodestate"},
	"internal/dataplane/handover":      {"internal/dataplane"},
	"internal/dataplane/shape":         {"internal/dataplane", "internal/kernel", "internal/model", "internal/nodestate"},
	"internal/dataplane/ebpf":          {"internal/model", "internal/nodestate", "internal/dataplane", "internal/kernel", "internal/conntrack", "internal/reason", "internal/sleep", "internal/dataplane/shape", "bpf"},
	"internal/dataplane/ebpf/object":   {"internal/dataplane/ebpf/abi", "internal/dataplane/ebpf/attach", "internal/dataplane/ebpf/bpffs", "internal/dataplane/ebpf/flowtable", "internal/kernel"},
	"internal/dataplane/ebpf/maptable": {"internal/dataplane", "internal/dataplane/ebpf/object", "internal/delta"},
	"internal/dataplane/ebpf/services": {"internal/dataplane", "internal/dataplane/ebpf/abi", "internal/dataplane/ebpf/maptable", "internal/kernel", "internal/maglev", "internal/model", "internal/nodestate"},
	"internal/dataplane/ebpf/tables":   {"internal/conntrack", "internal/dataplane", "internal/delta", "internal/model", "internal/nodestate", "internal/dataplane/ebpf/abi", "internal/dataplane/ebpf/bpffs", "internal/dataplane/ebpf/flowhandover", "internal/dataplane/ebpf/flowtable", "internal/dataplane/ebpf/maptable", "internal/dataplane/ebpf/object", "internal/dataplane/ebpf/services"},
	"internal/dataplane/ebpf/dryrun":   {"internal/model", "internal/dataplane/ebpf/abi", "internal/dataplane/ebpf/maptable", "internal/dataplane/ebpf/object"},
	"internal/dataplane/ebpf/offline":  {"internal/dataplane", "internal/kernel", "internal/nodestate", "internal/dataplane/ebpf/abi", "internal/dataplane/ebpf/counters", "internal/dataplane/ebpf/dryrun", "internal/dataplane/ebpf/eventring", "internal/dataplane/ebpf/maptable", "internal/dataplane/ebpf/object", "internal/dataplane/ebpf/tables"},
	"internal/dataplane/ebpf/counters": {"internal/dataplane", "internal/nodestate", "internal/dataplane/ebpf/abi"},
	"internal/dataplane/nft":           {"internal/model", "internal/nodestate", "internal/dataplane", "internal/delta", "internal/kernel", "internal/conntrack", "internal/jhash", "internal/maglev", "internal/reason", "internal/nfteval", "internal/dataplane/shape"},
	"internal/nfteval":                 {"internal/jhash", "internal/kernel"},
	"internal/why/wire":                {"internal/calc", "internal/model", "internal/nodestate"},
	"internal/watch":                   {"api", "internal/model", "internal/noeffect", "internal/policy/defaults", "internal/selector"},
	"internal/watch/bgp":               {"api", "internal/model", "internal/selector", "internal/watch/parse"},
	"internal/watch/parse":             {"api", "internal/model", "internal/selector"},
}

// standardOnly are packages that import nothing but the standard library and ours.
var standardOnly = []string{"internal/jhash", "internal/maglev", "internal/model", "internal/nodestate", "internal/calc", "internal/packet", "internal/sim", "internal/delta", "internal/noeffect", "internal/policy/defaults", "internal/reason", "internal/selector", "internal/nodeview", "internal/sleep", "internal/fanout/digest"}

// never lists what packages may not reach, by however many steps of our own packages.
var never = map[string][]string{
	"internal/dataplane":          {"internal/calc", "internal/watch", "k8s.io", "sigs.k8s.io", "github.com/projectcalico"},
	"internal/dataplane/handover": {"internal/dataplane/ebpf", "internal/dataplane/nft", "internal/agent"},
	"internal/dataplane/ebpf":     {"internal/calc", "internal/watch", "k8s.io", "sigs.k8s.io", "github.com/projectcalico", "internal/dataplane/nft"},
	"internal/dataplane/nft":      {"internal/calc", "internal/watch", "k8s.io", "sigs.k8s.io/yaml", "sigs.k8s.io/controller-runtime", "github.com/projectcalico", "internal/dataplane/ebpf"},
	"internal/why":                {"internal/agent", "internal/watch", "k8s.io"},
	"cmd/weir-agent":              {"internal/dataplane/ebpf/offline"},           // for tests and benchmarks
	"cmd/weir-cni":                {"internal/calc", "internal/watch", "k8s.io"}, // starts in milliseconds
}

// within reports whether an import path is pkg or below it.
func within(path, pkg string) bool { return path == pkg || strings.HasPrefix(path, pkg+"/") }

// belongs reports whether a package falls under the rule of another: itself, or a folder below it
// that has no rule of its own.
func belongs(path string) (rule string, ok bool) {
	for at := path; at != "."; at = filepath.Dir(at) {
		if _, ok := mayImport[at]; ok {
			return at, true
		}
	}
	return "", false
}

func TestImportDirections(t *testing.T) {
	t.Parallel()
	all := packages(t)
	for path, p := range all {
		rule, ok := belongs(path)
		if !ok {
			continue
		}
		for _, imported := range p.Imports {
			if _, ours := all[imported]; !ours || within(imported, rule) {
				continue
			}
			if !slices.ContainsFunc(mayImport[rule], func(allowed string) bool {
				under, _ := belongs(imported)
				return imported == allowed || within(imported, allowed) && (under == "" || under == allowed)
			}) {
				t.Errorf("%s imports %s; it may import only %v", path, imported, mayImport[rule])
			}
		}
	}
}

func TestSeamsImportTheStandardLibraryOnly(t *testing.T) {
	t.Parallel()
	all := packages(t)
	for path, p := range all {
		rule, _ := belongs(path)
		if !slices.Contains(standardOnly, rule) {
			continue
		}
		for _, imported := range p.Imports {
			if first, _, _ := strings.Cut(imported, "/"); strings.Contains(first, ".") && all[imported] == nil {
				t.Errorf("%s imports %s, which is neither ours nor of the standard library", path, imported)
			}
		}
	}
}

func TestWhatIsNeverReached(t *testing.T) {
	t.Parallel()
	all := packages(t)
	for from, forbidden := range never {
		if all[from] == nil {
			continue // not there (yet)
		}
		for reached, by := range reach(all, from) {
			for _, f := range forbidden {
				if within(reached, f) {
					t.Errorf("%s reaches %s by %s", from, reached, strings.Join(by, " → "))
				}
			}
		}
	}
}

// reach returns what a package reaches through packages of ours, with the path.
func reach(all map[string]*pkg, from string) map[string][]string {
	chains := map[string][]string{}
	var walk func(path string, chain []string)
	walk = func(path string, chain []string) {
		p := all[path]
		if p == nil {
			return
		}
		for _, imported := range p.Imports {
			if _, seen := chains[imported]; !seen {
				chains[imported] = append(slices.Clone(chain), imported)
				walk(imported, chains[imported])
			}
		}
	}
	walk(from, []string{from})
	return chains
}

// TestTheMiddleIsPure holds that the pure packages cannot look at a clock, a file, a socket or
// chance.
func TestTheMiddleIsPure(t *testing.T) {
	t.Parallel()
	all := packages(t)
	pure := []string{"internal/calc", "internal/nodestate", "internal/nodeview"}
	for path := range all {
		if strings.HasPrefix(path, "internal/calc/") {
			pure = append(pure, path)
		}
	}
	for _, path := range pure {
		if all[path] == nil {
			t.Errorf("%s is gone; this rule is about it", path)
			continue
		}
		for _, imported := range all[path].Imports {
			if slices.Contains([]string{"os", "net", "time", "syscall", "context", "math/rand", "math/rand/v2", "crypto/rand", "unsafe"}, imported) {
				t.Errorf("%s imports %s and is no longer pure", path, imported)
			}
		}
	}
}

// TestFlagsAreInCommandsOnly holds that only the programs have flags, and the packages named
// command that they are made of.
func TestFlagsAreInCommandsOnly(t *testing.T) {
	t.Parallel()
	for path, p := range packages(t) {
		if !within(path, "internal") && !within(path, "api") || filepath.Base(path) == "command" {
			continue
		}
		for _, imported := range p.Imports {
			if imported == "flag" || imported == "github.com/spf13/pflag" || imported == "github.com/spf13/cobra" {
				t.Errorf("%s imports %s; flags belong to cmd/", path, imported)
			}
		}
	}
}

func TestPackageNamesSayWhatTheyHold(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		for _, bad := range []string{"util", "utils", "common", "manager", "helper", "helpers"} {
			if f.name == bad {
				t.Errorf("%s: package %s says nothing about what it holds", f.path, f.name)
			}
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	t.Parallel()
	commented := map[string]bool{}
	for _, f := range goFiles(t) {
		dir := filepath.Dir(f.path)
		if strings.HasSuffix(f.path, "_test.go") && !f.comment {
			if _, ok := commented[dir]; ok || !strings.HasSuffix(f.name, "_test") {
				continue // the comment of the package counts for its tests
			}
		}
		commented[dir] = commented[dir] || f.comment
	}
	for dir, ok := range commented {
		if !ok {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

// maxLines is far above what a file of one concept needs.
const maxLines = 700

func TestFilesStayReadable(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if f.lines > maxLines {
			t.Errorf("%s has %d lines, more than %d: it holds more than one concept", f.path, f.lines, maxLines)
		}
	}
}
