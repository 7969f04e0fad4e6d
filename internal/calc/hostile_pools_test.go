// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// reachable are addresses of base that no route of Weir's may lead to: of this node and the others,
// a router, and API servers, one of them behind the router.
var reachable = []string{"172.31.1.207", "172.31.1.8", "172.31.2.20", "172.31.1.1", "203.0.113.9", "198.51.100.6",
	"fd00:31:1::207", "fd00:31:1::8", "fd00:31:2::20", "fd00:31:1::1", "2001:db8:9::9", "2001:db8:c::6"}

// surrounded is base with both families, gateways and API servers.
func surrounded() *model.Cluster {
	c := base()
	for name, a := range map[string]string{"control": "fd00:31:1::8", "worker": "fd00:31:1::207", "far": "fd00:31:2::20"} {
		n := c.Nodes[name]
		n.Addrs = append(n.Addrs, addr(a))
		n.Subnets = append(n.Subnets, netip.PrefixFrom(addr(a), 64).Masked())
	}
	c.Pools["main6"] = &model.Pool{Name: "main6", CIDR: prefix("fd00:10::/48"), VXLAN: model.EncapCrossSubnet, BlockBits: 122, Workload: true}
	c.Local.HostAddrs = append(c.Local.HostAddrs, addr("fd00:31:1::207"))
	c.Local.Subnets = append(c.Local.Subnets, prefix("fd00:31:1::/64"))
	c.Local.Gateways = []netip.Addr{addr("172.31.1.1"), addr("fd00:31:1::1")}
	for _, a := range []string{"198.51.100.6", "2001:db8:c::6"} { // load balancers before the API servers
		c.Local.APIServers = append(c.Local.APIServers, netip.AddrPortFrom(addr(a), 6443))
	}
	slice := &model.EndpointSlice{Name: cluster.APIServerSlice, Service: cluster.APIServerSlice, NotCarried: false, Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 6443}}}
	for _, a := range []string{"172.31.1.8", "203.0.113.9", "2001:db8:9::9"} {
		slice.Endpoints = append(slice.Endpoints, model.ServiceEndpoint{Addrs: []netip.Addr{addr(a)}, Ready: true, Serving: true})
	}
	c.Slices[cluster.APIServerSlice] = slice
	c.ServiceCIDRs = []netip.Prefix{prefix("10.96.0.0/16"), prefix("fd00:96::/112")}
	return c
}

