// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func backendAddrs(s *nodestate.State, id nodestate.Frontend) []string {
	var out []string
	for _, b := range s.Backends.At(id) {
		out = append(out, b.Addr.String())
	}
	return out
}

// A pod whose interface is gone takes nothing more, before its EndpointSlice says so; unless it is
// all there is.
func TestEndpointWithoutInterfaceHasEnded(t *testing.T) {
	t.Parallel()
	c := twoServices()
	run(c, "b", "web", "worker", "10.244.1.1", nil)
	web := front("10.96.0.1", 80)
	sl := *c.Slices[name("b", "web-x")]
	sl.Endpoints = []model.ServiceEndpoint{endpoint("10.244.1.1", "worker", "ready"), endpoint("10.244.2.1", "far", "draining"),
		endpoint("172.31.1.207", "worker", "ready")} // the last one has the node's network
	c.Slices[sl.Name] = &sl
	k := New()
	s, _ := k.Update(c, model.AllDirty())
	if got, want := backendAddrs(s, web), []string{"10.244.1.1", "10.244.2.1", "172.31.1.207"}; !slices.Equal(got, want) {
		t.Fatalf("backends %v, want %v", got, want)
	}
	ep := c.Local.Endpoints[addr("10.244.1.1")]
	local := func(change func()) *nodestate.State {
		change()
		s, _ := k.Update(c, model.Dirty{Kinds: model.KindLocal})
		return s
	}
	s = local(func() { delete(c.Local.Endpoints, addr("10.244.1.1")) })
	if got, want := backendAddrs(s, web), []string{"10.244.2.1", "172.31.1.207"}; !slices.Equal(got, want) {
		t.Errorf("without its interface: backends %v, want %v", got, want)
	}
	s = local(func() { c.Local.Endpoints[addr("10.244.1.1")] = ep })
	if got := backendAddrs(s, web); len(got) != 3 {
		t.Errorf("its interface is back: backends %v", got)
	}
	sl2 := sl
	sl2.Endpoints = sl.Endpoints[:1]
	c.Slices[sl.Name] = &sl2
	delete(c.Local.Endpoints, addr("10.244.1.1"))
	var d model.Dirty
	d.AddSlice(sl.Name)
	d.Add(model.KindLocal)
	s, _ = k.Update(c, d)
	if got := backendAddrs(s, web); !slices.Equal(got, []string{"10.244.1.1"}) {
		t.Errorf("nothing else is there: backends %v", got)
	}
}

// With policy Local the node that answers for an address leads new connections to other nodes when
// it has no ready endpoint, and only there.
func TestAnswererWithoutReadyEndpointsUsesOthers(t *testing.T) {
	t.Parallel()
	lb := addr("172.31.1.241")
	for _, test := range []struct {
		name  string
		eps   []model.ServiceEndpoint
		alter func(*model.Cluster)
		local bool // the policy holds at the address
	}{
		{name: "ready here", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", "worker", "ready"), endpoint("10.244.0.9", "control", "draining")}, local: true},
		{name: "draining here, ready there", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", "worker", "draining"), endpoint("10.244.2.1", "far", "ready")}},
		{name: "draining everywhere", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", "worker", "draining"), endpoint("10.244.2.1", "far", "draining")}, local: true},
		{name: "ended here, ready there", eps: []model.ServiceEndpoint{endpoint("10.244.1.2", "worker", "ready"), endpoint("10.244.2.1", "far", "ready")}},
		{name: "ended here, draining there", eps: []model.ServiceEndpoint{endpoint("10.244.1.2", "worker", "ready"), endpoint("10.244.2.1", "far", "draining")}, local: true},
		{name: "ready outside of the cluster", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", "worker", "draining"), endpoint("192.0.2.1", "", "ready")}, local: true},
		{name: "another node answers", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", "worker", "draining"), endpoint("10.244.2.1", "far", "ready")},
			alter: func(c *model.Cluster) { c.Nodes["worker"].Labels = map[string]string{model.LabelNoBalancers: ""} }, local: true},
		{name: "nobody announces it", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", "worker", "draining"), endpoint("10.244.2.1", "far", "ready")},
			alter: func(c *model.Cluster) { delete(c.Pools, "lb") }, local: true},
		{name: "Maglev", eps: []model.ServiceEndpoint{endpoint("10.244.1.1", "worker", "draining"), endpoint("10.244.2.1", "far", "ready")},
			alter: func(c *model.Cluster) { c.Services[name("b", "web")].Maglev = true }},
	} {
		c := twoServices()
		c.Pools["lb"] = &model.Pool{Name: "lb", CIDR: prefix("172.31.1.240/28"), LoadBalancer: true, BlockBits: 28}
		c.Nodes["control"].Subnets, c.Nodes["far"].Subnets = nil, nil
		here(c, "10.244.1.1")
		web := c.Services[name("b", "web")]
		web.LBIPs, web.ExternalLocal = []netip.Addr{lb}, true
		web.ExternalIPs, web.Ports[0].NodePort = []netip.Addr{addr("192.0.2.7")}, 30100
		sl := *c.Slices[name("b", "web-x")]
		sl.Endpoints = test.eps
		c.Slices[sl.Name] = &sl
		if test.alter != nil {
			test.alter(c)
		}
		s := Calc(c)
		at := func(a string, port uint16) nodestate.Service {
			v, ok := s.Frontends.Get(front(a, port))
			if !ok {
				t.Fatalf("%s: no frontend at %s:%d", test.name, a, port)
			}
			return v
		}
		if got := at(lb.String(), 80).LocalPolicy; got != test.local {
			t.Errorf("%s: the policy holds at the address: %t, want %t", test.name, got, test.local)
		}
		if maglev := web.Maglev; at("192.0.2.7", 80).LocalPolicy == maglev || at("0.0.0.0", 30100).LocalPolicy == maglev {
			t.Errorf("%s: the policy holds elsewhere: %t", test.name, !maglev)
		}
	}
}
