// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// licence is what a source is under, by its name (SPDX), empty for other files: eBPF programs under
// what the kernel knows, all else under that of LICENSE.
func licence(path string) string {
	switch filepath.Ext(path) {
	case ".c", ".h":
		if strings.HasPrefix(path, "bpf/") {
			return "GPL-2.0 OR BSD-2-Clause"
		}
		return "Apache-2.0"
	case ".go", ".sh":
		return "Apache-2.0"
	}
	return ""
}

// sources calls f with every file of the repository that has a licence and was written by a person.
func sources(t *testing.T, f func(path string, text []byte)) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	list, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	found := 0
	for path := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		if licence(path) == "" || strings.Contains(path, "testdata/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if !Generated.Match(text) {
			found++
			f(path, text)
		}
	}
	if found < 500 {
		t.Fatalf("git names only %d sources", found)
	}
}

func TestSourcesNameTheirLicence(t *testing.T) {
	t.Parallel()
	sources(t, func(path string, text []byte) {
		head := text[:min(len(text), 200)]
		if want := "SPDX-License-Identifier: " + licence(path); !bytes.Contains(head, []byte(want)) {
			t.Errorf("%s does not begin with %q", path, want)
		}
	})
}

const (
	columns  = 100
	tabWidth = 4
)

// wide reports whether a line is a comment of its own that is too long. What Go takes for code in a
// comment, and what programs read there, is as long as it has to be.
func wide(line string) bool {
	if len([]rune(strings.ReplaceAll(line, "\t", strings.Repeat(" ", tabWidth)))) <= columns {
		return false
	}
	line = strings.TrimSpace(line)
	if text, ok := strings.CutPrefix(line, "//"); ok {
		return strings.HasPrefix(text, " ") && !strings.HasPrefix(text, "  ") && !strings.HasPrefix(text, " +")
	}
	return strings.HasPrefix(line, "/*") || strings.HasPrefix(line, "* ")
}

func TestCommentsAreNotWide(t *testing.T) {
	t.Parallel()
	sources(t, func(path string, text []byte) {
		n := 0
		for line := range strings.SplitSeq(string(text), "\n") {
			if n++; wide(line) {
				t.Errorf("%s:%d: a comment is wider than %d columns", path, n, columns)
			}
		}
	})
}

func TestWide(t *testing.T) {
	t.Parallel()
	word := strings.Repeat("x", columns)
	for line, want := range map[string]bool{
		"// " + word: true, "\t// " + word: true, "/* " + word + " */": true, " * " + word: true,
		"//\t" + word: false, "//go:generate " + word: false, "// +kubebuilder:" + word: false, "a := \"" + word + "\"": false,
		"// " + word[:columns-3]: false, "\t// " + word[:columns-7]: false, "\t// " + word[:columns-6]: true,
	} {
		if wide(line) != want {
			t.Errorf("%q: %v, want %v", line, !want, want)
		}
	}
}
