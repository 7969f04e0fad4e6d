// SPDX-License-Identifier: Apache-2.0

// Package jhash is Bob Jenkins' hash as the kernel has it (linux/jhash.h, public domain): nftables
// computes it, and so do the eBPF programs.
package jhash

import (
	"encoding/binary"
	"math/bits"
)

// Sum is the hash of a key, which begins with seed.
func Sum(key []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + seed
	b, c := a, a
	for len(key) > 12 {
		a += binary.NativeEndian.Uint32(key)
		b += binary.NativeEndian.Uint32(key[4:])
		c += binary.NativeEndian.Uint32(key[8:])
		a, b, c = mix(a, b, c)
		key = key[12:]
	}
	if len(key) == 0 {
		return c
	}
	var last [12]byte
	copy(last[:], key)
	a += binary.LittleEndian.Uint32(last[:])
	b += binary.LittleEndian.Uint32(last[4:])
	c += binary.LittleEndian.Uint32(last[8:])
	return final(a, b, c)
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	step := func(x, y, z uint32, n int) (uint32, uint32) { // x -= z; x ^= rol(z, n); z += y
		return (x - z) ^ bits.RotateLeft32(z, n), z + y
	}
	a, c = step(a, b, c, 4)
	b, a = step(b, c, a, 6)
	c, b = step(c, a, b, 8)
	a, c = step(a, b, c, 16)
	b, a = step(b, c, a, 19)
	c, b = step(c, a, b, 4)
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	return (c ^ b) - bits.RotateLeft32(b, 24)
}
