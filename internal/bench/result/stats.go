// SPDX-License-Identifier: Apache-2.0

package result

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Value is a median with an interval that holds the true one with the confidence that is given. It
// was found by order statistics: no distribution is assumed, and few rounds give a low confidence
// rather than a narrow interval.
type Value struct {
	Median     float64   `json:"median"`
	Low        float64   `json:"low"`
	High       float64   `json:"high"`
	Confidence float64   `json:"confidence"` // of the interval; 0 with one round
	All        []float64 `json:"all"`        // by round
	Unit       string    `json:"unit"`
}

// wanted is the confidence of intervals where there are enough rounds for it.
const wanted = 0.95

// Estimate is the median of values with the narrowest symmetric interval of order statistics that
// has 95 % confidence, or the whole range where that has less (with fewer than six values).
func Estimate(values []float64, unit string) Value {
	v := Value{All: slices.Clone(values), Unit: unit}
	if len(values) == 0 {
		return v
	}
	s := slices.Clone(values)
	slices.Sort(s)
	v.Median = medianOf(s)
	n := len(s)
	// The interval from the (k+1)-th smallest to the (k+1)-th largest misses the median when k or
	// fewer of n values lie on one side of it.
	coin := distuv.Binomial{N: float64(n), P: 0.5}
	k := 0
	for next := 1; next < (n+1)/2; next++ {
		if 1-2*coin.CDF(float64(next)) < wanted {
			break
		}
		k = next
	}
	v.Low, v.High, v.Confidence = s[k], s[n-1-k], max(0, 1-2*coin.CDF(float64(k)))
	if n == 1 {
		v.Confidence = 0
	}
	return v
}

func medianOf(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// Spread is the interval's width in parts of the median.
func (v Value) Spread() float64 {
	if v.Median == 0 {
		return 0
	}
	return (v.High - v.Low) / math.Abs(v.Median)
}

// Ratio is b/a for two independent samples.
type Ratio struct {
	Ratio      float64 `json:"ratio"`
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Confidence float64 `json:"confidence"`
}

// Certain says that the interval, which has at least 95 % confidence, leaves 1 out.
func (r Ratio) Certain() bool { return r.Confidence >= wanted && (r.Low > 1 || r.High < 1) }

// Compare estimates b/a: the median of the ratios of all pairs (Hodges and Lehmann's estimator on
// logarithms), with the interval of the distribution of the rank sum (Mann, Whitney, Wilcoxon): the
// exact one, or for large samples the normal one that it comes close to. Values must be positive.
func Compare(a, b []float64) (Ratio, error) {
	if len(a) == 0 || len(b) == 0 {
		return Ratio{}, fmt.Errorf("nothing to compare")
	}
	pairs := make([]float64, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			if x <= 0 || y <= 0 || math.IsInf(x, 0) || math.IsInf(y, 0) || math.IsNaN(x) || math.IsNaN(y) {
				return Ratio{}, fmt.Errorf("a value is not above zero")
			}
			pairs = append(pairs, y/x)
		}
	}
	slices.Sort(pairs)
	// P(U ≤ k) for each k: the k+1 smallest and largest pairs may be left out as long as the rest
	// is probable enough.
	if len(pairs) > exactPairs && min(len(a), len(b)) >= normalFrom {
		k, confidence := normalRank(len(a), len(b))
		return Ratio{medianOf(pairs), pairs[k], pairs[len(pairs)-1-k], confidence}, nil
	}
	below := rankSums(min(len(a), len(b)), max(len(a), len(b)))
	k := 0
	for next := 1; next < (len(pairs)+1)/2; next++ {
		if 1-2*below[next] < wanted {
			break
		}
		k = next
	}
	return Ratio{medianOf(pairs), pairs[k], pairs[len(pairs)-1-k], max(0, 1-2*below[k])}, nil
}

// Above so many pairs (50 values a side) the normal distribution is used, where the smaller sample
// has some values.
const (
	exactPairs = 2500
	normalFrom = 10
)

// normalRank is how many pairs of two samples of m and n values may be left out at each end for 95
// %, and the confidence that is left, where U is normal with the mean m·n/2 and the variance
// m·n·(m+n+1)/12, with the correction for continuity.
func normalRank(m, n int) (k int, confidence float64) {
	u := distuv.Normal{Mu: float64(m) * float64(n) / 2, Sigma: math.Sqrt(float64(m) * float64(n) * float64(m+n+1) / 12)}
	k = max(0, int(math.Floor(u.Quantile((1-wanted)/2)-0.5)))
	return k, max(0, 1-2*u.CDF(float64(k)+0.5))
}

// rankSums returns P(U ≤ k) for k from 0 to m·n: U counts the pairs in which the value of the one
// sample is above that of the other, where both have the same distribution. The number of ways to
// reach u is that of partitions of u into at most m parts of at most n.
func rankSums(m, n int) []float64 {
	ways := make([][]float64, m+1) // ways[i][u]: with i of the one sample, while its values are placed among 0..j of the other
	for i := range ways {
		ways[i] = make([]float64, m*n+1)
	}
	ways[0][0] = 1
	for j := 0; j <= n; j++ { // a value of the one sample that is above j of the other; each may be taken often
		for i := 1; i <= m; i++ {
			for u := j; u <= m*n; u++ {
				ways[i][u] += ways[i-1][u-j]
			}
		}
	}
	total := 0.0
	for _, w := range ways[m] {
		total += w
	}
	out, sum := make([]float64, m*n+1), 0.0
	for u, w := range ways[m] {
		sum += w
		out[u] = sum / total
	}
	return out
}
