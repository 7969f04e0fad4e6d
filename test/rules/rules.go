// SPDX-License-Identifier: Apache-2.0

// Package rules holds the rules of this repository that no compiler checks, as tests: who may
// import whom, a comment on every package, files of one concept.
package rules

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Generated is the line by which Go knows a file that nobody writes (go help generate).
var Generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// skipped are folders that hold no source of ours.
var skipped = []string{"testdata", "node_modules", "vendor", "out", "bin", "dist"}

// GoFiles calls visit with every Go source below root that a person wrote, those of other modules
// included, by its path from root. It ends with the first error.
func GoFiles(root string, visit func(path string, text []byte) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone while we look, as temporary files are
		case err != nil:
			return err
		case d.IsDir() && path != root && (slices.Contains(skipped, d.Name()) || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_")):
			return filepath.SkipDir
		case d.IsDir() || !d.Type().IsRegular() || filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || Generated.Match(text) {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return visit(rel, text)
	})
}
