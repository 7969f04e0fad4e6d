// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// The attacks by what a compromised node writes: worker is where the state is computed, far is
// compromised, control is the victim. Each is carried out with the addresses of both families.

// evil is a cluster of two families in which a pod of control has an address.
func evil() *model.Cluster {
	c := dual()
	for i, name := range []string{"control", "worker", "far", "near"} {
		c.Nodes[name].Created, c.Nodes[name].UID = int64(100+i), fmt.Sprint("uid-", name)
	}
	for _, b := range c.Blocks {
		b.Created, b.UID = 200, b.Node
	}
	c.Local.Neighbours = map[netip.Addr][6]byte{addr("172.31.1.8"): {2, 0, 0, 0, 0, 1}}
	victim := model.Name{Namespace: "default", Name: "victim"}
	c.Pods.Put(&model.Pod{Name: victim, Node: "control", Addrs: []netip.Addr{addr("10.244.0.7"), addr("fd00:10:244::7")}, Labels: app("victim"), Created: 300, UID: "v"})
	return c
}

// ours are addresses that are none of the compromised node's: pods of others, nodes, Services, the
// world.
var ours = []netip.Addr{addr("10.244.0.7"), addr("10.244.0.60"), addr("10.244.1.1"), addr("10.244.3.3"), addr("172.31.1.8"), addr("172.31.1.1"), addr("172.31.1.207"),
	addr("10.96.0.10"), addr("10.96.0.1"), addr("8.8.8.8"), addr("198.51.100.7"),
	addr("fd00:10:244::7"), addr("fd00:10:244::3f"), addr("fd00:10:244:1::1"), addr("fd00:31:1::9"), addr("fd00:10:96::10"), addr("2001:db8:1::1")}

// seen is how a node treats an address: by its own entry, its route and its class.
type seen struct {
	addr  nodestate.Addr
	route nodestate.Route
	class nodestate.Class
}

func (s seen) String() string {
	return fmt.Sprintf("entry of kind %d at %v, owner %s; route local=%t by %v; class %x", s.addr.Kind, s.addr.Node, s.addr.Owner, s.route.Local, s.route.Node, s.class)
}

func see(s *nodestate.State, a netip.Addr) seen {
	out := seen{addr: s.Addrs[a]}
	best := -1
	for p, r := range s.Routes {
		if p.Contains(a) && p.Bits() > best {
			best, out.route = p.Bits(), r
		}
	}
	out.class, _ = s.Peers.Get(a)
	best = -1
	if _, is := s.Peers.Get(a); !is {
		for p, class := range s.PeerCIDRs {
			if p.Contains(a) && p.Bits() > best {
				best, out.class = p.Bits(), class
			}
		}
	}
	return out
}

// unmoved asserts that an attack changes nothing for any of ours, and of more, and that it is
// reported.
func unmoved(t *testing.T, before *model.Cluster, attack func(*model.Cluster), more ...netip.Addr) {
	t.Helper()
	claimed(before)
	k := New()
	was, _ := k.Update(before, model.AllDirty())
	attack(before)
	is, _ := k.Update(before, model.AllDirty())
	sameServices(t, was, is)
	for _, a := range append(more, ours...) {
		if x, y := see(was, a), see(is, a); x != y {
			t.Errorf("%s: before %s, after %s", a, x, y)
		}
	}
	if !slices.ContainsFunc(k.Refused(), func(r cluster.Refusal) bool { return r.Node == "far" }) {
		t.Error("nothing that the node far claims is refused")
	}
}

func block(c *model.Cluster, cidr, node string) {
	c.Blocks[prefix(cidr)] = &model.Block{CIDR: prefix(cidr), Node: node, Created: 900, UID: "0"}
}

func TestHostileBlocks(t *testing.T) {
	for _, tt := range []struct{ attack, four, six string }{
		{"a node claims a block with another node's pod", "10.244.0.7/32", "fd00:10:244::7/128"},
		{"a node claims a block of an outside client", "8.8.8.0/26", "2001:db8:1::/122"},
		{"a node claims a block that is larger than those of the pool", "10.244.0.0/18", "fd00:10:244::/60"},
		{"a node claims a block of cluster IPs", "10.96.0.0/26", "fd00:10:96::/122"},
		{"a node claims a block of the nodes' network", "172.31.1.0/26", "fd00:31:1::/122"},
	} {
		t.Run(tt.attack, func(t *testing.T) {
			hostile.Record(t, tt.attack, hostile.Node, hostile.ControlPlane, hostile.Both)
			for _, cidr := range []string{tt.four, tt.six} {
				unmoved(t, evil(), func(c *model.Cluster) { block(c, cidr, "far") })
			}
		})
	}
}

