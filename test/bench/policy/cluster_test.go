// SPDX-License-Identifier: Apache-2.0

// Package policy measures what a change of policy costs an agent: from the cluster that changed to
// the maps that are equal to it.
package policy

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// The sizes of the policy figures: see docs/results/benchmarks.md.
const (
	scaleNodes      = 1000
	scalePodsANode  = 100
	scaleNamespaces = 200
)

// scaled returns a cluster of 1,000 nodes with a hundred pods each (110 on node-0) in 200
// namespaces, and policies of ten rules each spread over the namespaces.
func scaled(policies int, holes bool) *model.Cluster {
	c := model.NewCluster()
	c.Pools["main"] = &model.Pool{Name: "main", CIDR: prefix("10.0.0.0/8"), VXLAN: model.EncapAlways, NATOutgoing: true, Workload: true}
	c.Local = model.Local{Node: "node-0", LinkMTU: 1500, Endpoints: map[netip.Addr]*model.LocalEndpoint{},
		HostAddrs: []netip.Addr{addr("172.16.0.1")}, Subnets: []netip.Prefix{prefix("172.16.0.0/16")}}
	for i := range scaleNamespaces {
		ns := fmt.Sprint("ns-", i)
		c.Namespaces[ns] = &model.Namespace{Name: ns, Labels: map[string]string{"kubernetes.io/metadata.name": ns, "team": fmt.Sprint("team-", i%20)}}
	}
	var shared model.Shared // as the agent's watch does
	for i := range scaleNodes {
		n := fmt.Sprint("node-", i)
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i << 1), 0}), 24)
		c.Nodes[n] = &model.Node{Name: n, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i / 250), byte(i%250 + 1)})}}
		c.Blocks[block] = &model.Block{CIDR: block, Node: n}
		pods := scalePodsANode
		if i == 0 {
			pods = 110
		}
		ip := block.Addr()
		for j := range pods {
			ip = ip.Next()
			pod := &model.Pod{Name: model.Name{Namespace: fmt.Sprint("ns-", (i+j)%scaleNamespaces), Name: fmt.Sprint("pod-", i, "-", j)}, Node: n,
				ServiceAccount: "default", Labels: map[string]string{"app": fmt.Sprint("app-", j%20), "version": fmt.Sprint("v", i%3), "pod-template-hash": fmt.Sprint(i % 50)}, Addrs: []netip.Addr{ip},
				Ports: []model.PodPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080}}}
			shared.Pod(pod)
			c.Pods.Put(pod)
			if i == 0 {
				c.Local.Endpoints[ip] = &model.LocalEndpoint{Pod: pod.Name, IfIndex: 10 + j, Addrs: []netip.Addr{ip}}
			}
		}
	}
	for i := range policies {
		p := scaledPolicy(i, holes)
		c.Policies[p.ID()] = p
	}
	return c
}

// scaledPolicy has five rules in and five out: apps of its own namespace, a team's pods of a
// version, a network. With holes the network is the same for all, but for a part that each policy
// leaves out: the worst for a partition of addresses.
func scaledPolicy(i int, holes bool) *model.Policy {
	ns := fmt.Sprint("ns-", i%scaleNamespaces)
	p := &model.Policy{Kind: "NetworkPolicy", Name: model.Name{Namespace: ns, Name: fmt.Sprint("policy-", i)}, Tier: "default", Order: model.NetworkPolicyOrder,
		Subject: model.Selector{Namespace: ns, Pods: equals("app", fmt.Sprint("app-", i/scaleNamespaces%20))}, AppliesIngress: true, AppliesEgress: true}
	for r := range 5 {
		peers := []model.Peer{{Pods: &model.Selector{Namespace: ns, Pods: equals("app", fmt.Sprint("app-", (i+r)%20))}}}
		switch r {
		case 3:
			peers = []model.Peer{{Pods: &model.Selector{Namespaces: equals("team", fmt.Sprint("team-", i%20)), Pods: equals("version", fmt.Sprint("v", i%3))}}}
		case 4:
			net := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(i % 50), 0}), 24)
			if peers = []model.Peer{{CIDR: net}}; holes {
				peers = []model.Peer{{CIDR: prefix("192.168.0.0/16"), Except: []netip.Prefix{net}}}
			}
		}
		p.Ingress = append(p.Ingress, model.Rule{Peers: peers, Ports: []model.PortRange{tcp(uint16(8080+r), uint16(8080+r))}})
		p.Egress = append(p.Egress, model.Rule{Peers: peers, Ports: []model.PortRange{tcp(uint16(9000+10*r), uint16(9000+10*r))}})
	}
	return p
}

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func tcp(first, last uint16) model.PortRange {
	return model.PortRange{Protocol: model.ProtocolTCP, First: first, Last: last}
}

// equals is a selector of one label.
func equals(key, value string) *model.LabelSelector {
	return &model.LabelSelector{Requirements: []model.Requirement{{Key: key, Op: model.In, Values: []string{value}}}}
}

// wide is a policy about one pod of this node with a rule for each of n networks.
func wide(c *model.Cluster, n int) *model.Policy {
	pod := c.Pods.Get(model.Name{Namespace: "ns-7", Name: "pod-0-7"})
	p := &model.Policy{Kind: model.KindGlobalNetworkPolicy, Name: model.Name{Name: "wide"}, Tier: model.TierDefault, Order: 1,
		Subject: model.Selector{Namespace: pod.Name.Namespace, Pods: equals("app", pod.Labels["app"])}, AppliesIngress: true}
	for i := range n {
		net := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(18 + i>>16), byte(i >> 8), byte(i)}), 32)
		p.Ingress = append(p.Ingress, model.Rule{Peers: []model.Peer{{CIDR: net}}, Ports: []model.PortRange{tcp(uint16(1+i%1000), uint16(1+i%1000))}})
	}
	return p
}