// TestHostilePoolOverNodes: whatever networks pools have, in use or not, no route leads by weir0,
// or to a pod, that covers a node's address, a router, an API server or a network that this node is
// on; what the pool's other blocks have stays routed, and the pool is named.
func TestHostilePoolOverNodes(t *testing.T) {
	t.Parallel()
	const attack = "a pool, disabled or not, covers nodes, a gateway or the API server"
	for _, plane := range []string{hostile.EBPF, hostile.NFTables} {
		for _, family := range []string{hostile.IPv4, hostile.IPv6} {
			hostile.Record(t, attack, hostile.Operator, plane, family)
			hostile.Record(t, "a pool covers the load balancer by which agents reach the API server", hostile.Operator, plane, family)
		}
	}
	pools := map[string]bool{ // whether nodes go on giving addresses of it while it has blocks
		"172.31.1.0/24": false, "172.31.1.0/25": false, "172.31.0.0/16": false, "172.31.1.1/32": false, "203.0.113.0/24": false, "203.0.113.9/32": false, "198.51.100.0/24": false, "198.51.100.6/32": false,
		"172.31.2.0/24": true, "0.0.0.0/0": false, "0.0.0.0/1": false, "128.0.0.0/1": false, "10.0.0.0/8": true, "169.254.0.0/16": false, "127.0.0.0/8": false, "224.0.0.0/4": false,
		"fd00:31:1::/64": false, "fd00:31::/32": false, "fd00:31:1::1/128": false, "2001:db8:9::/64": false, "2001:db8:c::/64": false, "::/0": false, "fd00:31:2::/64": true, "fe80::/64": false,
	}
	for cidr, gives := range pools {
		for _, disabled := range []bool{false, true} {
			for _, used := range []bool{false, true} {
				c := surrounded()
				evil := prefix(cidr)
				delete(c.Pools, "main6") // one that contains it would be another question
				if evil.Overlaps(c.Pools["main"].CIDR) {
					delete(c.Pools, "main")
					c.Blocks = map[netip.Prefix]*model.Block{}
				}
				c.Pools["evil"] = &model.Pool{Name: "evil", CIDR: evil, VXLAN: model.EncapAlways, NATOutgoing: true, BlockBits: min(evil.Addr().BitLen(), max(evil.Bits(), evil.Addr().BitLen()-6)),
					Workload: true, Disabled: disabled}
				var kept netip.Prefix
				if used { // the first block covers nothing, but where the pool is one address
					b := netip.PrefixFrom(evil.Addr(), c.Pools["evil"].BlockBits)
					if evil.Contains(addr("10.244.7.0")) {
						b = prefix("10.244.7.0/26")
					}
					c.Blocks[b] = &model.Block{CIDR: b, Node: "far"}
					if evil.Contains(addr("10.244.7.0")) {
						kept = b
					}
				}
				k := New()
				s, _ := k.Update(c, model.AllDirty())
				check := func(what string, all []netip.Prefix) {
					for _, p := range all {
						for _, a := range reachable {
							if p.Contains(addr(a)) {
								t.Errorf("pool %s (disabled: %t, in use: %t): %s %s covers %s", cidr, disabled, used, what, p, a)
							}
						}
						for _, subnet := range c.Local.Subnets {
							if p.Overlaps(subnet) {
								t.Errorf("pool %s (disabled: %t, in use: %t): %s %s overlaps %s", cidr, disabled, used, what, p, subnet)
							}
						}
					}
				}
				var routed, wired []netip.Prefix
				for p := range s.Settings.PoolRoutes {
					wired = append(wired, p)
				}
				for p := range s.Routes {
					routed = append(routed, p)
				}
				check("the route by weir0", wired)
				check("the route", routed)
				if kept.IsValid() && (!slices.Contains(wired, kept) || !slices.Contains(routed, kept)) {
					t.Errorf("pool %s (disabled: %t): its block %s, which covers nothing, is not routed: %v, %v", cidr, disabled, kept, wired, routed)
				}
				i := slices.IndexFunc(k.PoolOverlaps(), func(o cluster.PoolOverlap) bool { return o.Pool == "evil" })
				if i < 0 || k.PoolOverlaps()[i].Gives != (gives && used) {
					t.Errorf("pool %s (disabled: %t, in use: %t): overlaps %+v, want that it gives addresses: %t", cidr, disabled, used, k.PoolOverlaps(), gives && used)
				}
			}
		}
	}
}

// TestHostilePoolByOneNode: a node that says that it has an address in a pool in use, or that its
// network is there, takes nothing from it but the route as a whole; its blocks stay routed and
// addresses are given. (An address in another node's block is no node's: see what nodes may claim.)
func TestHostilePoolByOneNode(t *testing.T) {
	t.Parallel()
	for _, plane := range []string{hostile.EBPF, hostile.NFTables} {
		hostile.Record(t, "a node claims an address in the pool of pods, so that agents refuse the pool", hostile.Node, plane, hostile.Both)
	}
	c := surrounded()
	c.Nodes["far"].Addrs = append(c.Nodes["far"].Addrs, addr("10.244.9.7"), addr("fd00:10::9:7"))
	c.Nodes["far"].Subnets = append(c.Nodes["far"].Subnets, prefix("10.244.0.0/16"), prefix("fd00:10::/64"))
	c.Blocks[prefix("fd00:10::/122")] = &model.Block{CIDR: prefix("fd00:10::/122"), Node: "control"}
	k := New()
	s, _ := k.Update(c, model.AllDirty())
	for p := range c.Blocks {
		_, wired := s.Settings.PoolRoutes[p]
		if _, routed := s.Routes[p]; !wired || !routed {
			t.Errorf("block %s is not routed: %v, %v", p, s.Settings.PoolRoutes, s.Routes)
		}
	}
	if _, as := s.Settings.PoolRoutes[prefix("10.244.0.0/16")]; as {
		t.Error("the pool is routed as a whole, over the node's address")
	}
	if o := k.PoolOverlaps(); len(o) != 2 || !o[0].Gives || !o[1].Gives {
		t.Errorf("%+v, want both pools, which give addresses", o)
	}
}

