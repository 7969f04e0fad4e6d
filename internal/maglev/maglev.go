// SPDX-License-Identifier: Apache-2.0

// Package maglev is consistent hashing by look-up tables: "Maglev: A Fast and Reliable Software
// Network Load Balancer" (NSDI 2016), section 3.4. Everybody who knows the same backends computes
// the same table, and with it makes the same choice for a client, without telling each other.
package maglev

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/jhash"
)

// sizes are the numbers of slots that a table may have: primes. They are few, since a table of
// another size shares nothing with the one before.
var sizes = [...]int{1021, 10007, 100003, 655373}

// Size returns the number of slots for n backends: at least 100 for each up to 6,553 backends; 0
// for none.
func Size(n int) int {
	if n == 0 {
		return 0
	}
	for _, s := range sizes {
		if s >= 100*n {
			return s
		}
	}
	return sizes[len(sizes)-1]
}

// Table returns for each slot the index of its backend in the list. The order of the list, which
// must not have repetitions, does not matter for who gets which slot. The result is empty when the
// list is.
func Table(backends []netip.AddrPort) []int32 {
	m := Size(len(backends))
	slots := make([]int32, m)
	for i := range slots {
		slots[i] = -1
	}
	order := make([]int32, len(backends))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return backends[a].Compare(backends[b]) })
	// Each backend goes through the slots in an order of its own, at+k*skip mod m, and they take
	// turns in taking the next one that is free.
	at, skip := make([]int, len(order)), make([]int, len(order))
	for i, b := range order {
		at[i], skip[i] = permutation(backends[b], m)
	}
	for filled := 0; filled < m; {
		for i, b := range order {
			p := at[i]
			for slots[p] >= 0 {
				if p += skip[i]; p >= m {
					p -= m
				}
			}
			slots[p] = b
			if p += skip[i]; p >= m {
				p -= m
			}
			at[i] = p
			if filled++; filled == m {
				break
			}
		}
	}
	return slots
}

// permutation returns where a backend's order of slots begins, and its step 1..m-1.
func permutation(b netip.AddrPort, m int) (offset, skip int) {
	text, err := b.MarshalBinary()
	if err != nil { // MarshalBinary of a netip.AddrPort does not fail
		panic(err)
	}
	sum := sha256.Sum256(text)
	return int(binary.BigEndian.Uint64(sum[:8]) % uint64(m)), 1 + int(binary.BigEndian.Uint64(sum[8:16])%uint64(m-1))
}

// seed is that of the hash, equal in bpf/maglev.h.
const seed = 0x57656972

// Slot returns the slot of a client's flow in a table of n slots. The port does not count for
// Services with session affinity (affine). It is what nftables' `jhash ADDRESS . PORT mod n seed`
// gives: Hash as a share of n.
func Slot(client netip.AddrPort, affine bool, n int) int {
	return int(uint64(Hash(client, affine)) * uint64(n) >> 32)
}

// Hash is the kernel's jhash over an address and, unless affine, in a word of its own, the port. It
// is never 0, as in bpf/maglev.h.
func Hash(client netip.AddrPort, affine bool) uint32 {
	key := client.Addr().AsSlice()
	if !affine {
		key = append(binary.BigEndian.AppendUint16(key, client.Port()), 0, 0)
	}
	return max(jhash.Sum(key, seed), 1)
}

// Expression is Slot's hash in the words of nft, for the family of addresses ip ("ip", "ip6").
func Expression(ip string, affine bool, n int) string {
	if affine {
		return fmt.Sprintf("jhash %s saddr mod %d seed %#x", ip, n, seed)
	}
	return fmt.Sprintf("jhash %s saddr . th sport mod %d seed %#x", ip, n, seed)
}
