// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-net/weir/internal/agent/chain/results"
	"github.com/weir-net/weir/internal/model"
)

// TestPodsByAddr: what a CNI plugin gave last to a pod that the node has counts before what the API
// says, and counts for no other pod of that name.
func TestPodsByAddr(t *testing.T) {
	a1, a2, a3 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	name := func(s string) model.Name { return model.Name{Namespace: "ns", Name: s} }
	pods := map[model.Name]*model.Pod{}
	for _, p := range []model.Pod{
		{Name: name("old"), UID: "u1", Created: 100, Addrs: []netip.Addr{a1}},
		{Name: name("young"), UID: "u2", Created: 200, Addrs: []netip.Addr{a1, a2}},
		{Name: name("new"), UID: "u3", Created: 300},
	} {
		pods[p.Name] = &p
	}
	record := func(pod, uid string, when int64) results.Record {
		return results.Record{Pod: name(pod), UID: uid, When: time.Unix(when, 0)}
	}
	for what, c := range map[string]struct {
		given map[netip.Addr]results.Record
		want  map[netip.Addr]string
	}{
		"the API alone":            {nil, map[netip.Addr]string{a1: "young", a2: "young"}},
		"a new pod":                {map[netip.Addr]results.Record{a3: record("new", "u3", 301)}, map[netip.Addr]string{a1: "young", a2: "young", a3: "new"}},
		"an address given again":   {map[netip.Addr]results.Record{a2: record("new", "u3", 301)}, map[netip.Addr]string{a1: "young", a2: "new"}},
		"a pod of before":          {map[netip.Addr]results.Record{a3: record("new", "u0", 150)}, map[netip.Addr]string{a1: "young", a2: "young"}},
		"a pod of another node":    {map[netip.Addr]results.Record{a3: record("gone", "u9", 301)}, map[netip.Addr]string{a1: "young", a2: "young"}},
		"a runtime without UIDs":   {map[netip.Addr]results.Record{a3: record("new", "", 301)}, map[netip.Addr]string{a1: "young", a2: "young", a3: "new"}},
		"the same, of before that": {map[netip.Addr]results.Record{a3: record("new", "", 299)}, map[netip.Addr]string{a1: "young", a2: "young"}},
	} {
		have := map[netip.Addr]string{}
		for a, n := range podsByAddr(pods, c.given) {
			have[a] = n.Name
		}
		if !maps.Equal(have, c.want) {
			t.Errorf("%s: %v, want %v", what, have, c.want)
		}
	}
}

// TestHold holds a pod that the container runtime starts until its endpoint is in force, and not
// until another pod's is that had its address.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.cluster.results = results.New(t.TempDir(), slog.New(slog.DiscardHandler))
		b.cluster.applyBatch(t.Context(), whole())
		b.api[web] = webPod()
		b.api[model.Name{Namespace: "shop", Name: "host"}] = &model.Pod{Node: "n1", HostNetwork: true}
		if err := b.cni.hold(t.Context(), model.Name{Namespace: "shop", Name: "host"}, "", nil); err != nil {
			t.Errorf("a pod in the host network: %v", err)
		}
		other := webEP
		other.Pod.Name = "other"
		b.api[other.Pod] = &model.Pod{Name: other.Pod, Node: "n1"}
		if err := b.cni.Attach(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		for _, addrs := range [][]netip.Addr{{webAddr}, nil} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := b.cni.hold(ctx, web, "u1", addrs); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("addresses %v: held until another pod was in force: %v", addrs, err)
			}
			cancel()
		}
		done := make(chan error, 1)
		go func() { done <- b.cni.hold(t.Context(), web, "u1", []netip.Addr{webAddr}) }()
		time.Sleep(time.Minute)
		select {
		case err := <-done:
			t.Fatalf("no longer held without an interface: %v", err)
		default:
		}
		if err := b.cni.Attach(t.Context(), webEP); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if b.kernel.last().Addrs[webAddr].IfIndex != webEP.IfIndex {
			t.Error("not in the data plane's state")
		}
	})
}
