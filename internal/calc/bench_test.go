// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// large returns a cluster of 1,000 nodes with a block and ten pods each, in a hundred namespaces;
// every namespace has the same policies: those of one bind some of this node's pods.
func large(policies int) *model.Cluster {
	c := model.NewCluster()
	c.Pools["main"] = &model.Pool{Name: "main", CIDR: prefix("10.0.0.0/8"), VXLAN: model.EncapAlways, NATOutgoing: true, Workload: true}
	c.Local = model.Local{Node: "node-0", LinkMTU: 1500, Endpoints: map[netip.Addr]*model.LocalEndpoint{},
		HostAddrs: []netip.Addr{addr("172.16.0.1")}, Subnets: []netip.Prefix{prefix("172.16.0.0/16")}}
	for i := range 100 {
		ns := fmt.Sprint("ns-", i)
		c.Namespaces[ns] = &model.Namespace{Name: ns, Labels: map[string]string{"kubernetes.io/metadata.name": ns, "team": fmt.Sprint(i % 10)}}
	}
	for i := range 1000 {
		n := fmt.Sprint("node-", i)
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 256), byte(i), 0}), 26)
		c.Nodes[n] = &model.Node{Name: n, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i / 256), byte(i%256 + 1)})}}
		c.Blocks[block] = &model.Block{CIDR: block, Node: n}
		ip := block.Addr()
		for j := range 10 {
			ip = ip.Next()
			pod := &model.Pod{Name: model.Name{Namespace: fmt.Sprint("ns-", (i+j)%100), Name: fmt.Sprint("pod-", i, "-", j)}, Node: n,
				Labels: map[string]string{"app": fmt.Sprint("app-", j), "version": fmt.Sprint(i % 3)}, Addrs: []netip.Addr{ip},
				Ports: []model.PodPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080}}}
			c.Pods.Put(pod)
			if i == 0 {
				c.Local.Endpoints[ip] = &model.LocalEndpoint{Pod: pod.Name, IfIndex: 10 + j, Addrs: []netip.Addr{ip}}
			}
		}
	}
	for i := range policies {
		ns := fmt.Sprint("ns-", i%100)
		p := &model.Policy{Kind: "NetworkPolicy", Name: model.Name{Namespace: ns, Name: fmt.Sprint("policy-", i)}, Tier: "default",
			Subject: model.Selector{Namespace: ns}, AppliesIngress: true, AppliesEgress: true,
			Ingress: []model.Rule{{Peers: []model.Peer{
				{Pods: &model.Selector{Namespace: ns, Pods: equals("app", fmt.Sprint("app-", i%10))}},
				{Pods: &model.Selector{Namespaces: equals("team", fmt.Sprint(i%10)), Pods: equals("version", "1")}},
				{CIDR: prefix("192.168.0.0/16"), Except: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(i), 0}), 24)}}},
				Ports: []model.PortRange{tcp(8080, 8080), tcp(9000, 9100)}}},
			Egress: []model.Rule{{Ports: []model.PortRange{{Protocol: model.ProtocolUDP, First: 53, Last: 53}}},
				{Peers: []model.Peer{{Pods: &model.Selector{Namespaces: equals("team", fmt.Sprint(i%10))}}}}}}
		c.Policies[p.ID()] = p
	}
	return c
}

