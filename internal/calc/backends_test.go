// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/service"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// endpoint is one in the state that a word names.
func endpoint(ip, node, state string) model.ServiceEndpoint {
	e := model.ServiceEndpoint{Addrs: []netip.Addr{addr(ip)}, Node: node}
	switch state {
	case "ready":
		e.Ready, e.Serving = true, true
	case "draining":
		e.Serving, e.Terminating = true, true
	case "gone":
		e.Terminating = true
	case "unready":
	}
	return e
}

// The node under test is worker.
func TestListsByKEP1669(t *testing.T) {
	t.Parallel()
	const local, there = "worker", "far"
	for _, test := range []struct {
		name       string
		eps        []model.ServiceEndpoint
		publishAll bool
		all, local []string
		live       int
	}{
		{name: "ready everywhere", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", local, "ready"), endpoint("10.244.2.1", there, "ready")},
			all: []string{"10.244.1.1", "10.244.2.1"}, local: []string{"10.244.1.1"}, live: 2},
		{name: "draining here, ready there", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", local, "draining"), endpoint("10.244.2.1", there, "ready")},
			all: []string{"10.244.2.1"}, local: []string{"10.244.1.1"}, live: 2},
		{name: "draining beside ready", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", local, "draining"), endpoint("10.244.1.2", local, "ready"),
			endpoint("10.244.2.1", there, "draining")}, all: []string{"10.244.1.2"}, local: []string{"10.244.1.2"}, live: 3},
		{name: "all draining", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", local, "draining"), endpoint("10.244.2.1", there, "draining")},
			all: []string{"10.244.1.1", "10.244.2.1"}, local: []string{"10.244.1.1"}, live: 2},
		{name: "gone and unready", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", local, "gone"), endpoint("10.244.2.1", there, "unready")}},
		{name: "published anyway", publishAll: true, eps: []model.ServiceEndpoint{endpoint("10.244.1.1", local, "unready"), endpoint("10.244.2.1", there, "draining")},
			all: []string{"10.244.1.1", "10.244.2.1"}, local: []string{"10.244.1.1"}, live: 2},
		{name: "twice, ready once", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", local, "draining"), endpoint("10.244.1.1", local, "ready")},
			all: []string{"10.244.1.1"}, local: []string{"10.244.1.1"}, live: 1},
	} {
		c := twoServices()
		run(c, "b", "one", "worker", "10.244.1.1", nil)
		run(c, "b", "two", "worker", "10.244.1.2", nil)
		c.Services[name("b", "web")].PublishNotReady = test.publishAll
		sl := *c.Slices[name("b", "web-x")]
		sl.Endpoints = test.eps
		c.Slices[sl.Name] = &sl
		got := Calc(c).Backends.At(front("10.96.0.1", 80))
		if len(got) != test.live {
			t.Errorf("%s: %d backends that are not gone, want %d: %v", test.name, len(got), test.live, got)
		}
		for local, want := range map[bool][]string{false: test.all, true: test.local} {
			var list []string
			for _, b := range got {
				if b.InList(local) {
					list = append(list, b.Addr.String())
				}
			}
			if !slices.Equal(list, want) {
				t.Errorf("%s: list (local %t) is %v, want %v", test.name, local, list, want)
			}
		}
	}
}

// An address that is a cluster IP by one field and external by another is a cluster IP.
func TestPolicyFollowsTheFrontend(t *testing.T) {
	t.Parallel()
	c := twoServices()
	svc := c.Services[name("b", "web")]
	svc.ExternalLocal = true
	svc.ExternalIPs = []netip.Addr{addr("192.0.2.9"), svc.ClusterIPs[0]}
	s := Calc(c)
	if v := s.Frontends.At(front("192.0.2.9", 80)); !v.External || !v.LocalPolicy {
		t.Errorf("external IP: %+v", v)
	}
	if v := s.Frontends.At(front("10.96.0.1", 80)); v.External || v.LocalPolicy {
		t.Errorf("cluster IP: %+v", v)
	}
	svc.ExternalLocal, svc.InternalLocal = false, true
	s = Calc(c)
	if v := s.Frontends.At(front("192.0.2.9", 80)); !v.External || v.LocalPolicy {
		t.Errorf("external IP: %+v", v)
	}
	want := nodestate.Service{ID: front("10.96.0.1", 80), LocalPolicy: true, Rule: s.Frontends.At(front("10.96.0.1", 80)).Rule}
	if v := s.Frontends.At(front("10.96.0.1", 80)); v != want {
		t.Errorf("cluster IP: %+v, want %+v", v, want)
	}
}