// The older block counts whatever the order of their names is.
func TestHostileBlockOfOlderClaim(t *testing.T) {
	hostile.Record(t, "a node claims a block that begins before and covers an older one", hostile.Node, hostile.ControlPlane, hostile.Both)
	unmoved(t, evil(), func(c *model.Cluster) {
		c.Pools["main"].BlockBits = 24 // its blocks may be larger than those that are there
		block(c, "10.244.0.0/24", "far")
	})
}

func TestHostileUnmaskedBlock(t *testing.T) {
	hostile.Record(t, "a node claims a block that does not begin at a boundary", hostile.Node, hostile.ControlPlane, hostile.Both)
	unmoved(t, evil(), func(c *model.Cluster) {
		for _, p := range []netip.Prefix{netip.PrefixFrom(addr("10.244.0.5"), 26), netip.PrefixFrom(addr("fd00:10:244::5"), 122), netip.PrefixFrom(addr("::ffff:10.244.0.64"), 122)} {
			c.Blocks[p] = &model.Block{CIDR: p, Node: "far", Created: 1}
		}
	})
}

func pod(c *model.Cluster, name, node string, addrs ...netip.Addr) *model.Pod {
	n := model.Name{Namespace: "default", Name: name}
	c.Pods.Put(&model.Pod{Name: n, Node: node, Addrs: addrs, Labels: app("client"), Created: 1, UID: "0"})
	return c.Pods.Get(n)
}

func TestHostilePodAddresses(t *testing.T) {
	t.Run("status", func(t *testing.T) {
		hostile.Record(t, "a node writes another node's pod's address, or anybody else's, into the status of its pod", hostile.Node, hostile.ControlPlane, hostile.Both)
		unmoved(t, evil(), func(c *model.Cluster) { pod(c, "aaa", "far", ours...) })
	})
	t.Run("asked", func(t *testing.T) {
		hostile.Record(t, "a pod asks for an address by annotation that no reservation grants", hostile.Tenant, hostile.ControlPlane, hostile.Both)
		unmoved(t, evil(), func(c *model.Cluster) { pod(c, "aaa", "far", ours...).Asked = ours })
	})
	t.Run("reserved", func(t *testing.T) {
		hostile.Record(t, "a node writes a reserved address, which an older pod has, into the status of its pod", hostile.Node, hostile.ControlPlane, hostile.Both)
		c := evil()
		lent := []netip.Addr{addr("10.244.78.1"), addr("fd00:10:244:78::1")} // which no block holds
		for _, a := range lent {
			c.Reservations = append(c.Reservations, netip.PrefixFrom(a, a.BitLen()))
		}
		editPod(c, model.Name{Namespace: "default", Name: "victim"}, func(p *model.Pod) { p.Addrs, p.Asked = lent, lent })
		unmoved(t, c, func(c *model.Cluster) {
			p := pod(c, "aaa", "far", append(slices.Clone(lent), ours...)...)
			p.Asked, p.Created = p.Addrs, 301
			c.Pods.Put(p)
		}, lent...)
	})
	t.Run("of a block", func(t *testing.T) {
		hostile.Record(t, "a node writes a reserved address, which a younger pod has by its node's block, into annotation and status of its pod", hostile.Node, hostile.ControlPlane, hostile.Both)
		c := evil()
		c.Reservations = append(c.Reservations, prefix("10.244.0.7/32"), prefix("fd00:10:244::7/128"))
		unmoved(t, c, func(c *model.Cluster) {
			p := pod(c, "aaa", "far", ours...)
			p.Asked, p.Created = ours, 1
			c.Pods.Put(p)
		})
	})
	t.Run("many", func(t *testing.T) {
		hostile.Record(t, "a node writes hundreds of addresses into the status of a pod", hostile.Node, hostile.ControlPlane, hostile.Both)
		unmoved(t, evil(), func(c *model.Cluster) {
			var all []netip.Addr
			for _, p := range []string{"10.244.0.0/26", "10.244.1.0/26", "10.244.3.0/26", "fd00:10:244::/122", "fd00:10:244:1::/122", "172.31.1.0/24"} {
				for a := prefix(p).Addr(); prefix(p).Contains(a); a = a.Next() {
					all = append(all, a)
				}
			}
			pod(c, "aaa", "far", all...)
		})
	})
	t.Run("by workload", func(t *testing.T) {
		hostile.Record(t, "a node writes an address of another node's block into the status of its pod where routes follow pods", hostile.Node, hostile.ControlPlane, hostile.Both)
		c := evil()
		c.Settings.WorkloadRoutes = true
		unmoved(t, c, func(c *model.Cluster) { pod(c, "aaa", "far", ours...) })
	})
	t.Run("in the nodes' network", func(t *testing.T) {
		hostile.Record(t, "a node writes a node's, a gateway's or an API server's address into the status of its pod where pods are in the nodes' network", hostile.Node, hostile.ControlPlane, hostile.Both)
		victims := []netip.Addr{addr("172.31.1.8"), addr("172.31.1.207"), addr("172.31.1.1"), addr("172.31.1.99"), addr("fd00:31:1::9"), addr("fd00:31:1::1"), addr("fd00:31:1::99")}
		c := evil()
		c.Settings.WorkloadRoutes, c.Settings.Chained = true, true
		for name, cidr := range map[string]string{"vpc": "172.31.0.0/16", "vpc6": "fd00:31:1::/64"} {
			c.Pools[name] = &model.Pool{Name: name, CIDR: prefix(cidr), VXLAN: model.EncapNever, Disabled: true, Workload: true}
		}
		c.Local.Gateways = []netip.Addr{addr("172.31.1.1"), addr("fd00:31:1::1")}
		c.Local.APIServers = []netip.AddrPort{netip.AddrPortFrom(addr("172.31.1.99"), 6443), netip.AddrPortFrom(addr("fd00:31:1::99"), 6443)}
		unmoved(t, c, func(c *model.Cluster) { pod(c, "aaa", "far", victims...) }, victims...)
		// Nor does a node get the address of a pod that was there before it came to claim it.
		pod(c, "near-pod", "near", addr("172.31.9.9"))
		unmoved(t, c, func(c *model.Cluster) {
			n := *c.Nodes["far"]
			n.Addrs, n.Since = append([]netip.Addr{addr("172.31.9.9")}, n.Addrs...), map[netip.Addr]int64{addr("172.31.9.9"): 1 << 40}
			c.Nodes["far"] = &n
		}, addr("172.31.9.9"))
	})
}

