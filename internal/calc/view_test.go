// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// dual is a cluster of two families, in which not everything has both: the control node has no IPv6
// address, the pod old and some Services have one family.
func dual() *model.Cluster {
	c := base()
	c.Nodes["worker"].Addrs = append(c.Nodes["worker"].Addrs, addr("fd00:31:1::207"))
	c.Nodes["far"].Addrs = append(c.Nodes["far"].Addrs, addr("fd00:31:2::20"), addr("2001:db8::9"))
	c.Nodes["near"] = &model.Node{Name: "near", Addrs: []netip.Addr{addr("fd00:31:1::9"), addr("172.31.3.9")}}
	c.Local.HostAddrs = append(c.Local.HostAddrs, addr("fd00:31:1::207"), addr("fd00:50::1"))
	c.Local.Subnets = append(c.Local.Subnets, prefix("fd00:31:1::/64"))
	c.Pools["six"] = &model.Pool{Name: "six", CIDR: prefix("fd00:10:244::/56"), VXLAN: model.EncapCrossSubnet, NATOutgoing: true, BlockBits: 122, Workload: true}
	for cidr, node := range map[string]string{"fd00:10:244::/122": "control", "fd00:10:244:1::/122": "worker", "fd00:10:244:2::/122": "far",
		"fd00:10:244:3::/122": "near", "10.244.3.0/26": "near"} {
		c.Blocks[prefix(cidr)] = &model.Block{CIDR: prefix(cidr), Node: node}
	}
	c.ServiceCIDRs = []netip.Prefix{prefix("10.96.0.0/16"), prefix("fd00:10:96::/112")}
	c.Settings.DSROptOut = []netip.Prefix{prefix("10.0.0.0/8"), prefix("2001:db8::/32")}
	pod := func(ns, name, node string, ips ...string) {
		run(c, ns, name, node, ips[0], app(name), model.PodPort{Name: "http", Protocol: model.ProtocolTCP, Port: 8080, HostPort: 9000})
		p := c.Pods.Get(model.Name{Namespace: ns, Name: name})
		p.Addrs = addrList(ips...)
		c.Pods.Put(p)
		if ep := c.Local.Endpoints[addr(ips[0])]; ep != nil {
			ep.Addrs = p.Addrs
			for _, a := range p.Addrs {
				c.Local.Endpoints[a] = ep
			}
		}
	}
	pod("default", "web", "worker", "10.244.1.1", "fd00:10:244:1::1")
	pod("default", "old", "worker", "10.244.1.2")
	pod("default", "client", "far", "10.244.2.1", "fd00:10:244:2::1")
	pod("default", "fixed", "far", "10.244.77.1", "fd00:10:244:77::1")
	editPod(c, model.Name{Namespace: "default", Name: "fixed"}, func(p *model.Pod) { p.Asked = p.Addrs })
	c.Reservations = []netip.Prefix{prefix("10.244.77.0/24"), prefix("fd00:10:244:77::1/128")}
	dualServices(c)
	web := model.Selector{Namespace: "default", Pods: equals("app", "web")}
	n := model.Name{Namespace: "default", Name: "web"}
	c.Policies[policyID("default", "web")] = &model.Policy{Kind: "NetworkPolicy", Tier: "default", Name: n, Subject: web, AppliesIngress: true, Ingress: []model.Rule{
		{Peers: []model.Peer{{Pods: &model.Selector{Namespace: "default", Pods: equals("app", "client")}}}, Ports: []model.PortRange{tcp(8080, 8080)}},
		{Peers: []model.Peer{{CIDR: prefix("2001:db8::/32"), Except: []netip.Prefix{prefix("2001:db8:1::/48")}}, {CIDR: prefix("192.168.0.0/16")}}}}}
	return c
}

