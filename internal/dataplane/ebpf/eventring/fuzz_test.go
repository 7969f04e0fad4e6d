// SPDX-License-Identifier: Apache-2.0

package eventring

import "testing"

// FuzzEvent reads any bytes as an event of the ring buffer: they are one, or an error.
func FuzzEvent(f *testing.F) {
	f.Add(make([]byte, 8))
	f.Add(make([]byte, 256))
	f.Fuzz(func(t *testing.T, sample []byte) {
		if e, err := toEvent(sample); err == nil && (!e.Src.IsValid() || !e.Dst.IsValid()) {
			t.Errorf("%+v", e)
		}
	})
}
