// SPDX-License-Identifier: Apache-2.0

package services

import (
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/delta"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// settleAll makes a tracker's changes, and returns how many there were.
func settleAll[K, V comparable](t *delta.Tracker[K, V]) int {
	n := t.Pending()
	for k := range maps.Collect(t.Writes()) {
		t.Done(k)
	}
	for _, k := range slices.Collect(t.Deletes()) {
		t.Done(k)
	}
	return n
}

// newFollower returns the services of maps that hold nothing.
func newFollower() *Tables[abi.Ip4] {
	s := New[abi.Ip4](nil, new(uint64))
	s.lists, s.fresh = map[abi.SvcKey[abi.Ip4]][]abi.Backend[abi.Ip4]{}, true
	s.faces, s.affine = map[nodestate.Frontend]map[nodestate.Frontend]struct{}{}, map[nodestate.Frontend]struct{}{}
	return s
}

// randomChange changes a service port of a state: its backends, its frontends, or what stands
// there.
func randomChange(r *rand.Rand, st *nodestate.State) {
	proto := []model.Protocol{model.ProtocolTCP, model.ProtocolUDP}[r.IntN(2)]
	id := nodestate.Frontend{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(r.IntN(6))}), Port: 80, Proto: proto}
	face := nodestate.Frontend{Addr: netip.AddrFrom4([4]byte{0, 0, 0, byte(r.IntN(2))}), Port: uint16(30000 + r.IntN(4)), Proto: proto}
	if r.IntN(12) == 0 { // of the other family
		id.Addr, face.Addr = netip.MustParseAddr("fd00::1"), netip.IPv6Unspecified()
	}
	switch r.IntN(8) {
	case 0:
		st.Frontends.Delete(id)
		st.Backends.Delete(id)
	case 1:
		st.Frontends.Delete(face)
	case 2:
		st.Frontends.Set(face, nodestate.Service{ID: id, Affinity: uint32(r.IntN(2)), External: true, Rule: nodestate.RuleID(r.IntN(3))})
	case 3:
		st.Frontends.Set(id, nodestate.Service{ID: id, Affinity: uint32(r.IntN(2)), Rule: nodestate.RuleID(r.IntN(3))})
	case 4:
		st.Backends.Delete(id)
	default:
		list := slices.Clone(st.Backends.At(id))
		for range 1 + r.IntN(3)*r.IntN(20) {
			b := nodestate.Backend{Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(r.IntN(60))}), Port: 8080, Local: r.IntN(2) == 0, Spare: r.IntN(3) == 0}
			i := slices.IndexFunc(list, func(o nodestate.Backend) bool { return o.Addr == b.Addr })
			if i >= 0 {
				list = slices.Delete(list, i, i+1)
			}
			if i < 0 || r.IntN(3) == 0 {
				list = append(list, b)
			}
		}
		slices.SortFunc(list, func(a, b nodestate.Backend) int { return a.Addr.Compare(b.Addr) })
		st.Backends.Set(id, list)
	}
}

// TestFollowingIsAsGoodAsLookingAtAll holds that after any sequence of changes the maps hold what a
// first look at the last state would put there, but for the order of slots.
func TestFollowingIsAsGoodAsLookingAtAll(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		st := nodestate.New()
		s, p := newFollower(), NewPorts(nil, new(uint64))
		for step := range 120 {
			next := *st
			for range r.IntN(4) {
				randomChange(r, &next)
			}
			if r.IntN(10) == 0 {
				next.Addrs = map[netip.Addr]nodestate.Addr{netip.AddrFrom4([4]byte{10, 244, 0, byte(r.IntN(60))}): {Kind: nodestate.AddrHost}}
			}
			st = &next
			s.Desire(st)
			p.Desire(st, true)
			settleAll(s.frontends.Tracker)
			settleAll(s.backends.Tracker)
			settleAll(s.live.Tracker)
			fresh, freshPorts := newFollower(), NewPorts(nil, new(uint64))
			fresh.Desire(st)
			freshPorts.Desire(st, true)
			settleAll(fresh.frontends.Tracker)
			settleAll(fresh.backends.Tracker)
			settleAll(fresh.live.Tracker)
			same(t, seed, step, "frontends", s.frontends.Tracker.All(), fresh.frontends.Tracker.All())
			same(t, seed, step, "live backends", s.live.Tracker.All(), fresh.live.Tracker.All())
			if p.want != freshPorts.want {
				t.Fatalf("seed %d step %d: other ports", seed, step)
			}
			got, want := lists(t, s), lists(t, fresh)
			if !maps.EqualFunc(got, want, maps.Equal[map[abi.Backend[abi.Ip4]]bool]) {
				t.Fatalf("seed %d step %d: lists %v, want %v", seed, step, got, want)
			}
		}
	}
}

func same[K, V comparable](t *testing.T, seed uint64, step int, what string, got, want iter.Seq2[K, V]) {
	t.Helper()
	if g, w := maps.Collect(got), maps.Collect(want); !maps.Equal(g, w) {
		for k, v := range w {
			if have, ok := g[k]; !ok || have != v {
				t.Errorf("seed %d step %d: %s: %v is %v (there: %t), want %v", seed, step, what, k, have, ok, v)
			}
			delete(g, k)
		}
		for k, v := range g {
			if _, ok := w[k]; !ok {
				t.Errorf("seed %d step %d: %s: %v is %v, want none", seed, step, what, k, v)
			}
		}
		t.FailNow()
	}
}

