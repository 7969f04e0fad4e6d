// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
)

func TestRefusedFloating(t *testing.T) {
	t.Parallel()
	c := model.NewCluster()
	c.Local.Node = "w1"
	addr, pool := netip.MustParseAddr, netip.MustParsePrefix
	name := func(n string) model.Name { return model.Name{Namespace: "edge", Name: n} }
	c.Nodes["w1"] = &model.Node{Name: "w1", Addrs: []netip.Addr{addr("10.244.200.1")}}
	c.Pools["pods"] = &model.Pool{Name: "pods", CIDR: pool("10.244.0.0/16"), Workload: true}
	c.Pools["lb"] = &model.Pool{Name: "lb", CIDR: pool("203.0.113.0/24"), LoadBalancer: true}
	c.Blocks[pool("10.244.1.0/26")] = &model.Block{CIDR: pool("10.244.1.0/26"), Node: "w1"}
	c.ServiceCIDRs = []netip.Prefix{pool("10.244.96.0/24")}
	c.Services[name("web")] = &model.Service{Name: name("web"), ExternalIPs: []netip.Addr{addr("10.244.200.2")}}
	add := func(n string, created int64, own string, floating ...string) {
		p := &model.Pod{Name: name(n), Node: "w1", Created: created, Addrs: []netip.Addr{addr(own)}}
		for _, a := range floating {
			p.Floating = append(p.Floating, addr(a))
		}
		c.Pods.Put(p)
		if c.Local.Endpoints == nil {
			c.Local.Endpoints = map[netip.Addr]*model.LocalEndpoint{}
		}
		c.Local.Endpoints[addr(own)] = &model.LocalEndpoint{Pod: p.Name, Interface: "cali" + n, IfIndex: 7, Addrs: p.Addrs}
	}
	add("old", 1, "10.244.1.2", "10.244.200.7")
	add("new", 2, "10.244.1.3", "10.244.200.7", "10.244.200.1", "10.244.200.2", "10.244.96.9", "10.244.1.9", "10.244.1.2", "203.0.113.1", "192.0.2.1", "fd00::1", "10.244.200.8")
	look := func(want map[string]string, have map[string]string) {
		t.Helper()
		k := calc.New()
		s, _ := k.Update(c, calc.Dirty{})
		got := map[string]string{}
		for _, p := range RefusedFloating(k.FloatingRefused()) {
			got[p.Object[len("Pod edge/"):]+" "+p.Value] = p.Message
		}
		for at, why := range want {
			if !strings.Contains(got[at], why) || why == "" {
				t.Errorf("%s: %q, want part %q", at, got[at], why)
			}
		}
		if len(got) != len(want) {
			t.Errorf("refused: %v", got)
		}
		if len(s.Floating) != len(have) {
			t.Errorf("in force: %v, want %v", s.Floating, have)
		}
		for a, to := range have {
			if s.Floating[addr(a)] != addr(to) {
				t.Errorf("%s leads to %v, want %s", a, s.Floating[addr(a)], to)
			}
		}
	}
	all := map[string]string{}
	for p := range c.Pods.All() {
		for _, a := range p.Floating {
			all[p.Name.Name+" "+a.String()] = "floatingIPs is not Enabled"
		}
	}
	look(all, nil)
	c.Settings.FloatingIPs = true
	for at := range all {
		all[at] = "does not grant it"
	}
	look(all, nil)
	c.Namespaces["edge"] = &model.Namespace{Name: "edge", FloatingGrants: []netip.Prefix{pool("10.0.0.0/8"), pool("203.0.113.0/24"), pool("192.0.2.0/24"), pool("fd00::/8")}}
	look(map[string]string{
		"new 10.244.200.7": "pod edge/old, which is older, has it",
		"new 10.244.200.1": "node w1 has it",
		"new 10.244.200.2": "a Service, which is older, has it",
		"new 10.244.96.9":  "range of cluster IPs",
		"new 10.244.1.9":   "in a block of a node",
		"new 10.244.1.2":   "in a block of a node",
		"new 203.0.113.1":  "no IPPool for pods",
		"new 192.0.2.1":    "no IPPool for pods",
		"new fd00::1":      "carries no IPv6",
	}, map[string]string{"10.244.200.7": "10.244.1.2", "10.244.200.8": "10.244.1.3"})
}
