// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"testing"
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
