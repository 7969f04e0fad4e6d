package ebpf

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// A round tells how many entries the flows of each pod have, and keeps what began while it lasted.
func TestSharesAreCounted(t *testing.T) {
	needRoot(t)
	s, _ := sweepOf(t, 4096)
	pod, gone, new := [4]byte{10, 244, 1, 2}, [4]byte{10, 244, 1, 3}, [4]byte{10, 244, 1, 4}
	flow := func(i int, saddr [4]byte, seen uint32) {
		k := weirFlowKey{Proto: 6, Sport: uint16(i), Dport: 80}
		k.Saddr.W[0] = binary.NativeEndian.Uint32(saddr[:])
		must(t, s.m.Put(k, weirFlowValue{Seen: seen, State: 1, From: fromPod}))
		back := weirFlowKey{Proto: 6, Sport: 80, Dport: uint16(i)}
		back.Daddr.W[0] = binary.NativeEndian.Uint32(saddr[:])
		must(t, s.m.Put(back, weirFlowValue{Seen: seen, State: 1, Flags: 1, From: fromPod})) // a pod answers
	}
	for i := range 10 {
		flow(i, pod, s.now)
		flow(100+i, gone, s.now-100000)
	}
	outside := weirFlowKey{Proto: 6, Sport: 1, Dport: 1}
	must(t, s.m.Put(outside, weirFlowValue{Seen: s.now, State: 1}))
	share := func(a [4]byte) (v shareValue, ok bool) {
		err := s.shares.m.Lookup(a[:], &v)
		return v, err == nil
	}
	must(t, s.shares.m.Put(pod[:], shareValue{Counted: 3, Begun: 50}))
	must(t, s.shares.m.Put(gone[:], shareValue{Counted: 20}))
	must(t, s.shares.begin())
	s.begun = true
	must(t, s.shares.m.Put(pod[:], shareValue{Counted: 3, Begun: 54})) // four more while the round lasts
	must(t, s.shares.m.Put(new[:], shareValue{Begun: 2}))
	s.round(t)
	for _, test := range []struct {
		addr  [4]byte
		want  shareValue
		there bool
	}{
		{pod, shareValue{Counted: 20, Begun: 4}, true}, {new, shareValue{Begun: 2}, true}, {gone, shareValue{}, false},
		{[4]byte{}, shareValue{Counted: 21}, true},
	} {
		if got, ok := share(test.addr); got != test.want || ok != test.there {
			t.Errorf("share of %v: %+v, %t; want %+v, %t", test.addr, got, ok, test.want, test.there)
		}
	}
	if s.pressed() {
		t.Error("21 entries of 4096 press nobody")
	}
	must(t, s.shares.m.Put(make([]byte, 4), shareValue{Counted: 3000, Begun: 73}))
	if !s.pressed() {
		t.Error("3073 entries of 4096 press nobody")
	}
	for _, test := range []struct {
		each, most uint32
		want       []Held
	}{{19, 3072, []Held{{netip.AddrFrom4(pod), 24}}}, {24, 3072, nil}, {19, 3073, nil}} {
		if got, err := s.shares.held(test.each, test.most); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("held above %d of %d: %v, %v", test.each, test.most, got, err)
		}
	}
	s.round(t)
	if got, _ := share(pod); got != (shareValue{Counted: 20}) {
		t.Errorf("after a quiet round the share is %+v", got)
	}
}