func TestHostileNodeAddresses(t *testing.T) {
	for _, tt := range []struct {
		attack string
		addrs  []netip.Addr
	}{
		{"a node says that another node's address is its own", []netip.Addr{addr("172.31.1.8"), addr("fd00:31:1::9"), addr("172.31.1.207")}},
		{"a node says that a pod's address is its own", []netip.Addr{addr("10.244.0.7"), addr("10.244.0.60"), addr("fd00:10:244::3f"), addr("fd00:10:244::7"), addr("10.244.1.1")}},
		{"a node says that a cluster IP is its own", []netip.Addr{addr("10.96.0.1"), addr("10.96.0.10"), addr("fd00:10:96::10")}},
	} {
		t.Run(tt.attack, func(t *testing.T) {
			hostile.Record(t, tt.attack, hostile.Node, hostile.ControlPlane, hostile.Both)
			unmoved(t, evil(), func(c *model.Cluster) {
				n := *c.Nodes["far"]
				n.Addrs = append(slices.Clone(tt.addrs), n.Addrs...)
				n.Created, n.Since = 1, map[netip.Addr]int64{} // older than all, but the addresses came later
				for _, a := range tt.addrs {
					n.Since[a] = 950
				}
				c.Nodes["far"] = &n
			})
		})
	}
}

