// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// announced has n nodes on one link, pools of load balancers in and outside of it, and Services
// lb0.. with an address each.
func announcedCluster(nodes, services int) *model.Cluster {
	c := model.NewCluster()
	c.Pools["lb"] = &model.Pool{Name: "lb", CIDR: prefix("172.31.1.128/25"), LoadBalancer: true, BlockBits: 26}
	for i := range nodes {
		name := fmt.Sprint("n", i)
		c.Nodes[name] = &model.Node{Name: name, Addrs: []netip.Addr{addr(fmt.Sprintf("172.31.1.%d", i+1))}, Subnets: []netip.Prefix{prefix("172.31.1.0/24")}}
	}
	for i := range services {
		n := model.Name{Namespace: "ns", Name: fmt.Sprint("lb", i)}
		c.Services[n] = &model.Service{Name: n, ClusterIPs: []netip.Addr{addr(fmt.Sprintf("10.96.0.%d", i+1))}, LBIPs: []netip.Addr{addr(fmt.Sprintf("172.31.1.%d", 129+i))},
			Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 80}}}
	}
	return c
}

// owners says, for each address, which nodes answer for it, each by its own calculation.
func owners(c *model.Cluster, silent func(seenBy, node string) bool) map[netip.Addr][]string {
	out := map[netip.Addr][]string{}
	for name := range c.Nodes {
		c.Local = model.Local{Node: name, Silent: map[netip.Addr]bool{}}
		for other := range c.Nodes {
			if silent != nil {
				c.Local.Silent[c.Nodes[other].NodeAddr()] = silent(name, other)
			}
		}
		for a := range Calc(c).Announced {
			out[a] = append(out[a], name)
		}
	}
	for _, names := range out {
		slices.Sort(names)
	}
	return out
}

func one(t *testing.T, got map[netip.Addr][]string, services int) map[netip.Addr]string {
	t.Helper()
	out := map[netip.Addr]string{}
	for a, names := range got {
		if len(names) != 1 {
			t.Errorf("%s is answered for by %v", a, names)
		}
		out[a] = names[0]
	}
	if len(out) != services {
		t.Errorf("%d addresses of %d are answered for", len(out), services)
	}
	return out
}

func TestExactlyOneNodeAnswers(t *testing.T) {
	c := announcedCluster(5, 100)
	before := one(t, owners(c, nil), 100)
	load := map[string]int{}
	for _, n := range before {
		load[n]++
	}
	for n, k := range load {
		if k < 8 || k > 35 {
			t.Errorf("%s answers for %d of 100 addresses", n, k)
		}
	}
	// One that is not ready, or left out by its label, loses its addresses, and no other moves.
	for what, change := range map[string]func(*model.Node){
		"not ready": func(n *model.Node) { n.NotReady = true },
		"left out":  func(n *model.Node) { n.Labels = map[string]string{model.LabelNoBalancers: ""} },
		"elsewhere": func(n *model.Node) { n.Subnets = []netip.Prefix{prefix("172.31.2.0/24")} },
	} {
		c := announcedCluster(5, 100)
		change(c.Nodes["n2"])
		after := one(t, owners(c, nil), 100)
		for a, n := range before {
			if after[a] == "n2" || n != "n2" && after[a] != n {
				t.Errorf("%s: %s went from %s to %s", what, a, n, after[a])
			}
		}
	}
	for _, n := range c.Nodes {
		n.NotReady = true
	}
	if after := one(t, owners(c, nil), 100); after[addr("172.31.1.129")] != before[addr("172.31.1.129")] {
		t.Error("when no node is ready, nobody answers, or others do")
	}
}

// A node that is silent on the link is replaced by the next one, which watches it, before the API
// knows.
func TestSilentNodeIsReplaced(t *testing.T) {
	c := announcedCluster(5, 100)
	before := one(t, owners(c, nil), 100)
	gone := func(_, node string) bool { return node == "n2" }
	got := owners(c, gone)
	for a, names := range got {
		names = slices.DeleteFunc(names, func(n string) bool { return n == "n2" }) // it cannot be heard
		if len(names) != 1 || before[a] != "n2" && names[0] != before[a] {
			t.Errorf("%s: %v answer, before %s", a, names, before[a])
		}
	}
	// Two at once.
	for a, names := range owners(c, func(_, node string) bool { return node == "n2" || node == "n3" }) {
		names = slices.DeleteFunc(names, func(n string) bool { return n == "n2" || n == "n3" })
		if len(names) != 1 {
			t.Errorf("%s: %v answer with two nodes silent", a, names)
		}
	}
	// Each address is watched by the two that come next.
	watchers := map[string]int{}
	for name := range c.Nodes {
		c.Local = model.Local{Node: name}
		for w := range Calc(c).Watched {
			watchers[w.String()]++
		}
	}
	if len(watchers) != 5 {
		t.Errorf("watched nodes: %v", watchers)
	}
	single := announcedCluster(5, 1)
	n := 0
	for name := range single.Nodes {
		single.Local = model.Local{Node: name}
		n += len(Calc(single).Watched)
	}
	if n != 1+2 {
		t.Errorf("%d watches for one address, want one by the second node and two by the third", n)
	}
}

