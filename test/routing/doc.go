// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/bench"
)

// mark is the line of a document after which everything is written by this program.
const mark = "<!-- what follows is written by test/routing -->"

// writeDoc writes the tables of a document anew.
func writeDoc(path string, r *Results) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, _, ok := strings.Cut(string(text), mark)
	if !ok {
		return fmt.Errorf("%s lacks the line %q", path, mark)
	}
	tables, err := r.tables()
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(before+mark+"\n\n"+tables), 0o644)
}

func (r *Results) tables() (string, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s; %s: %d passed, %d failed, %d not run.\n\n", r.Machine, r.Version, r.Passed, r.Failed, r.NotRun)
	t := &bench.Table{Head: []string{"mode", "family", "data plane", "what", "result", "test"}}
	for _, c := range r.Cells {
		by := c.Why
		if c.Test != "" {
			by = "`" + c.Test + "`"
		}
		t.Add(c.Mode, c.Family, c.Plane, c.What, c.Result, by)
	}
	if err := t.Write(&out, true); err != nil {
		return "", err
	}
	out.WriteString("\n")
	figures := &bench.Table{Head: []string{"figure", "median", "least", "most", "times"}}
	for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
		v := r.Figures[name]
		figures.Add(name, v[len(v)/2], v[0], v[len(v)-1], len(v))
	}
	if err := figures.Write(&out, true); err != nil {
		return "", err
	}
	return out.String(), nil
}
