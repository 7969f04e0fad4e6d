// SPDX-License-Identifier: Apache-2.0

package jhash

import "testing"

// TestSum: the values that come with the hash's publication (lookup3.c, driver5).
func TestSum(t *testing.T) {
	const text = "Four score and seven years ago"
	for _, c := range []struct {
		text       string
		seed, want uint32
	}{{"", 0, 0xdeadbeef}, {text, 0, 0x17770551}, {text, 1, 0xcd628161}} {
		if got := Sum([]byte(c.text), c.seed); got != c.want {
			t.Errorf("%q, %d: %#x, want %#x", c.text, c.seed, got, c.want)
		}
	}
}