// lists reads the lists from the map of backends; each must have the slots from 0 on.
func lists(t *testing.T, s *Tables[abi.Ip4]) map[abi.SvcKey[abi.Ip4]]map[abi.Backend[abi.Ip4]]bool {
	t.Helper()
	out, slots := map[abi.SvcKey[abi.Ip4]]map[abi.Backend[abi.Ip4]]bool{}, map[abi.SvcKey[abi.Ip4]]uint32{}
	for k, b := range s.backends.Tracker.All() {
		if out[k.Svc] == nil {
			out[k.Svc] = map[abi.Backend[abi.Ip4]]bool{}
		}
		out[k.Svc][b] = true
		slots[k.Svc] = max(slots[k.Svc], k.Slot+1)
	}
	for k, n := range slots {
		if int(n) != len(out[k]) || len(s.lists[k]) != int(n) {
			t.Fatalf("list %s has %d slots, %d backends, and is planned to have %d", abi.ShowSvc(k), n, len(out[k]), len(s.lists[k]))
		}
	}
	return out
}

// TestOneEndpointOfMany: few writes, whatever the length of the list, for one that goes, comes, is
// replaced, begins to terminate, or becomes local.
func TestOneEndpointOfMany(t *testing.T) {
	t.Parallel()
	for _, n := range []int{10, 5000, 10000} {
		for _, proto := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP} {
			oneEndpointOf(t, n, proto)
		}
	}
}

func oneEndpointOf(t *testing.T, n int, proto model.Protocol) {
	st := nodestate.New()
	id := nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: proto}
	st.Frontends.Set(id, nodestate.Service{ID: id})
	var list []nodestate.Backend
	for i := range n {
		list = append(list, nodestate.Backend{Addr: netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), Port: 8080})
	}
	st.Backends.Set(id, list)
	s := newFollower()
	s.Desire(st)
	settleAll(s.frontends.Tracker)
	settleAll(s.backends.Tracker)
	settleAll(s.live.Tracker)
	for i := range 20 {
		at := 137 * i % (n - 1)
		for what, change := range map[string]func([]nodestate.Backend) []nodestate.Backend{
			"goes":         func(l []nodestate.Backend) []nodestate.Backend { return slices.Delete(l, at, at+1) },
			"comes":        func(l []nodestate.Backend) []nodestate.Backend { return append(l, newcomer(len(l))) },
			"is replaced":  func(l []nodestate.Backend) []nodestate.Backend { l[at].Port++; return l },
			"terminates":   func(l []nodestate.Backend) []nodestate.Backend { l[at].Spare = true; return l },
			"is local now": func(l []nodestate.Backend) []nodestate.Backend { l[at].Local = !l[at].Local; return l },
		} {
			for _, list := range [][]nodestate.Backend{change(slices.Clone(st.Backends.At(id))), st.Backends.At(id)} { // and back
				next := *st
				next.Backends.Set(id, list)
				s.Desire(&next)
				if writes := settleAll(s.frontends.Tracker) + settleAll(s.backends.Tracker) + settleAll(s.live.Tracker); writes > 5 {
					t.Fatalf("of %d endpoints one %s: %d writes", n, what, writes)
				}
			}
		}
	}
}

// newcomer sorts after the others.
func newcomer(i int) nodestate.Backend {
	return nodestate.Backend{Addr: netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}), Port: 8080}
}

// BenchmarkFollow is the plan of one endpoint's change.
func BenchmarkFollow(b *testing.B) {
	for _, size := range []struct {
		name               string
		services, backends int
	}{{"10 services", 10, 2}, {"10000 services", 10000, 2}, {"100000 services", 100000, 2}, {"10000 backends", 1, 10000}} {
		b.Run(size.name, func(b *testing.B) {
			frontends, backends := nodestate.Editor[nodestate.Frontend, nodestate.Service]{}, nodestate.Editor[nodestate.Frontend, []nodestate.Backend]{}
			var id nodestate.Frontend
			for i := range size.services {
				id = nodestate.Frontend{Addr: netip.AddrFrom4([4]byte{10, byte(96 + i>>16), byte(i >> 8), byte(i)}), Port: 80, Proto: model.ProtocolTCP}
				frontends.Set(id, nodestate.Service{ID: id})
				var list []nodestate.Backend
				for j := range size.backends {
					list = append(list, nodestate.Backend{Addr: netip.AddrFrom4([4]byte{10, 0, byte(j >> 8), byte(j)}), Port: 8080})
				}
				backends.Set(id, list)
			}
			st := nodestate.New()
			st.Frontends, st.Backends = frontends.Map(), backends.Map()
			other := *st
			other.Backends.Set(id, slices.Delete(slices.Clone(st.Backends.At(id)), size.backends/2, size.backends/2+1))
			s := newFollower()
			s.Desire(st)
			settleAll(s.frontends.Tracker)
			settleAll(s.backends.Tracker)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Desire([]*nodestate.State{&other, st}[i%2])
				settleAll(s.frontends.Tracker)
				settleAll(s.backends.Tracker)
			}
		})
	}
}