// TestHostileAddressesOfOutside: what was there before a node says that it is its own: this node's
// gateways, and API servers outside of the cluster.
func TestHostileAddressesOfOutside(t *testing.T) {
	claim := func(c *model.Cluster, since int64, addrs ...netip.Addr) *model.Node {
		n := *c.Nodes["far"]
		n.Addrs, n.Since = append(slices.Clone(addrs), n.Addrs...), map[netip.Addr]int64{}
		for _, a := range addrs {
			n.Since[a] = since
		}
		c.Nodes["far"] = &n
		return &n
	}
	gateways := []netip.Addr{addr("172.31.1.1"), addr("fd00:31:1::1")}
	servers := []netip.Addr{addr("198.51.100.7"), addr("2001:db8:1::1")}
	for _, tt := range []struct {
		attack string
		addrs  []netip.Addr
		known  func(*model.Cluster)
	}{
		{"a node comes to say that a gateway's address is its own", gateways, func(c *model.Cluster) { c.Local.Gateways = gateways }},
		{"a node comes to say that the address by which agents reach the API server is its own", servers, func(c *model.Cluster) {
			c.Local.APIServers = []netip.AddrPort{netip.AddrPortFrom(servers[0], 6443), netip.AddrPortFrom(servers[1], 6443)}
		}},
		{"a node comes to say that the address of an API server outside of the cluster is its own", servers, func(c *model.Cluster) {
			c.Slices[cluster.APIServerSlice] = &model.EndpointSlice{Name: cluster.APIServerSlice, Service: cluster.APIService, Endpoints: []model.ServiceEndpoint{{Addrs: servers[:1]}, {Addrs: servers[1:]}}}
		}},
	} {
		t.Run(tt.attack, func(t *testing.T) {
			hostile.Record(t, tt.attack, hostile.Node, hostile.ControlPlane, hostile.Both)
			c := evil()
			tt.known(c)
			unmoved(t, c, func(c *model.Cluster) { claim(c, 950, tt.addrs...) }, tt.addrs...)
			// What the agent learns when the claim is there.
			c = evil()
			claim(c, 950, tt.addrs...)
			k := New()
			s, _ := k.Update(c, model.AllDirty())
			is := func(want nodestate.AddrKind) {
				t.Helper()
				for _, a := range tt.addrs {
					if got := s.Addrs[a].Kind; got != want {
						t.Errorf("%s is of kind %v, want %v", a, got, want)
					}
				}
			}
			is(nodestate.AddrNode)
			tt.known(c)
			s, _ = k.Update(c, model.Dirty{Kinds: model.KindLocal, Slices: map[model.Name]struct{}{cluster.APIServerSlice: {}}})
			is(0)
			// A node that has had it from the start, and one that the link finds there, has it.
			claim(c, 0, tt.addrs...)
			s = Calc(c)
			is(nodestate.AddrNode)
			n := claim(c, 950, tt.addrs...)
			n.LinkAddress = [6]byte{2, 0, 0, 0, 0, 0xfe}
			for _, a := range tt.addrs {
				c.Local.Neighbours[a] = n.LinkAddress
			}
			s = Calc(c)
			is(nodestate.AddrNode)
			// So has a node that is meant to have an API server; but no gateway's.
			n = claim(c, 950, tt.addrs...)
			n.Labels = map[string]string{cluster.ControlPlane: ""}
			clear(c.Local.Neighbours)
			s = Calc(c)
			if want := nodestate.AddrNode; tt.addrs[0] != gateways[0] {
				is(want)
			} else {
				is(0)
			}
		})
	}
}

