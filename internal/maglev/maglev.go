// Package maglev is consistent hashing by look-up tables: "Maglev: A Fast and Reliable Software Network Load Balancer"
// (NSDI 2016), section 3.4. Everybody who knows the same backends computes the same table, and with it makes the
// same choice for a client, without telling each other.
package maglev

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// sizes are the numbers of slots that a table may have: primes. They are few, since a table of another size shares
// nothing with the one before.
var sizes = [...]int{1021, 10007, 100003, 655373}

// Size returns the number of slots for n backends: at least 100 for each up to 6,553 backends; 0 for none.
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

// Table returns for each slot the index of its backend in the list. The order of the list, which must not have
// repetitions, does not matter for who gets which slot. The result is empty when the list is.
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
	// Each backend goes through the slots in an order of its own, at+k*skip mod m, and they take turns in taking the
	// next one that is free.
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

// Hash is the hash of a flow whose remainder by the table's size is its slot; it is never 0. The frontend's address is
// the unspecified one for node ports. The client's port is 0 for Services with session affinity. Both addresses are of
// one family. It is MurmurHash3's 32-bit form (Appleby, public domain) over 32-bit words in network order: client,
// frontend, ports (client's in the upper half), protocol.
func Hash(client netip.Addr, clientPort uint16, frontend netip.Addr, port uint16, proto model.Protocol) uint32 {
	words := append(client.AsSlice(), frontend.AsSlice()...)
	words = binary.BigEndian.AppendUint16(words, clientPort)
	words = binary.BigEndian.AppendUint16(words, port)
	words = binary.BigEndian.AppendUint32(words, uint32(proto))
	h := uint32(0)
	for w := words; len(w) > 0; w = w[4:] {
		k := binary.BigEndian.Uint32(w) * 0xcc9e2d51
		h ^= bits.RotateLeft32(k, 15) * 0x1b873593
		h = bits.RotateLeft32(h, 13)*5 + 0xe6546b64
	}
	h ^= uint32(len(words))
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	h ^= h >> 16
	return max(h, 1)
}
