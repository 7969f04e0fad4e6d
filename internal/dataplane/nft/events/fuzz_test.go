// SPDX-License-Identifier: Apache-2.0

package events

import "testing"

// FuzzHeader reads what the kernel logged of a packet: any bytes of anybody.
func FuzzHeader(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 81}, "weir denied x 1 2")
	f.Add([]byte{0x60, 0, 0, 0, 0, 8, 58, 255, 39: 1, 40: 128}, "weir")
	f.Add([]byte{0x4f, 0, 0, 20}, "weir a b 4294967296 -1")
	f.Fuzz(func(t *testing.T, packet []byte, text string) {
		if e, ok := ParseHeader(packet); ok && (!e.Src.IsValid() || !e.Dst.IsValid()) {
			t.Errorf("%+v of %x", e, packet)
		} else if ok {
			asking(e)
		}
		if p, ok := parsePrefix(text); ok {
			if again, ok := parsePrefix(p.String()); !ok || again != p {
				t.Errorf("%+v is %+v when it is written and read", p, again)
			}
		}
	})
}
