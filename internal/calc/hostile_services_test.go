// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/calc/service"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// tenants is a cluster with a Service of a victim, which has one endpoint, and none of anybody
// else.
func tenants() *model.Cluster {
	c := base()
	addTenantService(c, "victim", "web", 1000, "10.96.0.99", 1)
	addEndpoints(c, "victim", "web", 1, 1)
	return c
}

// addTenantService adds a Service with n ports.
func addTenantService(c *model.Cluster, ns, name string, created int64, ip string, n int) *model.Service {
	s := &model.Service{Name: model.Name{Namespace: ns, Name: name}, Created: created, ClusterIPs: []netip.Addr{addr(ip)}}
	for i := range n {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.ProtocolTCP, Port: uint16(80 + i)})
	}
	c.Services[s.Name] = s
	return s
}

// addEndpoints adds a slice with n endpoints, on the ports of a Service.
func addEndpoints(c *model.Cluster, ns, service string, ports, n int) {
	sl := &model.EndpointSlice{Name: model.Name{Namespace: ns, Name: service}, Service: model.Name{Namespace: ns, Name: service}}
	for i := range ports {
		sl.Ports = append(sl.Ports, model.EndpointPort{Name: fmt.Sprint("p", i), Protocol: model.ProtocolTCP, Port: uint16(8000 + i)})
	}
	for i := range n {
		sl.Endpoints = append(sl.Endpoints, model.ServiceEndpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)})}, Node: "far", Ready: true})
	}
	c.Slices[sl.Name] = sl
}

// keepsService fails unless the victim's Service is carried, and no table has more than it holds.
func keepsService(t *testing.T, s *nodestate.State) {
	t.Helper()
	f := nodestate.Frontend{Addr: addr("10.96.0.99"), Port: 80, Proto: model.ProtocolTCP}
	if _, ok := s.Frontends.Get(f); !ok {
		t.Errorf("the victim's Service has no frontend")
	}
	if n := len(s.Backends.At(f)); n != 1 {
		t.Errorf("the victim's Service has %d backends", n)
	}
	backends, ranges := 0, 0
	for _, list := range s.Backends.All() {
		backends += len(list)
	}
	for _, list := range s.SourceRanges.All() {
		ranges += len(list)
	}
	if s.Frontends.Len() > service.MaxFrontends || backends > service.MaxBackends || ranges > service.MaxRanges {
		t.Errorf("%d frontends, %d backends, %d source ranges: more than the tables hold", s.Frontends.Len(), backends, ranges)
	}
}

// A Service of 300 external addresses and 300 ports has 90,000 frontends.
func TestHostileFrontendsOfOneNamespace(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a Service of 300 external addresses and 300 ports takes all frontends", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := tenants()
	for i := range 4 { // of which some fit
		s := addTenantService(c, "attacker", fmt.Sprint("wide-", i), 1, fmt.Sprint("10.96.1.", i), 300>>i)
		for j := range 300 {
			s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{203, byte(i), byte(j >> 8), byte(j)}))
		}
	}
	s := Calc(c)
	keepsService(t, s)
	if s.Frontends.Len() < 20_000 {
		t.Errorf("%d frontends: what nobody else asks for is the attacker's to use", s.Frontends.Len())
	}
	if len(s.Overdrawn) != 1 || s.Overdrawn[0].Namespace != "attacker" || s.Overdrawn[0].Table != "frontends of Services" {
		t.Errorf("overdrawn: %v", s.Overdrawn)
	}
}

// A pod may ask for as many host ports as there are ports.
func TestHostileHostPortsOfOneNamespace(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "pods with tens of thousands of host ports take all frontends", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := tenants()
	run(c, "victim", "web", "worker", "10.244.1.70", nil, model.PodPort{Protocol: model.ProtocolTCP, Port: 8080, HostPort: 8080})
	for i, proto := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP} {
		var ports []model.PodPort
		for n := 20_000; n < 60_000; n++ {
			ports = append(ports, model.PodPort{Protocol: proto, Port: 80, HostPort: uint16(n)})
		}
		run(c, "attacker", fmt.Sprint("wide-", i), "worker", fmt.Sprint("10.244.1.", 66+i), nil, ports...)
	}
	k := New()
	s, _ := k.Update(c, model.AllDirty())
	keepsService(t, s)
	if _, ok := s.Frontends.Get(nodestate.Frontend{Addr: netip.IPv4Unspecified(), Port: 8080, Proto: model.ProtocolTCP}); !ok {
		t.Error("the victim's host port has no frontend")
	}
	if s.Frontends.Len() < 40_000 {
		t.Errorf("%d frontends: what nobody else asks for is the attacker's to use", s.Frontends.Len())
	}
	if len(s.Overdrawn) != 1 || s.Overdrawn[0].Namespace != "attacker" || s.Overdrawn[0].Refused != 2 {
		t.Errorf("overdrawn: %v", s.Overdrawn)
	}
	var d model.Dirty // one that is refused goes with its interface
	for _, name := range []string{"wide-0", "wide-1", "wide-2"} {
		pod := model.Name{Namespace: "attacker", Name: name}
		if k.services.Quota.Refused[service.Source{HostPorts: true, Name: pod}] {
			before := c.Pods.Get(pod)
			delete(c.Local.Endpoints, before.Addrs[0])
			c.Pods.Delete(pod)
			d.AddPod(pod, before)
		}
	}
	d.Add(model.KindLocal)
	if s, _ = k.Update(c, d); len(s.Overdrawn) > 0 || !nodestate.Equal(s, Calc(c)) {
		t.Errorf("when they are gone: overdrawn %v", s.Overdrawn)
	}
}

