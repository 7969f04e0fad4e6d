// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/nettest"
)

// A round tells how many entries the flows of each pod have, and keeps what began while it lasted.
func TestSharesAreCounted(t *testing.T) {
	needRoot(t)
	s, _ := sweepOf(t, 4096)
	pod, gone, new := [4]byte{10, 244, 1, 2}, [4]byte{10, 244, 1, 3}, [4]byte{10, 244, 1, 4}
	flow := func(i int, saddr [4]byte, seen uint32) {
		k := abi.FlowKey[abi.Ip4]{Proto: 6, Sport: uint16(i), Dport: 80}
		k.Saddr = saddr
		addFlow(t, s.M, k, abi.FlowValue[abi.Ip4]{Seen: seen, State: 1, From: abi.FromPod})
		back := abi.FlowKey[abi.Ip4]{Proto: 6, Sport: 80, Dport: uint16(i)}
		back.Daddr = saddr
		addFlow(t, s.M, back, abi.FlowValue[abi.Ip4]{Seen: seen, State: 1, Flags: 1, From: abi.FromPod}) // a pod answers
	}
	for i := range 10 {
		flow(i, pod, s.Now)
		flow(100+i, gone, s.Now-100000)
	}
	outside := abi.FlowKey[abi.Ip4]{Proto: 6, Sport: 1, Dport: 1}
	addFlow(t, s.M, outside, abi.FlowValue[abi.Ip4]{Seen: s.Now, State: 1})
	share := func(a [4]byte) (v flowtable.QuotaValue, ok bool) {
		err := s.Quotas.M.Lookup(a[:], &v)
		return v, err == nil
	}
	nettest.Must(t, s.Quotas.M.Put(pod[:], flowtable.QuotaValue{Counted: 3, Begun: 50}))
	nettest.Must(t, s.Quotas.M.Put(gone[:], flowtable.QuotaValue{Counted: 20}))
	nettest.Must(t, s.Quotas.Begin())
	s.Begun = true
	nettest.Must(t, s.Quotas.M.Put(pod[:], flowtable.QuotaValue{Counted: 3, Begun: 54})) // four more while the round lasts
	nettest.Must(t, s.Quotas.M.Put(new[:], flowtable.QuotaValue{Begun: 2}))
	gcRoundOf(t, s)
	for _, test := range []struct {
		addr  [4]byte
		want  flowtable.QuotaValue
		there bool
	}{
		{pod, flowtable.QuotaValue{Counted: 20, Begun: 4}, true}, {new, flowtable.QuotaValue{Begun: 2}, true}, {gone, flowtable.QuotaValue{}, false},
		{[4]byte{}, flowtable.QuotaValue{Counted: 21}, true},
	} {
		if got, ok := share(test.addr); got != test.want || ok != test.there {
			t.Errorf("share of %v: %+v, %t; want %+v, %t", test.addr, got, ok, test.want, test.there)
		}
	}
	if s.Pressed() {
		t.Error("21 entries of 4096 press nobody")
	}
	nettest.Must(t, s.Quotas.M.Put(make([]byte, 4), flowtable.QuotaValue{Counted: 3000, Begun: 73}))
	if !s.Pressed() {
		t.Error("3073 entries of 4096 press nobody")
	}
	for _, test := range []struct {
		each, most uint32
		want       []dataplane.HeldPod
	}{{19, 3072, []dataplane.HeldPod{{Addr: netip.AddrFrom4(pod), Entries: 24}}}, {24, 3072, nil}, {19, 3073, nil}} {
		if got, err := s.Quotas.Held(test.each, test.most); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("held above %d of %d: %v, %v", test.each, test.most, got, err)
		}
	}
	gcRoundOf(t, s)
	if got, _ := share(pod); got != (flowtable.QuotaValue{Counted: 20}) {
		t.Errorf("after a quiet round the share is %+v", got)
	}
}
