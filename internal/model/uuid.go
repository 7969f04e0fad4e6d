// SPDX-License-Identifier: Apache-2.0

package model

import "encoding/hex"

// ParseUUID reads a UUID that is written as the API writes them (RFC 9562, lower case).
func ParseUUID(text string) (out [16]byte, ok bool) {
	if len(text) != 36 {
		return out, false
	}
	var digits [32]byte
	n := 0
	for i := range len(text) {
		c := text[i]
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return out, false
			}
		case c >= '0' && c <= '9' || c >= 'a' && c <= 'f':
			digits[n] = c
			n++
		default:
			return out, false
		}
	}
	_, err := hex.Decode(out[:], digits[:])
	return out, err == nil
}

// UUIDText writes a UUID as the API does.
func UUIDText(u [16]byte) string {
	var out [36]byte
	hex.Encode(out[:8], u[:4])
	hex.Encode(out[9:13], u[4:6])
	hex.Encode(out[14:18], u[6:8])
	hex.Encode(out[19:23], u[8:10])
	hex.Encode(out[24:], u[10:])
	out[8], out[13], out[18], out[23] = '-', '-', '-', '-'
	return string(out[:])
}
