// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"
	"strings"
	"testing"
)

// calcOrder are the packages of the calculation, each of which imports only those before it.
var calcOrder = []string{"table", "port", "cluster", "peer", "subject", "policy", "route", "service", "bgp", ""}

func TestCalcImportsDownward(t *testing.T) {
	t.Parallel()
	place := func(path string) int {
		return slices.Index(calcOrder, strings.TrimPrefix(strings.TrimPrefix(path, "internal/calc"), "/"))
	}
	for path, p := range packages(t) {
		if !within(path, "internal/calc") {
			continue
		}
		at := place(path)
		if at < 0 {
			t.Errorf("%s has no place in the order of the calculation's packages", path)
			continue
		}
		for _, imported := range p.Imports {
			if within(imported, "internal/calc") && place(imported) >= at {
				t.Errorf("%s imports %s, which comes after it", path, imported)
			}
		}
	}
}
