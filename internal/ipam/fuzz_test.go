// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"testing"
)

// FuzzRecord reads any bytes as the file of an address: they are its record as it was written, or
// an error.
func FuzzRecord(f *testing.F) {
	addr := netip.MustParseAddr("10.0.0.1")
	good, err := encode(Record{Address: addr})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte("{}\nsha256:\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := decode(data, addr); err == nil && r.Address != addr {
			t.Errorf("%+v", r)
		}
	})
}
