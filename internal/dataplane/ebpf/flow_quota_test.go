package ebpf

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// A round tells how many entries the flows of each pod have, and keeps what began while it lasted.
func TestSharesAreCounted(t *testing.T) {
	needRoot(t)
	s, _ := sweepOf(t, 4096)
	pod, gone, new := [4]byte{10, 244, 1, 2}, [4]byte{10, 244, 1, 3}, [4]byte{10, 244, 1, 4}
	flow := func(i int, saddr [4]byte, seen uint32) {
		k := abi.WeirFlowKey{Proto: 6, Sport: uint16(i), Dport: 80}
		k.Saddr.W[0] = binary.NativeEndian.Uint32(saddr[:])
		must(t, s.m.Put(k, abi.WeirFlowValue{Seen: seen, State: 1, From: abi.FromPod}))
		back := abi.WeirFlowKey{Proto: 6, Sport: 80, Dport: uint16(i)}
		back.Daddr.W[0] = binary.NativeEndian.Uint32(saddr[:])
		must(t, s.m.Put(back, abi.WeirFlowValue{Seen: seen, State: 1, Flags: 1, From: abi.FromPod})) // a pod answers
	}
	for i := range 10 {
		flow(i, pod, s.now)
		flow(100+i, gone, s.now-100000)
	}
	outside := abi.WeirFlowKey{Proto: 6, Sport: 1, Dport: 1}
	must(t, s.m.Put(outside, abi.WeirFlowValue{Seen: s.now, State: 1}))
	share := func(a [4]byte) (v quotaValue, ok bool) {
		err := s.quotas.m.Lookup(a[:], &v)
		return v, err == nil
	}
	must(t, s.quotas.m.Put(pod[:], quotaValue{Counted: 3, Begun: 50}))
	must(t, s.quotas.m.Put(gone[:], quotaValue{Counted: 20}))
	must(t, s.quotas.begin())
	s.begun = true
	must(t, s.quotas.m.Put(pod[:], quotaValue{Counted: 3, Begun: 54})) // four more while the round lasts
	must(t, s.quotas.m.Put(new[:], quotaValue{Begun: 2}))
	s.round(t)
	for _, test := range []struct {
		addr  [4]byte
		want  quotaValue
		there bool
	}{
		{pod, quotaValue{Counted: 20, Begun: 4}, true}, {new, quotaValue{Begun: 2}, true}, {gone, quotaValue{}, false},
		{[4]byte{}, quotaValue{Counted: 21}, true},
	} {
		if got, ok := share(test.addr); got != test.want || ok != test.there {
			t.Errorf("share of %v: %+v, %t; want %+v, %t", test.addr, got, ok, test.want, test.there)
		}
	}
	if s.pressed() {
		t.Error("21 entries of 4096 press nobody")
	}
	must(t, s.quotas.m.Put(make([]byte, 4), quotaValue{Counted: 3000, Begun: 73}))
	if !s.pressed() {
		t.Error("3073 entries of 4096 press nobody")
	}
	for _, test := range []struct {
		each, most uint32
		want       []Held
	}{{19, 3072, []Held{{netip.AddrFrom4(pod), 24}}}, {24, 3072, nil}, {19, 3073, nil}} {
		if got, err := s.quotas.held(test.each, test.most); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("held above %d of %d: %v, %v", test.each, test.most, got, err)
		}
	}
	s.round(t)
	if got, _ := share(pod); got != (quotaValue{Counted: 20}) {
		t.Errorf("after a quiet round the share is %+v", got)
	}
}
