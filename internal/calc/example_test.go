// SPDX-License-Identifier: Apache-2.0

package calc_test

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Two nodes: n1, for which the state is calculated, runs the pod db, and n2 runs web and batch. The
// Service 10.96.0.1:80 leads to db, and a NetworkPolicy lets only pods with the label app=web in,
// at port 5432. Pods that no rule in use distinguishes are of the same class, 0 if none names them.
func Example() {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	inShop := func(name string) model.Name { return model.Name{Namespace: "shop", Name: name} }
	label := func(app string) *model.LabelSelector {
		return &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.In, Values: []string{app}}}}
	}

	c := model.NewCluster()
	for name, a := range map[string]string{"n1": "192.0.2.1", "n2": "192.0.2.2"} {
		c.Nodes[name] = &model.Node{Name: name, Addrs: []netip.Addr{addr(a)}, Subnets: []netip.Prefix{prefix("192.0.2.0/24")}}
	}
	c.Pools["pods"] = &model.Pool{Name: "pods", CIDR: prefix("10.244.0.0/16"), BlockBits: 26, Workload: true}
	for cidr, node := range map[string]string{"10.244.1.0/26": "n1", "10.244.2.0/26": "n2"} {
		c.Blocks[prefix(cidr)] = &model.Block{CIDR: prefix(cidr), Node: node}
	}
	c.Namespaces["shop"] = &model.Namespace{Name: "shop"}
	for _, p := range []struct{ name, node, addr string }{{"db", "n1", "10.244.1.2"}, {"web", "n2", "10.244.2.2"}, {"batch", "n2", "10.244.2.3"}} {
		c.Pods.Put(&model.Pod{Name: inShop(p.name), Node: p.node, Addrs: []netip.Addr{addr(p.addr)}, Labels: map[string]string{"app": p.name}})
	}
	// What only the node itself knows: its addresses, and which interface is which pod's.
	c.Local = model.Local{Node: "n1", LinkMTU: 1500, HostAddrs: []netip.Addr{addr("192.0.2.1")}, Subnets: []netip.Prefix{prefix("192.0.2.0/24")},
		Endpoints: map[netip.Addr]*model.LocalEndpoint{addr("10.244.1.2"): {Pod: inShop("db"), Interface: "cali1", IfIndex: 7, Addrs: []netip.Addr{addr("10.244.1.2")}}}}
	c.Services[inShop("db")] = &model.Service{Name: inShop("db"), ClusterIPs: []netip.Addr{addr("10.96.0.1")},
		Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 80}}}
	c.Slices[inShop("db")] = &model.EndpointSlice{Name: inShop("db"), Service: inShop("db"), Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 5432}},
		Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{addr("10.244.1.2")}, Node: "n1", Ready: true, Serving: true}}}
	policy := &model.Policy{Kind: model.KindNetworkPolicy, Name: inShop("db"), Tier: model.TierDefault, Order: model.NetworkPolicyOrder,
		Subject: model.Selector{Namespace: "shop", Pods: label("db")}, AppliesIngress: true,
		Ingress: []model.Rule{{Peers: []model.Peer{{Pods: &model.Selector{Namespace: "shop", Pods: label("web")}}},
			Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: 5432, Last: 5432}}}}}
	c.Policies[policy.ID()] = policy

	s := calc.Calc(c)
	for _, b := range s.Backends.At(nodestate.Frontend{Addr: addr("10.96.0.1"), Port: 80, Proto: model.ProtocolTCP}) {
		fmt.Println("the Service leads to", netip.AddrPortFrom(b.Addr, b.Port))
	}
	fmt.Println("pods of n2 are reached by", s.Routes[prefix("10.244.2.0/26")].Node)
	ingress := s.Addrs[addr("10.244.1.2")].Ingress // the policy set of db
	for _, peer := range []string{"10.244.2.2", "10.244.2.3"} {
		allowed, rule := s.Verdict(ingress, addr(peer), model.ProtocolTCP, nodestate.Ports{Dst: 5432})
		fmt.Printf("%s: class %x, allowed %t by %s\n", peer, s.ClassOf(addr(peer)), allowed, s.RuleText(rule))
	}
	// Output:
	// the Service leads to 10.244.1.2:5432
	// pods of n2 are reached by 192.0.2.2
	// 10.244.2.2: class e3c6815083a018d2, allowed true by NetworkPolicy shop/db ingress[0]
	// 10.244.2.3: class 0, allowed false by default-deny shop/db ingress
}
