// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// inTree is what a path from the root begins with, and whole what names nothing else: no
	// placeholder, no words.
	inTree = regexp.MustCompile(`^(api|bpf|cmd|hack|internal|lab|test)/`)
	whole  = regexp.MustCompile(`^[\w./*-]+$`)
)

// TestFilesExist: files and folders of the repository that documents name are there. The log speaks
// of earlier versions.
func TestFilesExist(t *testing.T) {
	t.Parallel()
	var sources []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".go" {
			sources = append(sources, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for path, lines := range documents(t) {
		if strings.HasPrefix(path, "docs/results/log/") {
			continue
		}
		for _, l := range lines {
			if l.fence != "" {
				continue
			}
			for _, m := range span.FindAllStringSubmatch(l.text, -1) {
				name := strings.TrimSuffix(m[1], "/")
				switch {
				case !whole.MatchString(name):
				case inTree.MatchString(name):
					found++
					if there, err := filepath.Glob(filepath.Join(root, name)); err != nil || len(there) == 0 {
						t.Errorf("%s:%d: there is no %s", path, l.number, name)
					}
				case strings.HasSuffix(name, ".go"):
					found++
					if !anySuffix(sources, "/"+name) {
						t.Errorf("%s:%d: no source is %s", path, l.number, name)
					}
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d files are named: are they still found in the text?", found)
	}
}

func anySuffix(all []string, suffix string) bool {
	for _, s := range all {
		if strings.HasSuffix(s, suffix) {
			return true
		}
	}
	return false
}
