// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// advertising is a cluster of two nodes, seen from here, with a Service that has addresses of all
// kinds and one ready endpoint on here, and ranges for each kind.
func advertising() *model.Cluster {
	c := model.NewCluster()
	for name, a := range map[string]string{"here": "192.0.2.1", "there": "192.0.2.2"} {
		c.Nodes[name] = &model.Node{Name: name, Addrs: []netip.Addr{addr(a)}}
	}
	c.Local = model.Local{Node: "here", LinkMTU: 1500, HostAddrs: c.Nodes["here"].Addrs}
	c.BGPConfigs["default"] = &model.BGPConfig{Name: "default", ClusterIPs: []netip.Prefix{prefix("10.96.0.0/16")}, ExternalIPs: []netip.Prefix{prefix("198.51.100.0/24")},
		BalancerIPs: []netip.Prefix{prefix("203.0.113.0/24")}}
	name := model.Name{Namespace: "ns", Name: "web"}
	c.Services[name] = &model.Service{Name: name, ClusterIPs: []netip.Addr{addr("10.96.0.5")}, ExternalIPs: []netip.Addr{addr("198.51.100.5"), addr("192.0.2.2")},
		LBIPs: []netip.Addr{addr("203.0.113.5")}, Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 80}}}
	c.Slices[name] = endpointOn("here", true)
	return c
}

func endpointOn(node string, ready bool) *model.EndpointSlice {
	name := model.Name{Namespace: "ns", Name: "web"}
	return &model.EndpointSlice{Name: name, Service: name, Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 8080}},
		Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{addr("10.65.0.7")}, Node: node, Ready: ready, Serving: true, Terminating: !ready}}}
}

// Which addresses of Services a node advertises, as the objects change one after the other: what is
// computed from the change alone is what is computed from everything.
func TestServicesAreAdvertised(t *testing.T) {
	t.Parallel()
	name := model.Name{Namespace: "ns", Name: "web"}
	service := func(c *model.Cluster, f func(*model.Service)) {
		s := *c.Services[name]
		f(&s)
		c.Services[name] = &s
	}
	config := func(c *model.Cluster, f func(*model.BGPConfig)) {
		b := *c.BGPConfigs["default"]
		f(&b)
		c.BGPConfigs["default"] = &b
	}
	const ranges = "10.96.0.0/16 198.51.100.0/24 203.0.113.0/24"
	c, k := advertising(), New()
	first, _ := k.Update(c, model.AllDirty())
	// What is no Service's in a range that routers send packets for ends on the node.
	for _, p := range strings.Fields(ranges) {
		if r := first.Routes[prefix(p)]; r != (nodestate.Route{Pool: true}) || first.Settings.PoolRoutes[prefix(p)] != 1500 {
			t.Errorf("route of %s: %+v, host's %v", p, r, first.Settings.PoolRoutes)
		}
	}
	for _, x := range []struct {
		name   string
		change func(*model.Dirty)
		want   string
	}{
		{"policy Cluster", func(*model.Dirty) {}, ranges},
		{"policy Local, with an endpoint", func(d *model.Dirty) {
			service(c, func(s *model.Service) { s.ExternalLocal = true })
			d.AddService(name)
		}, "10.96.0.0/16 10.96.0.5/32 198.51.100.0/24 198.51.100.5/32 203.0.113.0/24 203.0.113.5/32"},
		{"whose endpoint is elsewhere", func(d *model.Dirty) { c.Slices[name] = endpointOn("there", true); d.AddSlice(name) }, ranges},
		{"is here, and ends", func(d *model.Dirty) { c.Slices[name] = endpointOn("here", false); d.AddSlice(name) }, ranges},
		{"is here again", func(d *model.Dirty) { c.Slices[name] = endpointOn("here", true); d.AddSlice(name) },
			"10.96.0.0/16 10.96.0.5/32 198.51.100.0/24 198.51.100.5/32 203.0.113.0/24 203.0.113.5/32"},
		{"of a node that is left out", func(d *model.Dirty) {
			c.Nodes["here"] = &model.Node{Name: "here", Addrs: c.Nodes["here"].Addrs, Labels: map[string]string{model.LabelNoBalancers: ""}}
			d.Add(model.KindNodes)
		}, ""},
		{"and that is not any more", func(d *model.Dirty) {
			c.Nodes["here"] = &model.Node{Name: "here", Addrs: c.Nodes["here"].Addrs}
			d.Add(model.KindNodes)
		}, "10.96.0.0/16 10.96.0.5/32 198.51.100.0/24 198.51.100.5/32 203.0.113.0/24 203.0.113.5/32"},
		{"balancers one by one, policy Cluster, endpoint elsewhere", func(d *model.Dirty) {
			config(c, func(b *model.BGPConfig) { b.BalancersSingly = true })
			service(c, func(s *model.Service) { s.ExternalLocal = false })
			c.Slices[name] = endpointOn("there", true)
			d.AddService(name)
			d.AddSlice(name)
			d.Add(model.KindBGP)
		}, "10.96.0.0/16 198.51.100.0/24 203.0.113.5/32"},
		{"without an endpoint", func(d *model.Dirty) { delete(c.Slices, name); d.AddSlice(name) }, "10.96.0.0/16 198.51.100.0/24"},
		{"single addresses", func(d *model.Dirty) {
			config(c, func(b *model.BGPConfig) {
				b.BalancersSingly, b.ClusterIPs, b.ExternalIPs, b.BalancerIPs = false, nil, []netip.Prefix{prefix("198.51.100.5/32"), prefix("198.51.100.6/32")}, []netip.Prefix{prefix("203.0.113.5/32")}
			})
			c.Slices[name] = endpointOn("there", true)
			d.AddSlice(name)
			d.Add(model.KindBGP)
		}, "198.51.100.5/32 203.0.113.5/32"},
		// A node's address is none of a Service, whatever this one says.
		{"a node's address", func(d *model.Dirty) {
			config(c, func(b *model.BGPConfig) { b.ExternalIPs, b.BalancerIPs = []netip.Prefix{prefix("192.0.2.2/32")}, nil })
			d.Add(model.KindBGP)
		}, ""},
		{"another kind of address", func(d *model.Dirty) {
			config(c, func(b *model.BGPConfig) { b.ExternalIPs = []netip.Prefix{prefix("203.0.113.5/32")} })
			d.Add(model.KindBGP)
		}, ""},
		{"no Service", func(d *model.Dirty) {
			config(c, func(b *model.BGPConfig) { b.ExternalIPs = []netip.Prefix{prefix("198.51.100.5/32")} })
			delete(c.Services, name)
			d.AddService(name)
			d.Add(model.KindBGP)
		}, ""},
	} {
		var d model.Dirty
		x.change(&d)
		s, _ := k.Update(c, d)
		var got []string
		for _, p := range s.BGP.Advertise {
			got = append(got, p.String())
		}
		if text := strings.Join(got, " "); text != x.want {
			t.Errorf("%s: advertised are %s, want %s", x.name, text, x.want)
		}
		for _, p := range s.BGP.Advertise {
			if !slices.ContainsFunc(s.BGP.Keep, func(k netip.Prefix) bool { return k.Contains(p.Addr()) }) {
				t.Errorf("%s: what others advertise of %s would be a route of this node", x.name, p)
			}
		}
		if whole := Calc(c); !nodestate.Equal(s, whole) {
			t.Errorf("%s: - from the change, + from the whole\n%s", x.name, nodestate.Diff(s, whole))
		}
	}
}