func TestExternalTrafficPolicyLocalIsAnsweredWhereEndpointsAre(t *testing.T) {
	c := announcedCluster(5, 40)
	for name, s := range c.Services {
		s.ExternalLocal = true
		sl := model.Name{Namespace: "ns", Name: name.Name + "-x"}
		c.Slices[sl] = &model.EndpointSlice{Name: sl, Service: name, Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 80}}, Endpoints: []model.ServiceEndpoint{
			{Addrs: []netip.Addr{addr("10.1.0.1")}, Node: "n1", Ready: true, Serving: true},
			{Addrs: []netip.Addr{addr("10.1.0.2")}, Node: "n3", Ready: false},
			{Addrs: []netip.Addr{addr("10.1.0.3")}, Node: "n4", Ready: false, Serving: true, Terminating: true},
		}}
	}
	seen := map[string]bool{}
	for _, n := range one(t, owners(c, nil), 40) {
		seen[n] = true
	}
	if !seen["n1"] || !seen["n4"] || len(seen) != 2 {
		t.Errorf("answered by %v, want n1 and n4", seen)
	}
	clear(c.Slices) // nobody serves: somebody answers, to refuse
	one(t, owners(c, nil), 40)
}

func TestWhatIsAnnounced(t *testing.T) {
	c := announcedCluster(1, 1)
	s := c.Services[model.Name{Namespace: "ns", Name: "lb0"}]
	s.LBIPs = append(s.LBIPs, addr("172.31.1.77"), addr("198.51.100.1")) // of no pool; not on the link
	s.ExternalIPs = []netip.Addr{addr("172.31.1.78")}
	c.Local = model.Local{Node: "n0", Endpoints: map[netip.Addr]*model.LocalEndpoint{addr("172.31.1.90"): {}, addr("10.1.0.7"): {}}}
	if got := Calc(c).Announced; len(got) != 1 {
		t.Errorf("by default %v", got)
	}
	c.Settings.L2Reachability = true
	got := Calc(c).Announced
	for _, want := range []string{"172.31.1.129", "172.31.1.77", "172.31.1.78", "172.31.1.90"} {
		if _, ok := got[addr(want)]; !ok {
			t.Errorf("%s is missing in %v", want, got)
		}
	}
	if len(got) != 4 {
		t.Errorf("with PodsAndLoadBalancers %v", got)
	}
}

// A Service names what it likes. Who asks the link for a node has to find that node.
func TestNodesAnswerForThemselves(t *testing.T) {
	c := announcedCluster(3, 1)
	c.Settings.L2Reachability = true
	c.Services[model.Name{Namespace: "ns", Name: "lb0"}].ExternalIPs = []netip.Addr{addr("172.31.1.2"), addr("172.31.1.78")}
	got := owners(c, nil)
	if len(got[addr("172.31.1.2")]) != 0 || len(got[addr("172.31.1.78")]) != 1 {
		t.Errorf("answered for: %v", got)
	}
	delete(c.Nodes, "n1") // whose address it was
	one(t, owners(c, nil), 3)
}

func TestPoolAmongNodesIsNotRouted(t *testing.T) {
	c := announcedCluster(2, 1)
	c.Local = model.Local{Node: "n0"}
	if s := Calc(c); len(s.Routes) != 1 || len(s.Settings.PoolRoutes) != 1 {
		t.Errorf("a pool alongside the nodes: %v %v", s.Routes, s.Settings.PoolRoutes)
	}
	c.Pools["lb"].CIDR = prefix("172.31.1.0/24")
	c.Blocks[prefix("172.31.1.128/26")] = &model.Block{CIDR: prefix("172.31.1.128/26"), Node: cluster.LoadBalancers}
	if s := Calc(c); len(s.Routes) != 0 || len(s.Settings.PoolRoutes) != 0 {
		t.Errorf("a pool that is the nodes' subnet: %v %v", s.Routes, s.Settings.PoolRoutes)
	}
}
