// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

func TestHostileAnnouncements(t *testing.T) {
	for _, tt := range []struct{ attack, four, six string }{
		{"a tenant's Service has the node that announces answer for the gateway's address", "172.31.1.1", "fd00:31:1::1"},
		{"a tenant's Service has the node that announces answer for a node's address", "172.31.1.8", "fd00:31:1::9"},
		{"a tenant's Service has the node that announces answer for an address of its own machine", "172.31.1.207", "fd00:31:1::207"},
		{"a tenant's Service has the node that announces answer for a pod's address", "172.31.1.130", "fd00:31:1::81"},
	} {
		t.Run(tt.attack, func(t *testing.T) {
			hostile.Record(t, tt.attack, hostile.Tenant, hostile.ControlPlane, hostile.Both)
			c := evil()
			c.Settings.L2Reachability = true
			c.Local.Gateways = []netip.Addr{addr("172.31.1.1"), addr("fd00:31:1::1")}
			for name, n := range c.Nodes {
				if name != "worker" { // nobody else announces
					with := *n
					with.Subnets = nil
					c.Nodes[name] = &with
				}
			}
			if tt.four == "172.31.1.1" { // Services are refused at a gateway; nor does the node answer for it as for a pod of its own
				for _, a := range c.Local.Gateways {
					c.Local.Endpoints[a] = &model.LocalEndpoint{Pod: model.Name{Namespace: "default", Name: "evil"}, Interface: "cali99", IfIndex: 99, Addrs: []netip.Addr{a}}
				}
			}
			c.Nodes["worker"].Subnets = []netip.Prefix{prefix("172.31.1.0/24"), prefix("fd00:31:1::/64")}
			// Pods on the link itself.
			c.Pools["link"] = &model.Pool{Name: "link", CIDR: prefix("172.31.1.128/26"), BlockBits: 28, Workload: true}
			c.Pools["link6"] = &model.Pool{Name: "link6", CIDR: prefix("fd00:31:1::80/122"), BlockBits: 124, Workload: true}
			for _, p := range []string{"172.31.1.128/28", "fd00:31:1::80/124"} {
				c.Blocks[prefix(p)] = &model.Block{CIDR: prefix(p), Node: "control", Created: 200}
			}
			free := []netip.Addr{addr("172.31.1.99"), addr("fd00:31:1::63")}
			name := model.Name{Namespace: "default", Name: "evil"}
			c.Services[name] = &model.Service{Name: name, ClusterIPs: []netip.Addr{addr("10.96.0.99"), addr("fd00:10:96::99")}, ExternalIPs: append(free, addr(tt.four), addr(tt.six)),
				Ports: []model.ServicePort{{Name: "p", Protocol: model.ProtocolTCP, Port: 80}}}
			was := []netip.Addr{addr("172.31.1.194"), addr("fd00:31:1::c2")}
			if tt.four == "172.31.1.130" { // nor for what a node holds of a pool that was changed to one of load balancers
				for i, p := range []string{"172.31.1.192/28", "fd00:31:1::c0/124"} {
					c.Pools[p] = &model.Pool{Name: p, CIDR: prefix(p), BlockBits: prefix(p).Bits(), LoadBalancer: true}
					c.Blocks[prefix(p)] = &model.Block{CIDR: prefix(p), Node: "control", Created: 200}
					c.Services[name].LBIPs = append(c.Services[name].LBIPs, was[i])
				}
			}
			s := Calc(c)
			for _, a := range was {
				if s.Announced[a] {
					t.Errorf("%s, which a node holds, is announced", a)
				}
			}
			for _, a := range free {
				if !s.Announced[a] {
					t.Errorf("%s, which is nobody's, is not announced: %v", a, s.Announced)
				}
			}
			for _, text := range []string{tt.four, tt.six} {
				if s.Announced[addr(text)] {
					t.Errorf("%s is announced", text)
				}
			}
		})
	}
}

