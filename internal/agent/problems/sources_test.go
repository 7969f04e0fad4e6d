// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
)

func TestRefusedSources(t *testing.T) {
	t.Parallel()
	c := model.NewCluster()
	c.Local.Node = "w1"
	pod := model.Name{Namespace: "edge", Name: "router"}
	a := netip.MustParseAddr("10.244.1.2")
	asked := []netip.Prefix{netip.MustParsePrefix("10.96.1.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/25")}
	c.Nodes["w1"] = &model.Node{Name: "w1", Addrs: []netip.Addr{netip.MustParseAddr("172.31.1.1")}}
	c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	c.Pods.Put(&model.Pod{Name: pod, Node: "w1", Addrs: []netip.Addr{a}, Sources: asked})
	c.Local.Endpoints = map[netip.Addr]*model.LocalEndpoint{a: {Pod: pod, Interface: "cali1", IfIndex: 7, Addrs: []netip.Addr{a}}}
	look := func(want ...string) {
		t.Helper()
		var got []string
		state := calc.Calc(c)
		for _, p := range RefusedSources(c, state) {
			got = append(got, p.Value+" "+p.Message)
		}
		ok := len(got) == len(want)
		for i := range min(len(got), len(want)) {
			ok = ok && strings.Contains(got[i], want[i])
		}
		if !ok {
			t.Errorf("got %q, want parts %q", got, want)
		}
		if may := state.SendsAs(7, netip.MustParseAddr("203.0.113.9")).IsValid(); may != (len(want) < 3) {
			t.Errorf("203.0.113.9: %v", may)
		}
		if len(want) < 3 && state.SendsAs(7, netip.MustParseAddr("198.51.100.1")).IsValid() {
			t.Error("it may send from what is not granted")
		}
	}
	off := "workloadSourceSpoofing is not Any"
	look(off, off, off)
	c.Settings.SourceSpoofing = true
	none := "does not grant it"
	look(none, none, none)
	c.Namespaces["edge"] = &model.Namespace{Name: "edge", SourceGrants: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("203.0.113.0/24")}}
	look("pods, Services", none)
}
