// SPDX-License-Identifier: Apache-2.0

package digest

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// full fills a value so that nothing of it is zero.
func full(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Type() {
	case reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(netip.MustParseAddr("10.0.0.1")))
		return
	case reflect.TypeFor[netip.Prefix]():
		v.Set(reflect.ValueOf(netip.MustParsePrefix("10.0.0.0/8")))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		full(t, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			full(t, v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		full(t, v.Index(0))
	case reflect.Array:
		full(t, v.Index(0))
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		full(t, k)
		full(t, e)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	default:
		t.Fatalf("this test knows nothing of a %s", v.Type())
	}
}

// eachChange changes one thing of a value after the other, calls f, and undoes it.
func eachChange(t *testing.T, v reflect.Value, path string, f func(path string)) {
	t.Helper()
	was := reflect.New(v.Type()).Elem()
	was.Set(v)
	with := func(what string, now reflect.Value) {
		v.Set(now)
		f(path + what)
		v.Set(was)
	}
	switch v.Type() {
	case reflect.TypeFor[netip.Addr]():
		for _, a := range []netip.Addr{{}, netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("::a00:1"), netip.MustParseAddr("::ffff:10.0.0.1")} {
			with(" = "+a.String(), reflect.ValueOf(a))
		}
		return
	case reflect.TypeFor[netip.Prefix]():
		for _, text := range []string{"10.0.0.0/9", "11.0.0.0/8", "a00::/8"} {
			with(" = "+text, reflect.ValueOf(netip.MustParsePrefix(text)))
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachChange(t, v.Field(i), path+"."+v.Type().Field(i).Name, f)
		}
	case reflect.Array:
		eachChange(t, v.Index(0), path+"[0]", f)
	case reflect.Slice:
		with(" without elements", reflect.Zero(v.Type()))
		with(" with two", reflect.Append(clipped(v), v.Index(0)))
		eachChange(t, v.Index(0), path+"[0]", f)
	case reflect.Pointer:
		with(" = nil", reflect.Zero(v.Type()))
		eachChange(t, v.Elem(), path, f)
	case reflect.Map:
		with(" without elements", reflect.Zero(v.Type()))
		other := reflect.MakeMap(v.Type())
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		full(t, k)
		other.SetMapIndex(k, e)
		with(" with another value", other)
	default:
		with(" = zero", reflect.Zero(v.Type()))
	}
}

func clipped(v reflect.Value) reflect.Value { return v.Slice3(0, v.Len(), v.Len()) }

func sumBy[K comparable, V any](k kindOf[K, V]) func(reflect.Value) Sum {
	return func(v reflect.Value) Sum { return k.sum(&writer{}, v.Interface().(*V)) }
}

// TestEveryFieldCounts holds that a change of any field of an object is a change of its digest, but
// of what agents do not take from a fan-out. A field that is added to the model is in here.
func TestEveryFieldCounts(t *testing.T) {
	t.Parallel()
	sums := map[string]func(reflect.Value) Sum{"Namespaces": sumBy(namespaces), "Pods": sumBy(pods), "Nodes": sumBy(nodes), "Services": sumBy(services),
		"Slices": sumBy(endpointSlices), "Policies": sumBy(policies), "Staged": sumBy(staged), "Tiers": sumBy(tiers), "NetworkSets": sumBy(networkSets),
		"ServiceAccounts": sumBy(serviceAccounts), "HostEndpoints": sumBy(hostEndpoints), "Pools": sumBy(pools), "Blocks": sumBy(blocks),
		"BGPConfigs": sumBy(bgpConfigs), "BGPPeers": sumBy(bgpPeers), "BGPFilters": sumBy(bgpFilters), "EgressPolicies": sumBy(egressPolicies)}
	changes := reflect.TypeFor[model.Changes]()
	for i := range changes.NumField() {
		field := changes.Field(i)
		if field.Type.Kind() != reflect.Map {
			continue
		}
		sum := sums[field.Name]
		if sum == nil {
			t.Errorf("%s have no digests", field.Name)
			continue
		}
		v := reflect.New(field.Type.Elem().Elem())
		full(t, v.Elem())
		was, seen := sum(v), 0
		known := map[Sum]string{was: "as it was"}
		eachChange(t, v.Elem(), field.Name, func(path string) {
			now := sum(v)
			like, is := known[now]
			if without := len(path) > 11 && path[:11] == "Nodes.Since"; without {
				if now != was {
					t.Errorf("%s counts, which replicas do not agree on", path)
				}
			} else if is {
				t.Errorf("%s has the digest of: %s", path, like)
			}
			known[now] = path
			seen++
		})
		if seen < v.Elem().NumField() || sum(v) != was {
			t.Errorf("%s: %d changes", field.Name, seen)
		}
	}
}

// TestDigestsAreThoseOfTheVersion holds what digests are made of, which ends of different builds
// have to agree on: where this fails Version is to be raised.
func TestDigestsAreThoseOfTheVersion(t *testing.T) {
	t.Parallel()
	var all writer
	changes := reflect.New(reflect.TypeFor[model.Changes]()).Elem()
	full(t, changes)
	for s, l := range Of(changes.Addr().Interface().(*model.Changes)) {
		if len(l.entries) != 1 {
			t.Fatalf("%d objects of %v", len(l.entries), s)
		}
	}
	h := HeldOf(clusterOf(changes.Addr().Interface().(*model.Changes)))
	for k := Kind(1); k <= LastKind; k++ {
		for _, ns := range []string{"", "x"} {
			if sums := h[Scope{k, ns}]; sums != nil {
				all = append(all, sums[0][:]...)
			}
		}
	}
	all.number(placeOf("some-name"))
	sum := sumOf(all)
	if got, want := hex.EncodeToString(sum[:]), "f7cc631c23366a67243e757d7c8a14f4"; len(all) < 16*int(LastKind) || got != want {
		t.Errorf("%d bytes of digests, in all %s, want %s", len(all), got, want)
	}
}

func clusterOf(ch *model.Changes) *model.Cluster {
	c := model.NewCluster()
	ch.Apply(c)
	return c
}

func randomPods(r *rand.Rand, n int) map[model.Name]*model.Pod {
	out := map[model.Name]*model.Pod{}
	for range n {
		p := &model.Pod{Name: model.Name{Namespace: fmt.Sprint("ns", r.IntN(4)), Name: fmt.Sprint("pod-", r.IntN(5000))}, UID: fmt.Sprint(r.IntN(3))}
		out[p.Name] = p
	}
	return out
}

// TestDifference holds that what is sent, and what it takes the place of, make of what is held what
// is to be, whatever either was, and that equal buckets are not sent.
func TestDifference(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		held, want := &model.Changes{Pods: randomPods(r, r.IntN(2000))}, model.NewCluster()
		parts := []*model.Changes{{Pods: map[model.Name]*model.Pod{}, ServiceCIDRsChanged: true, ReservedChanged: true}, {Pods: randomPods(r, r.IntN(20))}}
		for name, p := range held.Pods { // mostly the same
			if r.IntN(300) > 0 {
				parts[0].Pods[name] = p
			}
		}
		if r.IntN(10) == 0 {
			parts[0].Pods = randomPods(r, 100)
		}
		for name := range parts[0].Pods {
			parts[1].Pods[name] = nil // a later part may say that something is gone
			break
		}
		var lists []Lists
		for _, p := range parts {
			p.Apply(want)
			lists = append(lists, Of(p))
		}
		c := clusterOf(held)
		if d := lists[0].Held(lists[1]).Compare(lists...); len(d.Replaced)+len(d.send) > 0 {
			t.Errorf("what lists have differs from itself in %d scopes", len(d.Replaced))
		}
		d := HeldOf(c).Compare(lists...)
		came := &model.Changes{}
		for _, p := range parts {
			came.Merge(d.Pick(p))
		}
		sent := len(came.Pods)
		Settle(came, c, d.Replaced)
		changed := len(came.Pods)
		came.Apply(c)
		if !reflect.DeepEqual(c.Pods.ByName(), want.Pods.ByName()) {
			t.Fatalf("%d pods are not the %d that are to be", c.Pods.Len(), want.Pods.Len())
		}
		if sent > 80*changed {
			t.Errorf("%d pods were sent for %d that changed", sent, changed)
		}
		if again := HeldOf(c).Compare(lists...); len(again.Replaced)+len(again.send) > 0 {
			t.Errorf("after that %d scopes differ", len(again.Replaced))
		}
	}
}