// dualServices gives dual Services: of both families, of IPv6 alone, and with endpoints of one
// family only.
func dualServices(c *model.Cluster) {
	add := func(name string, s model.Service, four, six []string) {
		s.Name = model.Name{Namespace: "default", Name: name}
		c.Services[s.Name] = &s
		for suffix, ips := range map[string][]string{"-4": four, "-6": six} {
			n := model.Name{Namespace: "default", Name: name + suffix}
			sl := &model.EndpointSlice{Name: n, Service: s.Name, Ports: []model.EndpointPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080}}}
			for i, ip := range ips {
				sl.Endpoints = append(sl.Endpoints, model.ServiceEndpoint{Addrs: []netip.Addr{addr(ip)}, Node: []string{"worker", "far"}[i], Ready: true, Serving: true})
			}
			c.Slices[n] = sl
		}
	}
	four, six := []string{"10.244.1.1", "10.244.2.1"}, []string{"fd00:10:244:1::1", "fd00:10:244:2::1"}
	http := []model.ServicePort{{Name: "http", Protocol: model.ProtocolTCP, Port: 80, NodePort: 30080}}
	add("web", model.Service{ClusterIPs: []netip.Addr{addr("10.96.0.10"), addr("fd00:10:96::10")}, Ports: http, ExternalLocal: true, HealthPort: 32000,
		ExternalIPs: []netip.Addr{addr("198.51.100.1"), addr("2001:db8:5::1")}, LBIPs: []netip.Addr{addr("192.0.2.80"), addr("2001:db8:2::80")},
		Restricted: true, SourceRanges: []netip.Prefix{prefix("203.0.113.0/24"), prefix("fd00:31:1::/64"), prefix("2001:db8:3::/48")}}, four, six)
	plain := []model.ServicePort{{Name: "http", Protocol: model.ProtocolTCP, Port: 80}}
	add("six", model.Service{ClusterIPs: []netip.Addr{addr("fd00:10:96::11")}, Ports: plain}, nil, six)
	add("half", model.Service{ClusterIPs: []netip.Addr{addr("fd00:10:96::12"), addr("10.96.0.12")}, Ports: plain}, four, nil)
}

// four is the part of a state that is about IPv4, as text; what is common to both families is left
// out.
func four(s *nodestate.State) string {
	out := nodestate.New()
	for a, v := range s.Addrs {
		if a.Is4() {
			v.Ingress, v.Egress = nodestate.Isolation{}, nodestate.Isolation{}
			out.Addrs[a] = v
		}
	}
	for p, v := range s.Routes {
		if p.Addr().Is4() {
			out.Routes[p] = v
		}
	}
	fronts, backs, ranges, rules := out.Frontends.Edit(), out.Backends.Edit(), out.SourceRanges.Edit(), out.Rules.Edit()
	for f, v := range s.Frontends.All() {
		if f.Addr.Is4() {
			fronts.Set(f, v)
			rules.Set(v.Rule, s.Rules.At(v.Rule))
		}
	}
	for f, v := range s.Backends.All() {
		if f.Addr.Is4() {
			backs.Set(f, v)
		}
	}
	for f, v := range s.SourceRanges.All() {
		if f.Addr.Is4() {
			ranges.Set(f, v)
		}
	}
	out.Frontends, out.Backends, out.SourceRanges, out.Rules = fronts.Map(), backs.Map(), ranges.Map(), rules.Map()
	for n, c := range s.Clients {
		if c.IPv4.IsValid() {
			out.Clients[n] = nodestate.Client{IPv4: c.IPv4}
		}
	}
	for a := range s.Announced {
		if a.Is4() {
			out.Announced[a] = true
		}
	}
	return out.String()
}

// IPv4 is carried as if there were no IPv6, whatever of it the cluster has.
func TestIPv6ChangesNothingOfIPv4(t *testing.T) {
	t.Parallel()
	carried := 0
	for seed := range 60 {
		c := newWorld(uint64(3000 + seed)).fill()
		with := Calc(c)
		c.Settings.IPv6Support = false
		without := Calc(c)
		if with.Settings.IPv6 {
			carried++
		}
		if a, b := four(with), four(without); a != b {
			t.Fatalf("seed %d: with IPv6\n%s\nwithout\n%s", seed, a, b)
		}
		holdsOnly4(t, without)
	}
	if carried < 20 || carried == 60 {
		t.Fatalf("%d of 60 worlds carry IPv6", carried)
	}
}

