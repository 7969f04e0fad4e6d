// SPDX-License-Identifier: Apache-2.0

// Package modeltest makes clusters of any size for tests and benchmarks.
package modeltest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// Requires selects a value of a label.
func Requires(key, value string) *model.LabelSelector {
	return &model.LabelSelector{Requirements: []model.Requirement{{Key: key, Op: model.In, Values: []string{value}}}}
}

// Fleet returns a cluster of some nodes, each with a block and pods of some namespaces in it.
func Fleet(nodes, podsEach, namespaces int) *model.Cluster {
	c := model.NewCluster()
	c.Pools["pool"] = &model.Pool{Name: "pool", CIDR: netip.MustParsePrefix("10.0.0.0/8"), BlockBits: 24, Workload: true}
	for i := range namespaces {
		ns := fmt.Sprint("ns", i)
		c.Namespaces[ns] = &model.Namespace{Name: ns, Labels: map[string]string{"team": fmt.Sprint("t", i%7)}}
	}
	for i := range nodes {
		n := &model.Node{Name: fmt.Sprint("node", i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})}}
		c.Nodes[n.Name] = n
		at := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
		c.Blocks[netip.PrefixFrom(at, 24)] = &model.Block{CIDR: netip.PrefixFrom(at, 24), Node: n.Name}
		for j := range podsEach {
			at = at.Next()
			k := i*podsEach + j
			p := &model.Pod{Name: model.Name{Namespace: fmt.Sprint("ns", k%namespaces), Name: fmt.Sprint("pod", k)}, Node: n.Name, Addrs: []netip.Addr{at}, UID: fmt.Sprintf("%08x-0000-4000-8000-000000000000", k),
				Labels: map[string]string{"app": fmt.Sprint("app", k/namespaces%5), "pod-template-hash": fmt.Sprint(k % 50)},
				Ports:  []model.PodPort{{Protocol: model.ProtocolTCP, Port: 8080}}}
			c.Pods.Put(p)
		}
	}
	return c
}

// AddPolicies adds NetworkPolicies of ten rules each: half of their peers are pods of the policy's
// own namespace, 40 % all pods of some namespaces (1 to 5 % of them), 10 % networks.
func AddPolicies(c *model.Cluster, policies int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	spaces := len(c.Namespaces)
	for i := range policies {
		ns := fmt.Sprint("ns", i%spaces)
		p := &model.Policy{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: ns, Name: fmt.Sprint("p", i)}, Tier: model.TierDefault, AppliesIngress: true,
			Subject: model.Selector{Namespace: ns, Pods: Requires("app", fmt.Sprint("app", r.IntN(5)))}}
		for range 10 {
			rule := model.Rule{Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: 8080, Last: 8080}}}
			switch k := r.IntN(10); {
			case k < 5:
				rule.Peers = []model.Peer{{Pods: &model.Selector{Namespace: ns, Pods: Requires("app", fmt.Sprint("app", r.IntN(5)))}}}
			case k < 9:
				in := model.Requirement{Key: "kubernetes.io/metadata.name", Op: model.In}
				for range spaces/100 + r.IntN(spaces*4/100+1) {
					in.Values = append(in.Values, fmt.Sprint("ns", r.IntN(spaces)))
				}
				rule.Peers = []model.Peer{{Pods: &model.Selector{Namespaces: &model.LabelSelector{Requirements: []model.Requirement{in}}}}}
			default:
				rule.Peers = []model.Peer{{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(r.IntN(256)), 0}), 24)}}
			}
			p.Ingress = append(p.Ingress, rule)
		}
		c.Policies[p.ID()] = p
	}
	for n, ns := range c.Namespaces {
		ns.Labels["kubernetes.io/metadata.name"] = n
	}
}

// AddServices adds Services with an EndpointSlice each, of some pods of their namespaces.
func AddServices(c *model.Cluster, services, endpoints int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	in := map[string][]*model.Pod{}
	for p := range c.Pods.All() {
		in[p.Name.Namespace] = append(in[p.Name.Namespace], p)
	}
	for i := range services {
		n := model.Name{Namespace: fmt.Sprint("ns", i%len(c.Namespaces)), Name: fmt.Sprint("svc", i)}
		c.Services[n] = &model.Service{Name: n, UID: n.Name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 30, byte(i >> 8), byte(i)})},
			Ports: []model.ServicePort{{Name: "http", Protocol: model.ProtocolTCP, Port: 80}}}
		sl := &model.EndpointSlice{Name: n, Service: n, Ports: []model.EndpointPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080}}}
		for pods := in[n.Namespace]; len(sl.Endpoints) < endpoints; {
			p := pods[r.IntN(len(pods))]
			sl.Endpoints = append(sl.Endpoints, model.ServiceEndpoint{Addrs: p.Addrs, Node: p.Node, Ready: true, Serving: true})
		}
		c.Slices[sl.Name] = sl
	}
}
