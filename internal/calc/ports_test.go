// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
)

func TestPortPrefixesCoverExactly(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	spans := []span{{0, 65535}, {0, 0}, {65535, 65535}, {1, 65534}, {80, 80}, {0, 32767}, {32768, 65535}, {8000, 8100}}
	for range 200 {
		a, b := uint16(r.IntN(65536)), uint16(r.IntN(65536))
		spans = append(spans, span{min(a, b), max(a, b)})
	}
	for _, s := range spans {
		var hits [65536]int
		list := portPrefixes(s)
		for i, p := range list {
			if nodestate.MaskPort(p.port, p.bits) != p.port {
				t.Fatalf("%v: %d/%d has low bits", s, p.port, p.bits)
			}
			size := 1 << (16 - p.bits)
			for n := range size {
				hits[int(p.port)+n]++
			}
			// Two halves of one prefix side by side would be one entry too many.
			if i > 0 && list[i-1].bits == p.bits && nodestate.MaskPort(p.port, p.bits-1) == list[i-1].port {
				t.Errorf("%v: %d/%d and %d/%d are one prefix", s, list[i-1].port, p.bits, p.port, p.bits)
			}
		}
		for n, h := range hits {
			want := 0
			if n >= int(s.first) && n <= int(s.last) {
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
	got := mergeSpans([]span{{81, 90}, {10, 20}, {80, 80}, {15, 30}, {65535, 65535}})
	want := []span{{10, 30}, {80, 90}, {65535, 65535}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("merged %v, want %v", got, want)
	}
}
