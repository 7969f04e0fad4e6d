// SPDX-License-Identifier: Apache-2.0

package port

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
)

func TestPortPrefixesCoverExactly(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	spans := []Span{{0, 65535}, {0, 0}, {65535, 65535}, {1, 65534}, {80, 80}, {0, 32767}, {32768, 65535}, {8000, 8100}}
	for range 200 {
		a, b := uint16(r.IntN(65536)), uint16(r.IntN(65536))
		spans = append(spans, Span{min(a, b), max(a, b)})
	}
	for _, s := range spans {
		var hits [65536]int
		list := Prefixes(s)
		for i, p := range list {
			if nodestate.MaskPort(p.Port, p.Bits) != p.Port {
				t.Fatalf("%v: %d/%d has low bits", s, p.Port, p.Bits)
			}
			size := 1 << (16 - p.Bits)
			for n := range size {
				hits[int(p.Port)+n]++
			}
			// Two halves of one prefix side by side would be one entry too many.
			if i > 0 && list[i-1].Bits == p.Bits && nodestate.MaskPort(p.Port, p.Bits-1) == list[i-1].Port {
				t.Errorf("%v: %d/%d and %d/%d are one prefix", s, list[i-1].Port, p.Bits, p.Port, p.Bits)
			}
		}
		for n, h := range hits {
			want := 0
			if n >= int(s.First) && n <= int(s.Last) {
				want = 1
			}
			if h != want {
				t.Fatalf("%v: port %d is in %d prefixes", s, n, h)
			}
		}
	}
}

func TestSpans(t *testing.T) {
	t.Parallel()
	got := Merge([]Span{{81, 90}, {10, 20}, {80, 80}, {15, 30}, {65535, 65535}})
	want := []Span{{10, 30}, {80, 90}, {65535, 65535}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("merged %v, want %v", got, want)
	}
}
