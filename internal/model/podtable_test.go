// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

func randomPod(r *rand.Rand) *Pod {
	p := &Pod{Name: Name{fmt.Sprint("ns", r.IntN(3)), fmt.Sprint("pod-", r.IntN(40))}, Node: []string{"", "a", "b"}[r.IntN(3)],
		HostNetwork: r.IntN(10) == 0, Finished: r.IntN(10) == 0, Created: int64(r.IntN(5))}
	if r.IntN(2) == 0 {
		p.Labels = map[string]string{"app": fmt.Sprint(r.IntN(3))}
	}
	if r.IntN(4) == 0 {
		p.Labels, p.ServiceAccount = map[string]string{"app": "0", "tier": fmt.Sprint(r.IntN(2))}, "web"
	}
	if r.IntN(3) == 0 {
		p.Ports = []PodPort{{Name: "http", Protocol: ProtocolTCP, Port: uint16(80 + r.IntN(2))}}
	}
	for range r.IntN(4) {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(8))})
		if r.IntN(2) == 0 {
			a = netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(8))})
		}
		if r.IntN(8) == 0 {
			a = netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff, 12: 10, 15: byte(r.IntN(8))}) // another one than 10.0.0.x
		}
		p.Addrs = append(p.Addrs, a)
	}
	switch r.IntN(5) {
	case 0:
		p.UID = "not a UUID"
	case 1:
		p.UID = "0F8FAD5B-D9CB-469F-A165-70867728950E" // not as the API writes them
	default:
		p.UID = fmt.Sprintf("0f8fad5b-d9cb-469f-a165-7086772895%02x", r.IntN(256))
	}
	switch r.IntN(12) {
	case 0:
		p.Created = -1
	case 1:
		p.Created = 1 << 40
	case 2:
		p.Asked = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	}
	return p
}

// TestPodTable holds that a table is what a map of the same pods is, after each of many changes.
func TestPodTable(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	table, want := &PodTable{}, map[Name]*Pod{}
	table.GroupsByLabel("app")
	for i := range 6000 {
		p := randomPod(r)
		if r.IntN(3) > 0 {
			table.Put(p)
			want[p.Name] = p
		} else {
			table.Delete(p.Name)
			delete(want, p.Name)
		}
		if table.Len() != len(want) {
			t.Fatalf("change %d: %d pods, want %d", i, table.Len(), len(want))
		}
		if !reflect.DeepEqual(table.Get(p.Name), want[p.Name]) {
			t.Fatalf("change %d: %+v, want %+v", i, table.Get(p.Name), want[p.Name])
		}
		if i%50 == 0 {
			comparePods(t, table, want)
		}
	}
	if len(table.text.blocks) > 2 {
		t.Errorf("%d blocks of text for %d pods", len(table.text.blocks), table.Len())
	}
	for name := range want {
		table.Delete(name)
	}
	if n := len(slices.Collect(table.Groups())) + table.addrs.n + len(table.nodes.byText) + len(table.extra) + len(table.GroupsByNamespace()) + len(table.GroupsByLabel("app")); n > 0 {
		t.Errorf("%d things are left of no pods", n)
	}
}

func comparePods(t *testing.T, table *PodTable, want map[Name]*Pod) {
	t.Helper()
	if got := table.ByName(); !reflect.DeepEqual(got, want) {
		t.Fatalf("pods %v, want %v", got, want)
	}
	if got := table.Clone().ByName(); !reflect.DeepEqual(got, want) {
		t.Fatalf("a clone has %v, want %v", got, want)
	}
	claims, labels := map[netip.Addr][]Name{}, map[string]int{}
	for n, p := range want {
		if v, has := p.Labels["app"]; has {
			labels[v]++
		}
		if p.HostNetwork || p.Finished {
			continue
		}
		for i, a := range p.Addrs {
			if !slices.Contains(p.Addrs[:i], a) {
				claims[a] = append(claims[a], n)
			}
		}
	}
	names := func(of []Name) []Name {
		slices.SortFunc(of, func(a, b Name) int {
			return slices.Compare([]string{a.Namespace, a.Name}, []string{b.Namespace, b.Name})
		})
		return of
	}
	for a, of := range claims {
		var got []Name
		for r := range table.At(a) {
			got = append(got, r.Name())
			if !r.Is(r.Name()) || !r.Has(a) || r.Node() != want[r.Name()].Node {
				t.Fatalf("a look at %s at %s is wrong", r.Name(), a)
			}
		}
		if !slices.Equal(names(got), names(of)) {
			t.Fatalf("at %s: %v, want %v", a, got, of)
		}
	}
	for _, prefix := range []string{"10.0.0.0/30", "fd00::/125", "0.0.0.0/0", "::/0", "fd00::/100"} {
		p := netip.MustParsePrefix(prefix)
		inside := map[netip.Addr]struct{}{}
		for a := range claims {
			if p.Contains(a) {
				inside[a] = struct{}{}
			}
		}
		got := map[netip.Addr]struct{}{}
		for a := range table.AddrsIn(p) {
			got[a] = struct{}{}
		}
		if !maps.Equal(got, inside) {
			t.Fatalf("in %s: %v, want %v", p, got, inside)
		}
	}
	got, seen := map[string]int{}, 0
	for v, groups := range table.GroupsByLabel("app") {
		for g := range groups {
			got[v] += g.Len()
		}
	}
	if !maps.Equal(got, labels) {
		t.Fatalf("pods by a label: %v, want %v", got, labels)
	}
	for ns, groups := range table.GroupsByNamespace() {
		for g := range groups {
			for r := range g.Refs() {
				p := want[r.Name()]
				if p == nil || !p.alike(g.Like) || p.Name.Namespace != ns || r.Group() != g {
					t.Fatalf("%v is in the group of %+v", r.Name(), g.Like)
				}
				seen++
			}
		}
	}
	if seen != len(want) {
		t.Fatalf("%d pods are in groups, want %d", seen, len(want))
	}
}