// TestHostileClaimedBalancer: what a Service has of a load balancer's block, or by an
// administrator's grant, goes on being answered for when a node says that it is its own.
func TestHostileClaimedBalancer(t *testing.T) {
	for _, tt := range []struct {
		attack string
		addrs  []netip.Addr
		since  int64 // 0 = the agent has started since
	}{
		{"a node says that a load balancer's address is its own", []netip.Addr{addr("172.31.1.194"), addr("fd00:31:1::c2")}, 950},
		{"a node says that a load balancer's address is its own, and agents start again", []netip.Addr{addr("172.31.1.194"), addr("fd00:31:1::c2")}, 0},
		{"a node says that an external IP, which an administrator grants, is its own", []netip.Addr{addr("172.31.1.99"), addr("fd00:31:1::63")}, 950},
	} {
		t.Run(tt.attack, func(t *testing.T) {
			hostile.Record(t, tt.attack, hostile.Node, hostile.ControlPlane, hostile.Both)
			c := evil()
			c.Settings.L2Reachability = true
			c.Settings.ServiceExternalIPs = []netip.Prefix{prefix("172.31.1.99/32"), prefix("fd00:31:1::63/128")}
			worker := *c.Nodes["worker"]
			worker.Subnets = []netip.Prefix{prefix("172.31.1.0/24"), prefix("fd00:31:1::/64")}
			c.Nodes["worker"] = &worker
			for name, n := range c.Nodes {
				if name != "worker" { // nobody else announces
					with := *n
					with.Subnets = nil
					c.Nodes[name] = &with
				}
			}
			for _, p := range []string{"172.31.1.192/28", "fd00:31:1::c0/124"} {
				c.Pools[p] = &model.Pool{Name: p, CIDR: prefix(p), BlockBits: prefix(p).Bits(), LoadBalancer: true}
				c.Blocks[prefix(p)] = &model.Block{CIDR: prefix(p), Node: cluster.LoadBalancers, Created: 200}
			}
			name := model.Name{Namespace: "default", Name: "victim"}
			c.Services[name] = &model.Service{Name: name, Created: 300, ClusterIPs: []netip.Addr{addr("10.96.0.99"), addr("fd00:10:96::99")},
				ExternalIPs: []netip.Addr{addr("172.31.1.99"), addr("fd00:31:1::63")}, LBIPs: []netip.Addr{addr("172.31.1.194"), addr("fd00:31:1::c2")},
				Ports: []model.ServicePort{{Name: "p", Protocol: model.ProtocolTCP, Port: 80}}}
			announced := func(when string) {
				t.Helper()
				s := Calc(c)
				for _, a := range tt.addrs {
					if !s.Announced[a] {
						t.Errorf("%s, %s is not answered for", when, a)
					}
				}
			}
			announced("before")
			far := *c.Nodes["far"]
			far.Addrs = append(slices.Clone(far.Addrs), tt.addrs...)
			if tt.since != 0 {
				far.Since = map[netip.Addr]int64{}
				for _, a := range tt.addrs {
					far.Since[a] = tt.since
				}
			}
			c.Nodes["far"] = &far
			announced("after")
			// What a node has had before the Service came it keeps, whatever is granted.
			if tt.since != 0 {
				for _, a := range tt.addrs {
					far.Since[a] = 299
				}
				c.Blocks[prefix("172.31.1.192/28")].Created, c.Blocks[prefix("fd00:31:1::c0/124")].Created = 300, 300
				far.Addrs = append(slices.Clone(tt.addrs), far.Addrs...)
				s := Calc(c)
				for _, a := range tt.addrs {
					if s.Announced[a] {
						t.Errorf("%s, which a node has had for longer, is answered for", a)
					}
				}
			}
		})
	}
}

