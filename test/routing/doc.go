// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/weir-net/weir/internal/bench"
)

// writeDoc writes the tables of a document anew.
func writeDoc(path string, r *Results) error {
	tables, err := r.tables()
	if err != nil {
		return err
	}
	return bench.Rewrite(path, "test/routing", tables)
}

func (r *Results) tables() (string, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s; %s: %d passed, %d failed, %d not run, %d emulated.\n\n", r.Machine, r.Version, r.Passed, r.Failed, r.NotRun, r.Emulated)
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
