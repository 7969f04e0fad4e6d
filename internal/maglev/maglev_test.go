// SPDX-License-Identifier: Apache-2.0

package maglev

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func backends(n int) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range n {
		out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080))
	}
	return out
}

func TestSizes(t *testing.T) {
	for _, s := range sizes {
		if !big.NewInt(int64(s)).ProbablyPrime(20) {
			t.Errorf("%d is not a prime", s)
		}
	}
	for n, want := range map[int]int{0: 0, 1: 1021, 10: 1021, 11: 10007, 100: 10007, 101: 100003, 1000: 100003, 1001: 655373, 20000: 655373} {
		if got := Size(n); got != want {
			t.Errorf("%d backends: %d slots, want %d", n, got, want)
		}
	}
}

func counts(table []int32, n int) []int {
	c := make([]int, n)
	for _, b := range table {
		c[b]++
	}
	return c
}

// Each backend gets nearly as many slots as any other: with at least 100 slots a backend, within 1
// % of the mean and one slot, which is what section 3.4 of the paper asks of a table 100 times as
// large as the number of backends.
func TestLoadIsEven(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 10, 11, 99, 100, 1000, 5000, 10000} {
		c := counts(Table(backends(n)), n)
		mean := float64(Size(n)) / float64(n)
		least, most := slices.Min(c), slices.Max(c)
		t.Logf("%5d backends, %6d slots: %d to %d, max/min %.4f", n, Size(n), least, most, float64(most)/float64(least))
		if float64(most) > mean*1.01+1 || float64(least) < mean*0.99-1 {
			t.Errorf("%d backends: between %d and %d slots each, the mean is %.1f", n, least, most, mean)
		}
	}
}

func TestOrderDoesNotMatter(t *testing.T) {
	list := backends(50)
	first := Table(list)
	shuffled := slices.Clone(list)
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for slot, b := range Table(shuffled) {
		if shuffled[b] != list[first[slot]] {
			t.Fatalf("slot %d is that of %s in one order and of %s in another", slot, list[first[slot]], shuffled[b])
		}
	}
}

// disrupted returns the share of slots that another backend gets, beyond those that must change,
// when the backend at index gone leaves.
func disrupted(list []netip.AddrPort, gone int) float64 {
	before := Table(list)
	after := Table(slices.Delete(slices.Clone(list), gone, gone+1))
	if len(before) != len(after) {
		return math.NaN()
	}
	moved := 0
	for slot, b := range before {
		a := after[slot]
		if int(a) >= gone {
			a++
		}
		if int(b) != gone && a != b {
			moved++
		}
	}
	return float64(moved) / float64(len(before))
}

// Losing one of 100 backends moves at most 2 % of all slots beyond those that it had.
func TestDisruption(t *testing.T) {
	for _, n := range []int{5, 50, 100, 1000} {
		list := backends(n)
		worst, sum, tries := 0.0, 0.0, min(n, 100)
		if n == 1000 {
			tries = 5
		}
		for gone := range tries {
			d := disrupted(list, gone)
			worst, sum = max(worst, d), sum+d
		}
		t.Logf("%4d backends, %6d slots: losing one moves %.2f %% of the others' slots on average, %.2f %% at worst",
			n, Size(n), 100*sum/float64(tries), 100*worst)
		if worst > 0.02 {
			t.Errorf("losing one of %d backends moves %.2f %% of all slots that need not move", n, 100*worst)
		}
	}
}

// TestSlot: clients' consecutive ports fill 100 buckets evenly (the chi-squared statistic of 99
// degrees of freedom is below 149 with a probability of 0.999), and so do consecutive clients whose
// ports do not count.
func TestSlot(t *testing.T) {
	for _, text := range []string{"172.31.1.55", "fd00::55"} {
		client := netip.MustParseAddr(text)
		for _, affine := range []bool{false, true} {
			var buckets [100]int
			at, most := client, 0
			for port := range 50000 {
				slot := Slot(netip.AddrPortFrom(at, uint16(1024+port)), affine, Size(100))
				most = max(most, slot)
				buckets[slot%100]++
				if affine {
					at = at.Next()
				}
			}
			chi := 0.0
			for _, n := range buckets {
				chi += math.Pow(float64(n)-500, 2) / 500
			}
			if chi > 149 || most >= Size(100) {
				t.Errorf("%s, affine %t: 50,000 flows fill 100 buckets unevenly: chi-squared %.0f; the last slot is %d", text, affine, chi, most)
			}
		}
		a, b := netip.AddrPortFrom(client, 1), netip.AddrPortFrom(client, 2)
		if Slot(a, true, 100003) != Slot(b, true, 100003) || Slot(a, false, 100003) == Slot(b, false, 100003) {
			t.Errorf("%s: the port counts with affinity, or not without", text)
		}
	}
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		list := backends(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Table(list)
			}
		})
	}
}