// TestHostileServiceCIDROverNodes: a range of cluster IPs that covers this node's network is not
// routed by weir0.
func TestHostileServiceCIDROverNodes(t *testing.T) {
	t.Parallel()
	for _, plane := range []string{hostile.EBPF, hostile.NFTables} {
		hostile.Record(t, "a ServiceCIDR covers the nodes' network", hostile.Operator, plane, hostile.Both)
		hostile.Record(t, "a ServiceCIDR over nodes takes their addresses from them, so that pods there are not reached", hostile.Operator, plane, hostile.Both)
		hostile.Record(t, "a ServiceCIDR covers nodes behind a router alone", hostile.Operator, plane, hostile.Both)
	}
	for _, ranges := range [][]netip.Prefix{{prefix("172.16.0.0/12"), prefix("203.0.113.0/28"), prefix("fd00:31::/32")},
		{prefix("172.31.2.0/24")}, {prefix("fd00:31:2::/64")}, {prefix("172.16.0.0/12")}, {prefix("fd00:31::/32")}} {
		c := surrounded()
		c.Blocks[prefix("fd00:10::/122")] = &model.Block{CIDR: prefix("fd00:10::/122"), Node: "far"}
		was := Calc(c)
		c.ServiceCIDRs = append(c.ServiceCIDRs, ranges...)
		k := New()
		s, _ := k.Update(c, model.AllDirty())
		for p := range s.Settings.PoolRoutes {
			for _, a := range reachable {
				if p.Contains(addr(a)) {
					t.Errorf("%v: the route %s by weir0 covers %s", ranges, p, a)
				}
			}
		}
		if !maps.Equal(s.Routes, was.Routes) || !maps.Equal(s.Addrs, was.Addrs) {
			t.Errorf("%v: routes %v, addresses %v; before %v, %v", ranges, s.Routes, s.Addrs, was.Routes, was.Addrs)
		}
		if _, ok := s.Settings.PoolRoutes[prefix("10.96.0.0/16")]; !ok {
			t.Error("the other range is not routed")
		}
		// A Service that comes and has the node's address takes it from no node; one that was there
		// before does.
		svc := name("default", "late")
		c.Nodes["far"].Created = 100
		c.Services[svc] = &model.Service{Name: svc, Created: 200, ClusterIPs: addrList("172.31.2.20", "fd00:31:2::20"), Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 80}}}
		s, _ = k.Update(c, model.Dirty{Kinds: model.KindNodes, Services: map[model.Name]struct{}{svc: {}}})
		if !maps.Equal(s.Routes, was.Routes) {
			t.Errorf("%v: with a Service of that address routes %v, before %v", ranges, s.Routes, was.Routes)
		}
	}
}

// TestDisabledPoolIsRoutedWhileItIsUsed: a disabled pool makes a route by weir0 only while a block
// or a pod of it is there.
func TestDisabledPoolIsRoutedWhileItIsUsed(t *testing.T) {
	t.Parallel()
	c := base()
	p := *c.Pools["main"]
	p.Disabled = true
	c.Pools["main"] = &p
	if _, ok := Calc(c).Settings.PoolRoutes[p.CIDR]; !ok {
		t.Error("no route while there are blocks")
	}
	c.Blocks = map[netip.Prefix]*model.Block{}
	if _, ok := Calc(c).Settings.PoolRoutes[p.CIDR]; ok {
		t.Error("a route of a pool that nobody has anything of")
	}
	here(c, "10.244.1.9")
	if _, ok := Calc(c).Settings.PoolRoutes[p.CIDR]; !ok {
		t.Error("no route while a pod of the node has an address")
	}
}
