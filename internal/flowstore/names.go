// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/flows"
)

// What names of a segment are given to its Bloom filter: so many bits each, and so much memory.
const (
	bitsEach   = 12
	hashesEach = 5
	bloomMost  = 64 << 10
)

// bloom tells of most names that a segment does not have them: those of namespaces, and
// "namespace/name" of pods and of workloads.
type bloom []byte

func newBloom(names map[string]struct{}) bloom {
	b := make(bloom, min(max(len(names)*bitsEach/8, 8), bloomMost))
	for n := range names {
		b.each(n, func(at uint64) bool { b[at/8] |= 1 << (at % 8); return true })
	}
	return b
}

// each goes through the bits of a name, until f returns false.
func (b bloom) each(name string, f func(bit uint64) bool) bool {
	h := fnv.New64a()
	h.Write([]byte(name))
	sum := h.Sum64()
	one, two := sum&0xffffffff, sum>>32|1
	for i := range uint64(hashesEach) {
		if !f((one + i*two) % uint64(8*len(b))) {
			return false
		}
	}
	return true
}

// may is false when none has the name.
func (b bloom) may(name string) bool {
	return len(b) == 0 || b.each(name, func(at uint64) bool { return b[at/8]&(1<<(at%8)) != 0 })
}

// mayBe is false when no end of a segment is what a filter's From or To names.
func (b bloom) mayBe(of string) bool {
	if of == "" || isNetwork(of) {
		return true
	}
	return b.may(of)
}

// mayBeOne is false when no end of a segment is one of several.
func (b bloom) mayBeOne(of []string) bool { return len(of) == 0 || slices.ContainsFunc(of, b.mayBe) }

// isNetwork is true for an address and a network.
func isNetwork(of string) bool {
	if _, err := netip.ParseAddr(of); err == nil {
		return true
	}
	_, err := netip.ParsePrefix(of)
	return err == nil
}

func namesOf(peers []flows.Peer) map[string]struct{} {
	names := map[string]struct{}{}
	for i := range peers {
		p := &peers[i]
		if p.Pod == "" {
			continue
		}
		names[p.Namespace] = struct{}{}
		names[p.Namespace+"/"+p.Pod] = struct{}{}
		if _, workload, is := strings.Cut(p.Workload, " "); is {
			names[p.Namespace+"/"+workload] = struct{}{}
		}
	}
	return names
}