func TestHostileLinkAddress(t *testing.T) {
	for attack, mac := range map[string][6]byte{
		"a node publishes another node's link address":    {2, 0, 0, 0, 0, 1},
		"a node publishes the gateway's link address":     {2, 0, 0, 0, 0, 0xfe},
		"a node publishes the link address of its reader": {2, 0, 0, 0, 0, 0x22},
		"a node publishes a link address that nobody has": {2, 9, 9, 9, 9, 9},
	} {
		t.Run(attack, func(t *testing.T) {
			hostile.Record(t, attack, hostile.Node, hostile.ControlPlane, hostile.Both)
			c := evil()
			c.Local.Neighbours[addr("172.31.1.1")] = [6]byte{2, 0, 0, 0, 0, 0xfe}
			c.Local.Interfaces = []model.LocalInterface{{Name: "eth0", IfIndex: 2, MAC: [6]byte{2, 0, 0, 0, 0, 2}},
				{Name: "eth1", IfIndex: 3, MAC: [6]byte{2, 0, 0, 0, 0, 0x22}}} // which it does not publish
			n := *c.Nodes["far"]
			n.LinkAddress = mac
			if attack == "a node publishes a link address that nobody has" {
				n.Addrs = append([]netip.Addr{addr("172.31.1.9")}, n.Addrs...)
				c.Local.Neighbours[addr("172.31.1.9")] = [6]byte{2, 0, 0, 0, 0, 3}
			}
			c.Nodes["far"] = &n
			notThere := func(s *nodestate.State) {
				for a, v := range s.Addrs {
					if v.Kind == nodestate.AddrNode && v.Owner.Name == "far" && v.MAC == mac {
						t.Errorf("%s is reached at %x", a, mac)
					}
				}
			}
			k := New()
			s, _ := k.Update(c, model.AllDirty())
			notThere(s)
			if s.Addrs[addr("172.31.1.8")].MAC != [6]byte{2, 0, 0, 0, 0, 1} {
				t.Error("the node whose link address it is lost it")
			}
			if !slices.ContainsFunc(k.Refused(), func(r cluster.Refusal) bool { return r.Field == "status.linkAddress" && r.Node == "far" }) {
				t.Errorf("not reported: %+v", k.Refused())
			}
			if attack == "a node publishes another node's link address" { // also where the kernel knows neither
				clear(c.Local.Neighbours)
				s := Calc(c)
				notThere(s)
				if s.Addrs[addr("172.31.1.8")].MAC != [6]byte{2, 0, 0, 0, 0, 1} {
					t.Error("the node whose link address it is lost it where the kernel knows neither")
				}
			}
		})
	}
}

// TestHostileNodeInterference lets one node claim at random, and holds that nothing changes for
// anybody else's addresses.
func TestHostileNodeInterference(t *testing.T) {
	hostile.Record(t, "a node claims blocks, pods' addresses, addresses, subnets and link addresses at random", hostile.Node, hostile.ControlPlane, hostile.Both)
	for seed := range 300 {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		c := claimed(evil())
		c.Local.Gateways = []netip.Addr{addr("172.31.1.1")}
		c.Local.APIServers = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.7:6443"), netip.MustParseAddrPort("[2001:db8:1::1]:6443")}
		k := New()
		was, _ := k.Update(c, model.AllDirty())
		pickAddr := func() netip.Addr {
			if r.IntN(3) == 0 {
				return addr(fmt.Sprintf("10.244.%d.%d", r.IntN(5), r.IntN(256)))
			}
			return ours[r.IntN(len(ours))]
		}
		for step := range 12 {
			var d model.Dirty
			switch r.IntN(4) {
			case 0:
				a := pickAddr()
				p := netip.PrefixFrom(a, a.BitLen()-r.IntN(20))
				if r.IntN(4) > 0 {
					p = p.Masked()
				}
				if have := c.Blocks[p]; have == nil || have.Node == "far" {
					c.Blocks[p] = &model.Block{CIDR: p, Node: "far", Created: int64(201 + r.IntN(900)), UID: fmt.Sprint(r.IntN(9))}
				}
				d.Add(model.KindBlocks)
			case 1:
				n := fmt.Sprint("evil", r.IntN(3))
				before := c.Pods.Get(model.Name{Namespace: "default", Name: n})
				d.AddPod(pod(c, n, "far", pickAddr(), pickAddr(), pickAddr()).Name, before)
			case 2:
				n := *c.Nodes["far"]
				a := pickAddr()
				n.Addrs, n.Since = append([]netip.Addr{a}, n.Addrs...), map[netip.Addr]int64{a: 950}
				for _, x := range n.Addrs {
					n.Since[x] = 950
				}
				c.Nodes["far"] = &n
				d.Add(model.KindNodes)
			case 3:
				n := *c.Nodes["far"]
				n.LinkAddress = [6]byte{2, 0, 0, 0, 0, byte(r.IntN(4))}
				n.Subnets = append(slices.Clone(n.Subnets), netip.PrefixFrom(pickAddr(), 1+r.IntN(30)).Masked())
				c.Nodes["far"] = &n
				d.Add(model.KindNodes)
			}
			is, _ := k.Update(c, d)
			sameServices(t, was, is)
			for _, a := range ours {
				if a == addr("8.8.8.8") && is.Addrs[a].Kind == nodestate.AddrNode {
					continue // a node may say that an address is its own that nobody else is known to have
				}
				if x, y := see(was, a), see(is, a); x != y {
					t.Fatalf("seed %d step %d: %s: before %s, after %s\n%+v", seed, step, a, x, y, k.Refused())
				}
			}
		}
	}
}
