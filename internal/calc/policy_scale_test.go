package calc

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// The sizes of the policy figures: see docs/benchmarks.md.
const (
	scaleNodes      = 1000
	scalePodsANode  = 100
	scaleNamespaces = 200
)

// scaled returns a cluster of 1,000 nodes with a hundred pods each (110 on node-0) in 200 namespaces, and policies of ten rules
// each spread over the namespaces.
func scaled(policies int) *model.Cluster {
	c := model.NewCluster()
	c.Pools["main"] = &model.Pool{Name: "main", CIDR: prefix("10.0.0.0/8"), VXLAN: model.EncapAlways, NATOutgoing: true, Workload: true}
	c.Local = model.Local{Node: "node-0", LinkMTU: 1500, Endpoints: map[netip.Addr]*model.LocalEndpoint{},
		HostAddrs: []netip.Addr{addr("172.16.0.1")}, Subnets: []netip.Prefix{prefix("172.16.0.0/16")}}
	for i := range scaleNamespaces {
		ns := fmt.Sprint("ns-", i)
		c.Namespaces[ns] = &model.Namespace{Name: ns, Labels: map[string]string{"kubernetes.io/metadata.name": ns, "team": fmt.Sprint("team-", i%20)}}
	}
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
			c.Pods[pod.Name] = pod
			if i == 0 {
				c.Local.Endpoints[ip] = &model.LocalEndpoint{Pod: pod.Name, IfIndex: 10 + j, Addrs: []netip.Addr{ip}}
			}
		}
	}
	for i := range policies {
		p := scaledPolicy(i)
		c.Policies[p.ID()] = p
	}
	return c
}

// scaledPolicy has five rules in and five out: an app of its own namespace, a team's pods of a version, a network.
func scaledPolicy(i int) *model.Policy {
	ns := fmt.Sprint("ns-", i%scaleNamespaces)
	p := &model.Policy{Kind: "NetworkPolicy", Name: model.Name{Namespace: ns, Name: fmt.Sprint("policy-", i)}, Tier: "default", Order: model.NetworkPolicyOrder,
		Subject: model.Selector{Namespace: ns, Pods: equals("app", fmt.Sprint("app-", i/scaleNamespaces%20))}, AppliesIngress: true, AppliesEgress: true}
	for r := range 5 {
		peers := []model.Peer{{Pods: &model.Selector{Namespace: ns, Pods: equals("app", fmt.Sprint("app-", (i+r)%20))}}}
		switch r {
		case 3:
			peers = []model.Peer{{Pods: &model.Selector{Namespaces: equals("team", fmt.Sprint("team-", i%20)), Pods: equals("version", fmt.Sprint("v", i%3))}}}
		case 4:
			peers = []model.Peer{{CIDR: prefix("192.168.0.0/16"), Except: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(i), 0}), 24)}}}
		}
		p.Ingress = append(p.Ingress, model.Rule{Peers: peers, Ports: []model.PortRange{tcp(uint16(8080+r), uint16(8080+r))}})
		p.Egress = append(p.Egress, model.Rule{Peers: peers, Ports: []model.PortRange{tcp(uint16(9000+10*r), uint16(9000+10*r))}})
	}
	return p
}

// BenchmarkPolicyAtScale changes one thing of policy with 2,000 policies of ten rules and 100,000 pods.
func BenchmarkPolicyAtScale(b *testing.B) {
	c := scaled(2000)
	remote := *c.Pods[model.Name{Namespace: "ns-100", Name: "pod-500-0"}]
	if remote.Node != "node-500" {
		b.Fatal("no such pod")
	}
	local := *c.Pods[model.Name{Namespace: "ns-7", Name: "pod-0-7"}]
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			s := Calc(c)
			b.ReportMetric(float64(s.Policy.Len()), "verdicts")
			b.ReportMetric(float64(s.Peers.Len()), "peers")
		}
	})
	relabel := func(of model.Pod) func(int) model.Dirty {
		return func(i int) (d model.Dirty) {
			p := of
			p.Labels = map[string]string{"app": fmt.Sprint("app-", i%2), "version": "v1"}
			c.Pods[of.Name] = &p
			d.AddPod(of.Name)
			return d
		}
	}
	rule := func(id model.PolicyID) func(int) model.Dirty {
		return func(i int) (d model.Dirty) {
			p := *c.Policies[id]
			p.Ingress = append([]model.Rule{}, p.Ingress...)
			p.Ingress[0].Ports = []model.PortRange{tcp(uint16(7000+i%2), uint16(7000+i%2))}
			c.Policies[id] = &p
			d.Add(model.KindPolicies)
			return d
		}
	}
	for _, x := range []struct {
		name   string
		change func(int) model.Dirty
	}{
		{"label of a pod elsewhere", relabel(remote)},
		{"label of a pod here", relabel(local)},
		{"rule of a policy that binds pods here", rule(policyID("ns-7", "policy-1407"))},
		{"rule of a policy that binds none here", rule(policyID("ns-150", "policy-150"))},
	} {
		b.Run(x.name, func(b *testing.B) {
			k := New()
			k.Update(c, model.AllDirty())
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				k.Update(c, x.change(i))
			}
		})
	}
}
