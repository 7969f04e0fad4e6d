// SPDX-License-Identifier: Apache-2.0

// Package bench is what the benchmarks have in common: statistics that bear outliers, rounds that
// take turns so that a slow minute hits every configuration alike, a measure of what else the
// machine was doing, and results as tables and JSON.
package bench

import (
	"math"
	"slices"
)

// Summary describes a sample. Its fields have the unit of the sample; all are 0 for an empty one.
type Summary struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
}

// Summarize leaves its argument as it is.
func Summarize(sample []float64) Summary {
	if len(sample) == 0 {
		return Summary{}
	}
	s := slices.Clone(sample)
	slices.Sort(s)
	return Summary{
		Count: len(s), Mean: Mean(s), Min: s[0], Max: s[len(s)-1],
		P50: quantile(s, 0.5), P90: quantile(s, 0.9), P99: quantile(s, 0.99),
	}
}

// Mean of a sample, 0 for an empty one.
func Mean(sample []float64) float64 {
	if len(sample) == 0 {
		return 0
	}
	var sum float64
	for _, v := range sample {
		sum += v
	}
	return sum / float64(len(sample))
}

// Median of a sample, 0 for an empty one.
func Median(sample []float64) float64 { return Quantile(sample, 0.5) }

// Quantile q (0..1) of a sample, between its values by linear interpolation (Hyndman and Fan's type
// 7); 0 for an empty one.
func Quantile(sample []float64, q float64) float64 {
	s := slices.Clone(sample)
	slices.Sort(s)
	return quantile(s, q)
}

func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := q * float64(len(sorted)-1)
	low := int(math.Floor(at))
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// Ratio is a/b, and 0 where there is nothing to compare with.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
