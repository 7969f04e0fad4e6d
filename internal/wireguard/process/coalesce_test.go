// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// through coalesces packets and cuts the result again; it returns these packets and how many the
// kernel was given.
func through(t *testing.T, packets ...[]byte) (out [][]byte, given int) {
	t.Helper()
	var c coalescer
	for _, p := range packets {
		c.add(bytes.Clone(p))
	}
	for i := range c.piles[:c.n] {
		b := bytes.Join(c.render(&c.piles[i]), nil)
		var v vnet
		if err := v.decode(b); err != nil {
			t.Fatal(err)
		}
		if v.gso == 0 {
			out = append(out, b[vnetLen:])
			continue
		}
		got, err := cut(v, b[vnetLen:])
		if err != nil {
			t.Fatalf("%+v of %x: %v", v, b[vnetLen:], err)
		}
		out = append(out, got...)
	}
	given = c.n
	if c.reset(); c.n != 0 {
		t.Error("packets stay")
	}
	return out, given
}

func TestCoalesces(t *testing.T) {
	t.Parallel()
	for _, six := range []bool{false, true} {
		tcp := func(i int, flags byte, n int) []byte {
			return segment(six, uint16(i), uint32(1000*i), flags, payload(n))
		}
		udp := func(i, n int) []byte {
			p := datagram(six, payload(n))
			if !six {
				binary.BigEndian.PutUint16(p[4:], uint16(i))
				setIP(p, len(p))
			}
			addChecksum(p)
			return p
		}
		broken := func(p []byte) []byte { p[len(p)-1]++; return p }
		for what, of := range map[string]struct {
			packets [][]byte
			given   int
		}{
			"TCP":                       {[][]byte{tcp(1, 0x10, 1000), tcp(2, 0x10, 1000), tcp(3, 0x18, 1000)}, 1},
			"TCP, the last one shorter": {[][]byte{tcp(1, 0x10, 1000), tcp(2, 0x10, 999), tcp(3, 0x10, 1000)}, 2},
			"TCP, a longer one":         {[][]byte{tcp(1, 0x10, 1000), tcp(2, 0x10, 1001)}, 2},
			"TCP, pushed":               {[][]byte{tcp(1, 0x18, 1000), tcp(2, 0x10, 1000)}, 2},
			"TCP, the end":              {[][]byte{tcp(1, 0x10, 1000), tcp(2, 0x11, 1000)}, 2},
			"TCP, one is missing":       {[][]byte{tcp(1, 0x10, 1000), tcp(3, 0x10, 1000)}, 2},
			"TCP, the first damaged":    {[][]byte{broken(tcp(1, 0x10, 1000)), tcp(2, 0x10, 1000)}, 2},
			"TCP, the second damaged":   {[][]byte{tcp(1, 0x10, 1000), broken(tcp(2, 0x10, 1000))}, 2},
			"TCP, nothing in it":        {[][]byte{tcp(1, 0x10, 0), tcp(1, 0x10, 0)}, 2},
			"UDP":                       {[][]byte{udp(1, 500), udp(2, 500), udp(3, 20)}, 1},
			"UDP, one is longer":        {[][]byte{udp(1, 500), udp(2, 501), udp(3, 501)}, 2},
			"UDP, damaged":              {[][]byte{udp(1, 500), broken(udp(2, 500)), udp(3, 500)}, 3},
			"UDP without checksums":     {[][]byte{datagram(six, payload(500)), datagram(six, payload(500))}, 2},
			"two flows":                 {[][]byte{tcp(1, 0x10, 1000), tcp(2, 0x10, 1000), udp(1, 500), udp(2, 500)}, 2},
		} {
			got, given := through(t, of.packets...)
			if given != of.given || !slices.EqualFunc(got, of.packets, bytes.Equal) {
				t.Errorf("%s, IPv6 %t: the kernel is given %d, want %d; the same packets: %t", what, six, given, of.given, slices.EqualFunc(got, of.packets, bytes.Equal))
			}
		}
	}
}

// What is longer than an IP packet can be is not made.
func TestCoalescesUpToTheLongest(t *testing.T) {
	t.Parallel()
	var packets [][]byte
	for i := range 100 {
		packets = append(packets, segment(false, uint16(i), uint32(1000*i), 0x10, payload(1000)))
	}
	got, given := through(t, packets...)
	if given != 2 || !slices.EqualFunc(got, packets, bytes.Equal) {
		t.Errorf("the kernel is given %d packets", given)
	}
}

// What peers send comes out as it came in, whatever it is.
func FuzzCoalesce(f *testing.F) {
	f.Add(uint8(0), slices.Concat(segment(false, 1, 1, 0x10, payload(20)), segment(false, 2, 21, 0x10, payload(20))))
	f.Add(uint8(72), slices.Concat(segment(false, 1, 1, 0x10, payload(20)), segment(false, 2, 21, 0x10, payload(20))))
	f.Add(uint8(92), slices.Concat(segment(true, 1, 1, 0x10, payload(20)), segment(true, 2, 21, 0x18, payload(20))))
	f.Fuzz(func(t *testing.T, size uint8, b []byte) {
		packets := slices.Collect(slices.Chunk(b, int(size)+1))
		got, _ := through(t, packets...)
		order := func(all [][]byte) [][]byte {
			out := make([][]byte, 0, len(all))
			for _, p := range all {
				p = bytes.Clone(p)
				if len(p) >= 20 && p[0] == 0x45 && p[6]&0x40 != 0 { // its number says nothing
					clear(p[4:6])
					clear(p[10:12])
				}
				out = append(out, p)
			}
			slices.SortFunc(out, bytes.Compare)
			return out
		}
		if !slices.EqualFunc(order(got), order(packets), bytes.Equal) {
			t.Errorf("%x comes out as %x", packets, got)
		}
	})
}