// One slice of 1,000 endpoints, behind 400 ports.
func TestHostileBackendsOfOneNamespace(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a Service of 1,000 endpoints and 400 ports takes all backends", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := tenants()
	addTenantService(c, "attacker", "deep", 1, "10.96.1.1", 400)
	addEndpoints(c, "attacker", "deep", 400, 1000)
	keepsService(t, Calc(c))
}

// loadBalancerSourceRanges of 300 ranges on 300 ports.
func TestHostileSourceRangesOfOneNamespace(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a Service of 300 source ranges and 300 ports takes all source ranges", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := tenants()
	s := addTenantService(c, "attacker", "ranges", 1, "10.96.1.1", 300)
	s.LBIPs, s.Restricted = []netip.Addr{addr("192.0.2.1")}, true
	for i := range 300 {
		s.SourceRanges = append(s.SourceRanges, network(i))
	}
	keepsService(t, Calc(c))
}

// Tables of consistent hashing have 655,373 slots where there are more than 1,000 endpoints.
func TestHostileMaglevTables(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "Services of 1,001 endpoints ask for gigabytes of Maglev tables", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := tenants()
	for i := range 2 {
		name := fmt.Sprint("maglev-", i)
		s := addTenantService(c, "attacker", name, 1, fmt.Sprint("10.96.1.", i), 100)
		s.Maglev, s.ExternalIPs = true, []netip.Addr{addr(fmt.Sprint("203.0.113.", i))}
		addEndpoints(c, "attacker", name, 100, 1001)
	}
	s := Calc(c)
	keepsService(t, s)
	tables := map[nodestate.Frontend]bool{}
	for _, v := range s.Frontends.All() {
		if v.Maglev {
			tables[v.ID] = true
		}
	}
	if slots := 655373 * len(tables); slots == 0 || slots > service.MaxMaglevSlots {
		t.Errorf("%d slots", slots)
	}
}

// Which Services are refused follows from the objects alone: whatever came first, and after each
// change.
func TestServicesBeyondTheTablesFollowTheObjects(t *testing.T) {
	t.Parallel()
	c := tenants()
	c.Settings.MaxFrontends = 1024
	k := New()
	k.Update(c, model.AllDirty())
	w := newWorld(77)
	for step := range 300 {
		ns, i := pick(w, "a", "b", "c"), w.IntN(12)
		name := model.Name{Namespace: ns, Name: fmt.Sprint("s-", i)}
		if w.IntN(3) == 0 {
			delete(c.Services, name)
		} else {
			addTenantService(c, ns, name.Name, int64(w.IntN(5)), fmt.Sprintf("10.96.%d.%d", 2+int(ns[0]), i), 1+w.IntN(pick(w, 5, 100, 400)))
		}
		var d model.Dirty
		d.AddService(name)
		got, _ := k.Update(c, d)
		if want := Calc(c); !nodestate.Equal(got, want) {
			t.Fatalf("step %d:\n%s", step, nodestate.Diff(want, got))
		}
		if got.Frontends.Len() > c.Settings.MaxFrontends {
			t.Fatalf("step %d: %d frontends", step, got.Frontends.Len())
		}
	}
	if len(k.services.Quota.Refused) == 0 {
		t.Error("nothing is refused at the end: the world is too plain")
	}
	c.Settings.MaxFrontends = 1 << 16
	var d model.Dirty
	d.Add(model.KindSettings)
	if s, _ := k.Update(c, d); len(s.Overdrawn) > 0 || !nodestate.Equal(s, Calc(c)) {
		t.Errorf("with room for all: %v", s.Overdrawn)
	}
}