// TestBucketsAreBounded holds that what is held is described within the bounds that fan-outs read.
func TestBucketsAreBounded(t *testing.T) {
	t.Parallel()
	c := model.NewCluster()
	for i := range 60_000 {
		s := &model.EndpointSlice{Name: model.Name{Namespace: fmt.Sprint("ns", i%7), Name: fmt.Sprint(i)}}
		c.Slices[s.Name] = s
	}
	total := 0
	for s, sums := range HeldOf(c) {
		if len(sums) > 1<<MostBits {
			t.Errorf("%d buckets of %v", len(sums), s)
		}
		total += len(sums)
	}
	if total > MostBuckets || total < MostBuckets/8 {
		t.Errorf("%d buckets", total)
	}
	for i := range MostScopes + 1 {
		s := &model.Service{Name: model.Name{Namespace: fmt.Sprint(i), Name: "s"}}
		c.Services[s.Name] = s
	}
	if h := HeldOf(c); h != nil {
		t.Errorf("%d scopes are described", len(h))
	}
}

func BenchmarkHeld(b *testing.B) {
	c := model.NewCluster()
	for i := range 100_000 {
		p := &model.Pod{Name: model.Name{Namespace: fmt.Sprint("ns", i%200), Name: fmt.Sprintf("deployment-5d4f8c7b9d-%05d", i)}, Node: fmt.Sprint("node-", i%1000), ServiceAccount: "default",
			Labels: map[string]string{"app": fmt.Sprint("app", i%5), "version": "v1"}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})},
			UID: fmt.Sprintf("0d5e2c51-94a5-4a0e-a0f8-%012d", i)}
		c.Pods.Put(p)
	}
	b.ReportAllocs()
	h := Held{}
	for b.Loop() {
		h = HeldOf(c)
	}
	lists := Of(c.Everything())
	b.Run("Compare", func(b *testing.B) {
		for b.Loop() {
			h.Compare(lists)
		}
	})
}
