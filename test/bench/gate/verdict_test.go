// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// measured is rounds of rows whose new version costs factor times the old one, with noise of some
// percent.
func measured(rounds int, factors map[string]float64) (out []sample) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range rounds {
		for row, factor := range factors {
			for v := range versions {
				ns := 100 * (1 + 0.02*r.NormFloat64())
				if v == current {
					ns *= factor
				}
				out = append(out, sample{row, round, v, ns})
			}
		}
	}
	return out
}

// compared fails the test when the samples cannot be compared.
func compared(t *testing.T, samples []sample) verdict {
	t.Helper()
	v, err := compare(samples)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestCompare(t *testing.T) {
	same := map[string]float64{}
	for i := range 8 {
		same[fmt.Sprint("row ", i)] = 1
	}
	if err := compared(t, measured(15, same)).err(); err != nil {
		t.Errorf("the same costs are %v", err)
	}
	same["row 7"] = 1.2
	v := compared(t, measured(15, same))
	if err := v.err(); err == nil || !strings.Contains(err.Error(), "1 of 8 rows") {
		t.Errorf("one row costs a fifth more: %v", err)
	}
	for _, c := range v.Rows {
		if c.Slower != (c.Row == "row 7") {
			t.Errorf("%s: slower = %v, %v", c.Row, c.Slower, c.NewOld)
		}
		if want := same[c.Row]; c.Fastest < want-0.05 || c.Fastest > want+0.05 {
			t.Errorf("%s: %.3f of the fastest rounds, want %.2f", c.Row, c.Fastest, want)
		}
	}
	for row := range same {
		same[row] = 1.027 // less than a row may cost, more than all may
	}
	if err := compared(t, measured(100, same)).err(); err == nil || !strings.Contains(err.Error(), "geometric mean") {
		t.Errorf("all rows cost a little more: %v", err)
	}
	if err := compared(t, nil).err(); err == nil {
		t.Error("nothing measured passes")
	}
}

func TestCompareLeavesOutRowsOfOneVersion(t *testing.T) {
	samples := append(measured(5, map[string]float64{"both": 1}), sample{"only new", 0, current, 100})
	if v := compared(t, samples); len(v.Rows) != 1 || v.Rows[0].Row != "both" {
		t.Errorf("rows %v", v.Rows)
	}
}