// holdsOnly4 fails for anything of IPv6 in a state.
func holdsOnly4(t *testing.T, s *nodestate.State) {
	t.Helper()
	addrs := slices.Concat(slices.Collect(maps.Keys(s.Addrs)), slices.Collect(s.Peers.Keys()), slices.Collect(maps.Keys(s.Announced)), slices.Collect(maps.Keys(s.Watched)))
	for f := range s.Frontends.All() {
		addrs = append(addrs, f.Addr)
	}
	for _, of := range s.Backends.All() {
		for _, b := range of {
			addrs = append(addrs, b.Addr)
		}
	}
	prefixes := slices.Concat(slices.Collect(maps.Keys(s.Routes)), slices.Collect(maps.Keys(s.PeerCIDRs)), slices.Collect(maps.Keys(s.Settings.PoolRoutes)), s.Settings.DSROptOut)
	for _, of := range s.SourceRanges.All() {
		prefixes = append(prefixes, of...)
	}
	for _, p := range prefixes {
		addrs = append(addrs, p.Addr())
	}
	for _, c := range s.Clients {
		if c.IPv6.IsValid() {
			t.Errorf("a client has %s", c.IPv6)
		}
	}
	for _, a := range addrs {
		if a.Is6() {
			t.Errorf("%s is in a table", a)
		}
	}
	if s.Settings.IPv6 || s.Settings.Node6.IsValid() {
		t.Errorf("settings say IPv6=%t node %s", s.Settings.IPv6, s.Settings.Node6)
	}
}

func TestWhereIPv6IsCarried(t *testing.T) {
	t.Parallel()
	six := &model.Pool{Name: "six", CIDR: prefix("fd00::/64"), Disabled: true}
	for what, tt := range map[string]struct {
		change func(*model.Cluster)
		want   bool
	}{
		"neither":              {func(*model.Cluster) {}, false},
		"a pool":               {func(c *model.Cluster) { c.Pools["six"] = six }, true},
		"an address":           {func(c *model.Cluster) { c.Nodes["worker"].Addrs = append(c.Nodes["worker"].Addrs, addr("fd00:31::1")) }, true},
		"another's address":    {func(c *model.Cluster) { c.Nodes["far"].Addrs = append(c.Nodes["far"].Addrs, addr("fd00:31::1")) }, false},
		"a Service":            {func(c *model.Cluster) { dualServices(c) }, false},
		"a pool, switched off": {func(c *model.Cluster) { c.Pools["six"], c.Settings.IPv6Support = six, false }, false},
	} {
		c := base()
		tt.change(c)
		if s := Calc(c); s.Settings.IPv6 != tt.want {
			t.Errorf("%s: IPv6=%t", what, s.Settings.IPv6)
		} else if !tt.want {
			holdsOnly4(t, s)
		}
	}
}

func TestMTUsOfTwoFamilies(t *testing.T) {
	t.Parallel()
	four, six, services := prefix("10.244.0.0/16"), prefix("fd00:10:244::/56"), prefix("fd00:10:96::/112")
	for _, tt := range []struct {
		four, six        model.EncapMode
		vxlanMTU         int
		mtu4, mtu6, pods int
	}{
		{model.EncapNever, model.EncapNever, 0, 1500, 1500, 1500},
		{model.EncapAlways, model.EncapAlways, 0, 1450, 1430, 1430},
		{model.EncapAlways, model.EncapNever, 0, 1450, 1500, 1450},
		{model.EncapNever, model.EncapCrossSubnet, 0, 1500, 1430, 1430},
		{model.EncapAlways, model.EncapAlways, 1400, 1400, 1380, 1380},
	} {
		c := dual()
		c.Pools["main"].VXLAN, c.Pools["six"].VXLAN, c.Settings.VXLANMTU = tt.four, tt.six, tt.vxlanMTU
		s := Calc(c).Settings
		if s.PoolRoutes[four] != tt.mtu4 || s.PoolRoutes[six] != tt.mtu6 || s.PodMTU != tt.pods || s.PoolRoutes[services] != tt.pods {
			t.Errorf("%s and %s: pools %d and %d, pods %d, Services %d; want %d, %d, %d", tt.four, tt.six, s.PoolRoutes[four], s.PoolRoutes[six],
				s.PodMTU, s.PoolRoutes[services], tt.mtu4, tt.mtu6, tt.pods)
		}
	}
}