// TestHostileOnAnotherLink: a node that says to be on a link of others is not left to answer there,
// whatever it claims with it: of those that are on the link one answers for each address.
func TestHostileOnAnotherLink(t *testing.T) {
	links := []netip.Prefix{prefix("172.31.1.0/24"), prefix("fd00:31:1::/64")}
	onLink := []netip.Addr{addr("172.31.1.250"), addr("fd00:31:1::250")} // of no node
	claim := func(since int64) func(*model.Node) {
		return func(n *model.Node) {
			n.Subnets, n.Addrs = links, append(slices.Clone(onLink), n.Addrs...)
			if since != 0 {
				n.Since = map[netip.Addr]int64{onLink[0]: since, onLink[1]: since}
			}
		}
	}
	for _, tt := range []struct {
		attack  string
		change  func(liar *model.Node)
		asked   bool // the nodes of the link have asked those that they watch
		answers bool // another machine answers there at the address that the liar claims
	}{
		{"a node says that it is on a link of other nodes, to be chosen as the one that answers there",
			func(n *model.Node) { n.Subnets = links }, false, false},
		{"a node says that its network holds that of other nodes, to be chosen as the one that answers there",
			func(n *model.Node) { n.Subnets = []netip.Prefix{prefix("172.31.0.0/16"), prefix("fd00:31::/32")} }, false, false},
		{"a node comes to claim an address of a link of other nodes, to be chosen as the one that answers there", claim(950), false, false},
		{"a node comes to claim another machine's address on a link of other nodes, to be chosen as the one that answers there", claim(950), true, true},
		{"a node claims from the start an address of a link of other nodes, to be chosen as the one that answers there", claim(0), true, false},
	} {
		t.Run(tt.attack, func(t *testing.T) {
			hostile.Record(t, tt.attack, hostile.Node, hostile.ControlPlane, hostile.Both)
			c := announcedCluster(4, 60)
			c.Pools["lb6"] = &model.Pool{Name: "lb6", CIDR: prefix("fd00:31:1::1:0/112"), LoadBalancer: true, BlockBits: 122}
			i := 0
			for _, s := range c.Services {
				i++
				s.ClusterIPs = append(s.ClusterIPs, addr(fmt.Sprintf("fd00:10:96::%x", i)))
				s.LBIPs = append(s.LBIPs, addr(fmt.Sprintf("fd00:31:1::1:%x", i)))
			}
			for name, n := range c.Nodes {
				n.Addrs = append(n.Addrs, addr("fd00:31:1::"+name[1:]+"1"))
				n.Subnets, n.Created = links, 100
			}
			honest := slices.Sorted(maps.Keys(c.Nodes))
			liar := &model.Node{Name: "liar", Addrs: []netip.Addr{addr("172.31.2.20"), addr("fd00:31:2::20")}, Created: 100}
			tt.change(liar)
			c.Nodes["liar"] = liar
			answered := map[netip.Addr]int{}
			for _, name := range honest {
				c.Local = model.Local{Node: name, Subnets: links}
				s := Calc(c)
				if tt.asked {
					c.Local.Silent = map[netip.Addr]bool{}
					for a := range s.Watched {
						if claimed := slices.Contains(onLink, a); !claimed || !tt.answers {
							c.Local.Silent[a] = claimed
						}
					}
					s = Calc(c)
				}
				for a := range s.Announced {
					answered[a]++
				}
			}
			if len(answered) != 120 {
				t.Errorf("of 120 addresses %d are answered for on the link", len(answered))
			}
			for a, n := range answered {
				if n != 1 {
					t.Errorf("%s is answered for by %d nodes", a, n)
				}
			}
		})
	}
}

// TestNewcomerAnswers: a node that came to claim its address, as one that was given another,
// answers once it was found there.
func TestNewcomerAnswers(t *testing.T) {
	c := announcedCluster(3, 60)
	at := c.Nodes["n1"].NodeAddr()
	c.Nodes["n1"].Since = map[netip.Addr]int64{at: 950}
	for _, found := range []bool{false, true} {
		silent := func(string, string) bool { return false }
		if !found {
			silent = nil
		}
		both, alone := 0, 0
		for a, names := range owners(c, silent) {
			switch {
			case slices.Equal(names, []string{"n1"}):
				alone++
			case len(names) == 2 && slices.Contains(names, "n1"):
				both++
			case len(names) != 1:
				t.Errorf("%s is answered for by %v", a, names)
			}
		}
		if found && (alone == 0 || both > 0) || !found && (alone > 0 || both == 0) {
			t.Errorf("found %v: the newcomer answers for %d addresses, with another node for %d", found, alone, both)
		}
	}
}