// withServices adds Services of three endpoints each.
func withServices(c *model.Cluster, services int) *model.Cluster {
	for i := range services {
		n := model.Name{Namespace: fmt.Sprint("ns-", i%100), Name: fmt.Sprint("service-", i)}
		s := &model.Service{Name: n, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{100, 64, byte(i / 256), byte(i)})},
			Ports: []model.ServicePort{{Name: "http", Protocol: model.ProtocolTCP, Port: 80}, {Name: "https", Protocol: model.ProtocolTCP, Port: 443}}}
		if i%10 == 0 {
			s.Ports[0].NodePort = uint16(30000 + i/10%2768)
		}
		c.Services[n] = s
		sl := &model.EndpointSlice{Name: model.Name{Namespace: n.Namespace, Name: n.Name + "-abcde"}, Service: n,
			Ports: []model.EndpointPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080}, {Name: "https", Protocol: model.ProtocolTCP, Port: 8443}}}
		for j := range 3 {
			node := (i*3 + j) % 1000
			sl.Endpoints = append(sl.Endpoints, model.ServiceEndpoint{Node: fmt.Sprint("node-", node), Ready: true, Serving: true,
				Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(node / 256), byte(node), byte(1 + i%10)})}})
		}
		c.Slices[sl.Name] = sl
	}
	return c
}

func BenchmarkCalc(b *testing.B) {
	for _, size := range []struct{ policies, services int }{{0, 0}, {200, 0}, {0, 10000}, {200, 10000}} {
		b.Run(fmt.Sprintf("policies=%d/services=%d", size.policies, size.services), func(b *testing.B) {
			c := withServices(large(size.policies), size.services)
			b.ReportAllocs()
			var s *nodestate.State
			for b.Loop() {
				s = Calc(c)
			}
			b.ReportMetric(float64(s.Policy.Len()), "verdicts")
			b.ReportMetric(float64(s.Peers.Len()), "peers")
		})
	}
}

// BenchmarkUpdate changes one thing in a large cluster.
func BenchmarkUpdate(b *testing.B) {
	c := withServices(large(200), 10000)
	slice := model.Name{Namespace: "ns-7", Name: "service-7-abcde"}
	two, three := *c.Slices[slice], c.Slices[slice]
	two.Endpoints = two.Endpoints[:2]
	service := model.Name{Namespace: "ns-8", Name: "service-8"}
	full, other := *c.Services[service], *c.Services[service]
	other.Ports = other.Ports[:1]
	pod := *c.Pods.Get(model.Name{Namespace: "ns-0", Name: "pod-500-0"})
	change := map[string]func(i int) model.Dirty{
		"slice": func(i int) (d model.Dirty) {
			c.Slices[slice] = []*model.EndpointSlice{&two, three}[i%2]
			d.AddSlice(slice)
			return d
		},
		"service": func(i int) (d model.Dirty) {
			c.Services[service] = []*model.Service{&other, &full}[i%2]
			d.AddService(service)
			return d
		},
		"pod": func(i int) (d model.Dirty) {
			p := pod
			p.Labels = app(fmt.Sprint("app-", i%2))
			d.AddPod(pod.Name, c.Pods.Get(pod.Name))
			c.Pods.Put(&p)
			return d
		},
		"policy": func(i int) (d model.Dirty) {
			p := *c.Policies[policyID("ns-0", "policy-0")]
			p.AppliesEgress = !p.AppliesEgress
			c.Policies[p.ID()] = &p
			d.Add(model.KindPolicies)
			return d
		},
		"node": func(i int) (d model.Dirty) {
			n := *c.Nodes["node-9"]
			n.LinkAddress[5] = byte(i)
			c.Nodes[n.Name] = &n
			d.Add(model.KindNodes)
			return d
		},
	}
	change["namespace"] = func(i int) (d model.Dirty) {
		ns := *c.Namespaces["ns-50"]
		ns.Labels = map[string]string{"kubernetes.io/metadata.name": ns.Name, "team": fmt.Sprint(i % 2)}
		c.Namespaces[ns.Name] = &ns
		d.Add(model.KindNamespaces)
		return d
	}
	for _, name := range []string{"slice", "service", "pod", "policy", "node", "namespace"} {
		b.Run(name, func(b *testing.B) {
			k := New()
			k.Update(c, model.AllDirty())
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, keys := k.Update(c, change[name](i)); keys.Tables == 0 && i > 0 {
					b.Fatal("the change changed nothing")
				}
			}
		})
	}
}
