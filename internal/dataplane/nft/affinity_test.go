package nft

import (
	"encoding/binary"
	"testing"
)

// TestJhashSeesEachBit holds that a change of any bit of the key or the seed is seen. That it is the kernel's hash holds TestSwitchAffinity
// of test/netns, where the kernel finds what was written by it.
func TestJhashSeesEachBit(t *testing.T) {
	key := make([]byte, 16)
	for i := range key {
		key[i] = byte(i * 7)
	}
	seen := map[uint32]bool{jhash(key, affinitySeed): true}
	for bit := range 8 * len(key) {
		k := append([]byte(nil), key...)
		k[bit/8] ^= 1 << (bit % 8)
		if h := jhash(k, affinitySeed); seen[h] {
			t.Errorf("bit %d changes nothing", bit)
		} else {
			seen[h] = true
		}
	}
	if seen[jhash(key, affinitySeed+1)] {
		t.Error("the seed changes nothing")
	}
	if jhash(binary.NativeEndian.AppendUint32(nil, 1), 0) == jhash(binary.NativeEndian.AppendUint64(nil, 1), 0) {
		t.Error("the length changes nothing")
	}
}