func TestHints(t *testing.T) {
	t.Parallel()
	hinted := func(ip string, ready bool, zone, node string) model.ServiceEndpoint {
		e := endpoint(ip, "far", "draining")
		if ready {
			e = endpoint(ip, "far", "ready")
		}
		var zones, nodes []string
		if zone != "" {
			zones = []string{zone}
		}
		if node != "" {
			nodes = []string{node}
		}
		e.Hints = model.HintsFor(zones, nodes)
		return e
	}
	const a, b = "10.244.2.1", "10.244.2.2"
	for _, test := range []struct {
		name string
		zone string
		eps  []model.ServiceEndpoint
		want []string
	}{
		{"own zone", "z1", []model.ServiceEndpoint{hinted(a, true, "z1", ""), hinted(b, true, "z2", "")}, []string{a}},
		{"no zone is ours", "z3", []model.ServiceEndpoint{hinted(a, true, "z1", ""), hinted(b, true, "z2", "")}, []string{a, b}},
		{"node without zone", "", []model.ServiceEndpoint{hinted(a, true, "z1", ""), hinted(b, true, "z2", "")}, []string{a, b}},
		{"a ready one without hint", "z1", []model.ServiceEndpoint{hinted(a, true, "z1", ""), hinted(b, true, "", "")}, []string{a, b}},
		{"a draining one without hint does not count", "z1", []model.ServiceEndpoint{hinted(a, true, "z1", ""), hinted(b, false, "", "")}, []string{a}},
		{"own node before own zone", "z1", []model.ServiceEndpoint{hinted(a, true, "z1", "other"), hinted(b, true, "z1", "worker")}, []string{b}},
		{"another node's, own zone", "z1", []model.ServiceEndpoint{hinted(a, true, "z1", "other"), hinted(b, true, "z2", "third")}, []string{a}},
		{"draining ones have no zone", "z1", []model.ServiceEndpoint{hinted(a, false, "z1", ""), hinted(b, false, "z2", "")}, []string{a, b}},
	} {
		c := twoServices()
		k := New()
		k.Update(c, model.AllDirty())
		node := *c.Nodes["worker"]
		node.Labels = map[string]string{service.ZoneLabel: test.zone}
		c.Nodes["worker"] = &node
		sl := *c.Slices[name("b", "web-x")]
		sl.Endpoints = test.eps
		c.Slices[sl.Name] = &sl
		d := model.Dirty{Kinds: model.KindNodes}
		d.AddSlice(sl.Name)
		s, _ := k.Update(c, d)
		var got []string
		for _, e := range s.Backends.At(front("10.96.0.1", 80)) {
			if e.InList(false) {
				got = append(got, e.Addr.String())
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// A node's new label alone moves its services.
func TestZoneChange(t *testing.T) {
	t.Parallel()
	c := twoServices()
	sl := *c.Slices[name("b", "web-x")]
	e1, e2 := endpoint("10.244.2.1", "far", "ready"), endpoint("10.244.2.2", "far", "ready")
	e1.Hints, e2.Hints = model.HintsFor([]string{"z1"}, nil), model.HintsFor([]string{"z2"}, nil)
	sl.Endpoints = []model.ServiceEndpoint{e1, e2}
	c.Slices[sl.Name] = &sl
	k := New()
	k.Update(c, model.AllDirty())
	node := *c.Nodes["worker"]
	node.Labels = map[string]string{service.ZoneLabel: "z2"}
	c.Nodes["worker"] = &node
	s, keys := k.Update(c, model.Dirty{Kinds: model.KindNodes})
	got := s.Backends.At(front("10.96.0.1", 80))
	if len(got) != 2 || !got[0].Spare || got[1].Spare || keys.Tables&nodestate.TableServices == 0 {
		t.Errorf("backends %+v, keys %x", got, keys.Tables)
	}
}

func TestSourceRanges(t *testing.T) {
	t.Parallel()
	c := twoServices()
	svc := c.Services[name("b", "web")]
	svc.LBIPs = []netip.Addr{addr("203.0.113.9")}
	svc.ExternalIPs = []netip.Addr{addr("203.0.113.9"), addr("192.0.2.9")}
	svc.Restricted = true
	k := New()
	check := func(restricted bool, want ...string) {
		t.Helper()
		var d model.Dirty
		d.AddService(svc.Name)
		s, _ := k.Update(c, d)
		if v := s.Frontends.At(front("203.0.113.9", 80)); v.Restricted != restricted || !v.External {
			t.Errorf("load balancer's frontend %+v", v)
		}
		for _, f := range []nodestate.Frontend{front("10.96.0.1", 80), front("192.0.2.9", 80)} {
			if v := s.Frontends.At(f); v.Restricted || v.ID != front("10.96.0.1", 80) {
				t.Errorf("%s: %+v", f, v)
			}
		}
		var got []string
		for _, p := range s.SourceRanges.At(front("10.96.0.1", 80)) {
			got = append(got, p.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("ranges %v, want %v", got, want)
		}
	}
	k.Update(c, model.AllDirty())
	check(true)
	svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.0/24")}
	check(true, "192.0.2.0/24", "198.51.100.0/24")
	svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("172.31.0.0/16")} // has this node
	check(true, "172.31.0.0/16", "203.0.113.9/32")
	svc.Restricted, svc.SourceRanges = false, nil
	check(false)
}

func TestExcludedFromNAT(t *testing.T) {
	t.Parallel()
	c := twoServices()
	k := New()
	k.Update(c, model.AllDirty())
	c.Settings.ExcludeFromNAT = []netip.Prefix{netip.MustParsePrefix("10.96.0.2/32"), netip.MustParsePrefix("172.31.1.8/32")}
	s, _ := k.Update(c, model.Dirty{Kinds: model.KindSettings})
	if _, ok := s.Frontends.Get(front("10.96.0.2", 80)); ok {
		t.Error("an excluded cluster IP is a frontend")
	}
	f := front("0.0.0.0", 30080)
	if v := s.Frontends.At(f); v.ID != front("10.96.0.2", 80) || len(s.Backends.At(v.ID)) != 1 {
		t.Errorf("its node port: %+v with %v", v, s.Backends.At(v.ID))
	}
	if a := s.Addrs[addr("172.31.1.8")]; a.NodePorts {
		t.Errorf("node ports at an excluded address: %+v", a)
	}
	if a := s.Addrs[addr("172.31.1.207")]; !a.NodePorts {
		t.Errorf("no node ports at %+v", a)
	}
	c.Settings.ExcludeFromNAT = nil
	if s, _ = k.Update(c, model.Dirty{Kinds: model.KindSettings}); s.String() != Calc(c).String() {
		t.Error("the state did not come back")
	}
}

func TestHealthChecks(t *testing.T) {
	t.Parallel()
	c := twoServices()
	n := name("b", "web")
	c.Services[n].HealthPort = 31000
	k := New()
	for _, test := range []struct {
		name string
		eps  []model.ServiceEndpoint
		want int
	}{
		{"none here", []model.ServiceEndpoint{endpoint("10.244.2.1", "far", "ready")}, 0},
		{"two here, one twice", []model.ServiceEndpoint{endpoint("10.244.1.1", "worker", "ready"), endpoint("10.244.1.2", "worker", "ready"),
			endpoint("10.244.1.1", "worker", "ready"), endpoint("10.244.2.1", "far", "ready")}, 2},
		{"only a draining one", []model.ServiceEndpoint{endpoint("10.244.1.1", "worker", "draining")}, 0},
	} {
		sl := *c.Slices[name("b", "web-x")]
		sl.Endpoints = test.eps
		c.Slices[sl.Name] = &sl
		var d model.Dirty
		d.AddSlice(sl.Name)
		s, _ := k.Update(c, d)
		if h := s.HealthChecks.At(n); h != (nodestate.HealthCheck{Port: 31000, Local: test.want}) || s.HealthChecks.Len() != 1 {
			t.Errorf("%s: %+v of %d", test.name, h, s.HealthChecks.Len())
		}
	}
	delete(c.Services, n)
	var d model.Dirty
	d.AddService(n)
	if s, _ := k.Update(c, d); s.HealthChecks.Len() != 0 {
		t.Error("a Service that is gone has a health check")
	}
}