func TestNodePortAddressesByFamily(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		at   model.NodePortAddresses
		want []string
	}{
		"every one":      {model.NodePortAddresses{}, []string{"172.31.1.207", "192.168.50.1", "fd00:31:1::207", "fd00:50::1"}},
		"primary":        {model.NodePortAddresses{Primary: true}, []string{"172.31.1.207", "fd00:31:1::207"}},
		"CIDRs of IPv4":  {model.NodePortAddresses{CIDRs: []netip.Prefix{prefix("192.168.0.0/16")}}, []string{"192.168.50.1", "fd00:31:1::207", "fd00:50::1"}},
		"CIDRs of both":  {model.NodePortAddresses{CIDRs: []netip.Prefix{prefix("192.168.0.0/16"), prefix("fd00:50::/64")}}, []string{"192.168.50.1", "fd00:50::1"}},
		"CIDRs of IPv6":  {model.NodePortAddresses{CIDRs: []netip.Prefix{prefix("fd00:31::/32")}}, []string{"172.31.1.207", "192.168.50.1", "fd00:31:1::207"}},
		"the whole of 6": {model.NodePortAddresses{CIDRs: []netip.Prefix{prefix("::/0"), prefix("172.31.0.0/16")}}, []string{"172.31.1.207", "fd00:31:1::207", "fd00:50::1"}},
	} {
		c := dual()
		c.Settings.NodePorts = tt.at
		var got []string
		for a, v := range Calc(c).Addrs {
			if v.Kind == nodestate.AddrHost && v.NodePorts {
				got = append(got, a.String())
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: node ports answer on %v, want %v", what, got, tt.want)
		}
	}
}

// A pod's two addresses have one class and share its sets, so that policy costs no more than with
// one.
func TestOneClassForBothAddresses(t *testing.T) {
	t.Parallel()
	c := dual()
	s := Calc(c)
	if a, b := s.ClassOf(addr("10.244.2.1")), s.ClassOf(addr("fd00:10:244:2::1")); a != b || a == 0 {
		t.Errorf("classes %x and %x", a, b)
	}
	if a, b := s.Addrs[addr("10.244.1.1")].Ingress, s.Addrs[addr("fd00:10:244:1::1")].Ingress; a != b || a.Set == 0 {
		t.Errorf("isolation %+v and %+v", a, b)
	}
}

// A load balancer's address is answered for by one node for each family, by the endpoints of that
// family, and the nodes before this one are watched by their address of that family.
func TestAnnouncedByFamily(t *testing.T) {
	t.Parallel()
	c := dual()
	c.Pools["lb4"] = &model.Pool{Name: "lb4", CIDR: prefix("172.31.1.128/26"), LoadBalancer: true}
	c.Pools["lb6"] = &model.Pool{Name: "lb6", CIDR: prefix("fd00:31:1:0:1::/80"), LoadBalancer: true}
	for _, n := range c.Nodes {
		n.Subnets = []netip.Prefix{prefix("172.31.1.0/24"), prefix("fd00:31:1::/64")}
	}
	c.Nodes["far"].Addrs = []netip.Addr{addr("172.31.1.20"), addr("fd00:31:1::20")}
	web := c.Services[name("default", "web")]
	web.LBIPs = []netip.Addr{addr("172.31.1.130"), addr("fd00:31:1:0:1::80")}
	// IPv4 of the Service is on this node alone, IPv6 on the far one.
	c.Slices[name("default", "web-4")].Endpoints = c.Slices[name("default", "web-4")].Endpoints[:1]
	c.Slices[name("default", "web-6")].Endpoints = c.Slices[name("default", "web-6")].Endpoints[1:]
	s := Calc(c)
	if !s.Announced[addr("172.31.1.130")] || s.Announced[addr("fd00:31:1:0:1::80")] {
		t.Errorf("announced: %v", s.Announced)
	}
	web.ExternalLocal = false
	watched := map[netip.Addr][6]byte{}
	for i := range 64 {
		web.LBIPs = []netip.Addr{addr("fd00:31:1:0:1::80").Next()}
		for range i {
			web.LBIPs[0] = web.LBIPs[0].Next()
		}
		maps.Copy(watched, Calc(c).Watched)
	}
	want := []netip.Addr{addr("fd00:31:1::9"), addr("fd00:31:1::20")}
	if !slices.Equal(slices.SortedFunc(maps.Keys(watched), netip.Addr.Compare), want) {
		t.Errorf("watched for IPv6: %v, want %v: the control node has no IPv6 address, and comes last", watched, want)
	}
}
