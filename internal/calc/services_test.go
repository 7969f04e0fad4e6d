// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func name(ns, n string) model.Name { return model.Name{Namespace: ns, Name: n} }

func front(ip string, port uint16) nodestate.Frontend {
	return nodestate.Frontend{Addr: addr(ip), Port: port, Proto: model.ProtocolTCP}
}

// twoServices have one external IP in common.
func twoServices() *model.Cluster {
	c := base()
	for _, s := range []struct{ ns, name, ip string }{{"b", "web", "10.96.0.1"}, {"a", "zeta", "10.96.0.2"}} {
		c.Services[name(s.ns, s.name)] = &model.Service{Name: name(s.ns, s.name), ClusterIPs: []netip.Addr{addr(s.ip)},
			ExternalIPs: []netip.Addr{addr("192.0.2.1")}, Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 80, NodePort: 30080}}}
		sl := name(s.ns, s.name+"-x")
		c.Slices[sl] = &model.EndpointSlice{Name: sl, Service: name(s.ns, s.name), Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 8080}},
			Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{addr("10.244.0.9")}, Node: "control", Ready: true, Serving: true}}}
	}
	return c
}

func TestSmallestNameHoldsSharedFrontends(t *testing.T) {
	t.Parallel()
	c := twoServices()
	k := New()
	s, _ := k.Update(c, model.AllDirty())
	for _, f := range []nodestate.Frontend{front("192.0.2.1", 80), front("0.0.0.0", 30080)} {
		if got := s.Frontends.At(f).ID; got != front("10.96.0.2", 80) {
			t.Errorf("%s belongs to %s, want a/zeta", f, got)
		}
	}
	delete(c.Services, name("a", "zeta"))
	var d model.Dirty
	d.AddService(name("a", "zeta"))
	s, keys := k.Update(c, d)
	for _, f := range []nodestate.Frontend{front("192.0.2.1", 80), front("0.0.0.0", 30080)} {
		if got := s.Frontends.At(f).ID; got != front("10.96.0.1", 80) {
			t.Errorf("after the removal %s belongs to %s, want b/web", f, got)
		}
	}
	if keys.Tables != nodestate.TableServices|nodestate.TableRules {
		t.Errorf("keys %x", keys.Tables)
	}
}

func TestClusterIPIsNotTakenByExternalIP(t *testing.T) {
	t.Parallel()
	c := twoServices()
	c.Services[name("a", "zeta")].ExternalIPs = []netip.Addr{addr("10.96.0.1")} // the cluster IP of b/web
	if got := Calc(c).Frontends.At(front("10.96.0.1", 80)).ID; got != front("10.96.0.1", 80) {
		t.Errorf("the cluster IP of b/web leads to %s", got)
	}
}

func TestServiceWithTakenClusterIPHasNoFrontends(t *testing.T) {
	t.Parallel()
	c := twoServices()
	c.Services[name("b", "web")].ClusterIPs = []netip.Addr{addr("10.96.0.2")} // that of a/zeta
	c.Services[name("b", "web")].ExternalIPs = []netip.Addr{addr("192.0.2.2")}
	s := Calc(c)
	if v, ok := s.Frontends.Get(front("192.0.2.2", 80)); ok {
		t.Errorf("an external IP of b/web leads to %s", v.ID)
	}
	if r := s.Rules.At(s.Frontends.At(front("10.96.0.2", 80)).Rule); r.Name != "a/zeta" {
		t.Errorf("the cluster IP is held by %s", r)
	}
}

func TestOneSliceChangesOnlyItsService(t *testing.T) {
	t.Parallel()
	c := twoServices()
	run(c, "b", "new", "worker", "10.244.1.9", nil)
	k := New()
	before, _ := k.Update(c, model.AllDirty())
	sl := *c.Slices[name("b", "web-x")]
	sl.Endpoints = append([]model.ServiceEndpoint{{Addrs: []netip.Addr{addr("10.244.1.9")}, Node: "worker", Ready: true}}, sl.Endpoints...)
	c.Slices[sl.Name] = &sl
	var d model.Dirty
	d.AddSlice(sl.Name)
	after, keys := k.Update(c, d)
	if keys.Tables != nodestate.TableServices {
		t.Errorf("keys %x, want services only", keys.Tables)
	}
	want := []nodestate.Backend{{Addr: addr("10.244.0.9"), Port: 8080}, {Addr: addr("10.244.1.9"), Port: 8080, Local: true}}
	got := after.Backends.At(front("10.96.0.1", 80))
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("backends %v, want %v", got, want)
	}
	if len(before.Backends.At(front("10.96.0.1", 80))) != 1 {
		t.Error("the earlier state changed")
	}
}

func TestHostPortsOfLocalPodsOnly(t *testing.T) {
	t.Parallel()
	c := base()
	pp := model.PodPort{Protocol: model.ProtocolTCP, Port: 80, HostPort: 8080}
	run(c, "default", "b", "worker", "10.244.1.2", nil, pp)
	run(c, "default", "a", "worker", "10.244.1.1", nil, pp)
	run(c, "default", "far", "far", "10.244.2.1", nil, model.PodPort{Protocol: model.ProtocolTCP, Port: 80, HostPort: 8081})
	run(c, "default", "moved", "worker", "10.244.1.3", nil, model.PodPort{Protocol: model.ProtocolTCP, Port: 80, HostPort: 8082})
	editPod(c, name("default", "moved"), func(p *model.Pod) { p.Node = "far" }) // its namesake's interface is still here
	s := Calc(c)
	if s.Frontends.Len() != 1 {
		t.Fatalf("frontends: %v", s.Frontends)
	}
	f := front("0.0.0.0", 8080)
	if v := s.Frontends.At(f); !v.LocalOnly || v.ID != f || s.Rules.At(v.Rule).Name != "default/a" {
		t.Errorf("host port: %+v by %s", v, s.Rules.At(v.Rule))
	}
	if b := s.Backends.At(f); len(b) != 1 || b[0] != (nodestate.Backend{Addr: addr("10.244.1.1"), Port: 80, Local: true}) {
		t.Errorf("backends %v", b)
	}
}

// The endpoints of the API server name no node.
func TestEndpointWithoutNodeIsWhereItsAddressIs(t *testing.T) {
	t.Parallel()
	c := twoServices()
	sl := *c.Slices[name("a", "zeta-x")]
	sl.Endpoints = []model.ServiceEndpoint{{Addrs: []netip.Addr{addr("172.31.1.207"), addr("10.244.1.7"), addr("172.31.1.8")}, Ready: true}}
	c.Slices[sl.Name] = &sl
	k := New()
	check := func(d model.Dirty, want ...bool) {
		t.Helper()
		s, _ := k.Update(c, d)
		got := s.Backends.At(front("10.96.0.2", 80))
		if len(got) != 3 || got[0].Local != want[0] || got[1].Local != want[1] || got[2].Local != want[2] {
			t.Errorf("backends %v, want local %v", got, want)
		}
	}
	check(model.AllDirty(), false, false, true)
	run(c, "a", "new", "worker", "10.244.1.7", nil)
	check(model.Dirty{Kinds: model.KindLocal}, true, false, true)
}
