// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/bench/result"
)

// A row is slower when its interval lies wholly above slower and above that of old/old; all
// together may cost mean.
const (
	slower = 1.03
	mean   = 1.02
)

// sample is what a version costs in one round.
type sample struct {
	row            string
	round, version int
	ns             float64
}

// text is a ratio with its interval.
func text(r result.Ratio) string { return fmt.Sprintf("%.3f (%.3f to %.3f)", r.Ratio, r.Low, r.High) }

// comparison is a row of the result.
type comparison struct {
	Row    string       `json:"row"`
	OldNS  float64      `json:"old_ns"` // medians
	NewNS  float64      `json:"new_ns"`
	NewOld result.Ratio `json:"new_over_old"`
	OldOld result.Ratio `json:"old_over_old"`
	// Fastest is the ratio of the fastest rounds of both: what else the machine does only adds.
	Fastest float64 `json:"fastest_new_over_old"`
	Slower  bool    `json:"slower"`
}

// verdict is what the samples say.
type verdict struct {
	NewOld float64 `json:"new_over_old"` // geometric means of the rows
	OldOld float64 `json:"old_over_old"`
	// Fastest is that of the rows' fastest rounds. It decides nothing.
	Fastest float64      `json:"fastest_new_over_old"`
	Rows    []comparison `json:"rows"`
}

// compare compares the versions row by row. Rows that one of them does not have are left out.
func compare(samples []sample) (verdict, error) {
	byRow := map[string]*[versions][]float64{}
	for _, s := range samples {
		if byRow[s.row] == nil {
			byRow[s.row] = new([versions][]float64)
		}
		byRow[s.row][s.version] = append(byRow[s.row][s.version], s.ns)
	}
	var v verdict
	var newOld, oldOld, fastest []float64
	for row, of := range byRow {
		if len(of[old]) == 0 || len(of[again]) != len(of[old]) || len(of[current]) != len(of[old]) {
			continue
		}
		c := comparison{Row: row, OldNS: bench.Median(of[old]), NewNS: bench.Median(of[current])}
		var err, errOld error
		c.NewOld, err = result.Compare(slices.Concat(of[old], of[again]), of[current])
		c.OldOld, errOld = result.Compare(of[old], of[again])
		if err := errors.Join(err, errOld); err != nil {
			return verdict{}, fmt.Errorf("%s: %w", row, err)
		}
		c.Fastest = slices.Min(of[current]) / min(slices.Min(of[old]), slices.Min(of[again]))
		c.Slower = c.NewOld.Low > slower && c.NewOld.Low > c.OldOld.High
		v.Rows = append(v.Rows, c)
		newOld, oldOld, fastest = append(newOld, c.NewOld.Ratio), append(oldOld, c.OldOld.Ratio), append(fastest, c.Fastest)
	}
	slices.SortFunc(v.Rows, func(a, b comparison) int { return cmp.Compare(a.Row, b.Row) })
	if len(v.Rows) > 0 {
		v.NewOld, v.OldOld, v.Fastest = stat.GeometricMean(newOld, nil), stat.GeometricMean(oldOld, nil), stat.GeometricMean(fastest, nil)
	}
	return v, nil
}

func (v verdict) print(w io.Writer) error {
	t := bench.Table{Head: []string{"row", "old ns", "new ns", "new/old (95 %)", "old/old (95 %)", "new/old, fastest", "slower"}}
	for _, c := range v.Rows {
		t.Add(c.Row, c.OldNS, c.NewNS, text(c.NewOld), text(c.OldOld), fmt.Sprintf("%.3f", c.Fastest), map[bool]string{true: "slower"}[c.Slower])
	}
	if err := t.Write(w, false); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "geometric mean of %d rows: new/old %.3f, old/old %.3f; of the fastest rounds new/old %.3f\n", len(v.Rows), v.NewOld, v.OldOld, v.Fastest)
	return err
}

// err says why the new version does not pass.
func (v verdict) err() error {
	n := 0
	for _, c := range v.Rows {
		if c.Slower {
			n++
		}
	}
	switch {
	case len(v.Rows) == 0:
		return fmt.Errorf("the versions have no row in common")
	case n > 0:
		return fmt.Errorf("%d of %d rows are slower", n, len(v.Rows))
	case math.IsNaN(v.NewOld) || v.NewOld > mean:
		return fmt.Errorf("the geometric mean of new/old is %.3f, more than %.2f", v.NewOld, mean)
	}
	return nil
}
