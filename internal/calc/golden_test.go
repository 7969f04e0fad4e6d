// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

var update = flag.Bool("update", false, "write the golden files anew")

// base is a cluster of three nodes, the third behind a router, with one pod each on a block.
func base() *model.Cluster {
	c := model.NewCluster()
	nodes := []struct{ name, addr string }{{"control", "172.31.1.8"}, {"worker", "172.31.1.207"}, {"far", "172.31.2.20"}}
	for i, n := range nodes {
		c.Nodes[n.name] = &model.Node{Name: n.name, Addrs: []netip.Addr{addr(n.addr)}, LinkAddress: [6]byte{2, 0, 0, 0, 0, byte(i + 1)},
			Subnets: []netip.Prefix{netip.PrefixFrom(addr(n.addr), 24).Masked()}}
	}
	c.Pools["main"] = &model.Pool{Name: "main", CIDR: prefix("10.244.0.0/16"), VXLAN: model.EncapCrossSubnet, NATOutgoing: true,
		BlockBits: 26, Workload: true}
	for node, cidr := range map[string]string{"control": "10.244.0.0/26", "worker": "10.244.1.0/26", "far": "10.244.2.0/26"} {
		c.Blocks[prefix(cidr)] = &model.Block{CIDR: prefix(cidr), Node: node}
	}
	c.Local = model.Local{Node: "worker", LinkMTU: 1500, Endpoints: map[netip.Addr]*model.LocalEndpoint{},
		HostAddrs: []netip.Addr{addr("172.31.1.207"), addr("192.168.50.1"), addr("fe80::1")}, Subnets: []netip.Prefix{prefix("172.31.1.0/24")}}
	c.Namespaces["default"] = &model.Namespace{Name: "default", Labels: map[string]string{"kubernetes.io/metadata.name": "default"}}
	c.Namespaces["other"] = &model.Namespace{Name: "other", Labels: map[string]string{"kubernetes.io/metadata.name": "other", "team": "red"}}
	return c
}

// run adds a pod; on the worker also its endpoint.
func run(c *model.Cluster, ns, name, node, ip string, labels map[string]string, ports ...model.PodPort) {
	n := model.Name{Namespace: ns, Name: name}
	c.Pods.Put(&model.Pod{Name: n, Node: node, Addrs: []netip.Addr{addr(ip)}, Labels: labels, Ports: ports})
	if node == c.Local.Node {
		i := 10 + len(c.Local.Endpoints)
		c.Local.Endpoints[addr(ip)] = &model.LocalEndpoint{Pod: n, Interface: "cali-" + name, IfIndex: i, MAC: [6]byte{6, 0, 0, 0, 0, byte(i)},
			Addrs: []netip.Addr{addr(ip)}, NetnsCookie: uint64(4000 + i)}
	}
}

// local puts interfaces of pods with these addresses on the node.
func here(c *model.Cluster, ips ...string) {
	for _, ip := range ips {
		i := 10 + len(c.Local.Endpoints)
		c.Local.Endpoints[addr(ip)] = &model.LocalEndpoint{Pod: model.Name{Namespace: "default", Name: "pod-" + ip}, Interface: "cali-" + ip, IfIndex: i,
			Addrs: []netip.Addr{addr(ip)}, NetnsCookie: uint64(4000 + i)}
	}
}

// editPod changes a pod that is there.
func editPod(c *model.Cluster, n model.Name, f func(*model.Pod)) {
	p := c.Pods.Get(n)
	f(p)
	c.Pods.Put(p)
}

func app(name string) map[string]string { return map[string]string{"app": name} }

func equals(key, value string) *model.LabelSelector {
	return &model.LabelSelector{Requirements: []model.Requirement{{Key: key, Op: model.In, Values: []string{value}}}}
}

func tcp(first, last uint16) model.PortRange {
	return model.PortRange{Protocol: model.ProtocolTCP, First: first, Last: last}
}

func addresses() *model.Cluster {
	c := base()
	c.Nodes["far"].Addrs = append(c.Nodes["far"].Addrs, addr("203.0.113.9"))
	c.Pools["flat"] = &model.Pool{Name: "flat", CIDR: prefix("10.250.0.0/24"), VXLAN: model.EncapNever, Disabled: true}
	c.Pools["six"] = &model.Pool{Name: "six", CIDR: prefix("fd00::/64"), VXLAN: model.EncapAlways}
	c.Settings.IPv6Support = false
	c.Blocks[prefix("10.244.9.0/26")] = &model.Block{CIDR: prefix("10.244.9.0/26"), Node: "gone"}
	run(c, "default", "here", "worker", "10.244.1.1", nil)
	run(c, "default", "flat-here", "worker", "10.250.0.7", nil)
	run(c, "default", "in-block", "far", "10.244.2.1", nil)
	run(c, "default", "fixed-far", "far", "10.244.1.60", nil) // inside our block: the exact address is theirs
	run(c, "default", "fixed-near", "control", "10.244.77.1", nil)
	run(c, "default", "flat-far", "far", "10.250.0.8", nil)
	run(c, "default", "done", "far", "10.244.77.2", nil)
	editPod(c, model.Name{Namespace: "default", Name: "done"}, func(p *model.Pod) { p.Finished = true })
	c.Reservations = []netip.Prefix{prefix("10.244.1.60/32"), prefix("10.244.77.0/26"), prefix("10.250.0.0/24")}
	for _, name := range []string{"fixed-far", "fixed-near", "flat-far"} {
		editPod(c, model.Name{Namespace: "default", Name: name}, func(p *model.Pod) { p.Asked = p.Addrs })
	}
	run(c, "default", "hostnet", "far", "172.31.2.20", nil)
	editPod(c, model.Name{Namespace: "default", Name: "hostnet"}, func(p *model.Pod) { p.HostNetwork = true })
	return c
}

func serviceFixture() *model.Cluster {
	c := base()
	web := func(name, ip string, ports ...model.ServicePort) *model.Service {
		s := &model.Service{Name: model.Name{Namespace: "default", Name: name}, ClusterIPs: []netip.Addr{addr(ip)}, Ports: ports}
		c.Services[s.Name] = s
		return s
	}
	slice := func(service string, port uint16, eps ...model.ServiceEndpoint) {
		n := model.Name{Namespace: "default", Name: service + "-1"}
		c.Slices[n] = &model.EndpointSlice{Name: n, Service: model.Name{Namespace: "default", Name: service}, Endpoints: eps,
			Ports: []model.EndpointPort{{Name: "http", Protocol: model.ProtocolTCP, Port: port}}}
	}
	ep := func(ip, node string, ready, serving, terminating bool) model.ServiceEndpoint {
		return model.ServiceEndpoint{Addrs: []netip.Addr{addr(ip)}, Node: node, Ready: ready, Serving: serving, Terminating: terminating}
	}
	here(c, "10.244.1.1", "10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5", "10.244.1.6")
	http := model.ServicePort{Name: "http", Protocol: model.ProtocolTCP, Port: 80}

	nginx := web("nginx", "10.96.0.10", model.ServicePort{Name: "http", Protocol: model.ProtocolTCP, Port: 80, NodePort: 30604})
	nginx.ExternalIPs, nginx.LBIPs, nginx.Affinity = []netip.Addr{addr("198.51.100.1")}, []netip.Addr{addr("192.0.2.80")}, 10800
	slice("nginx", 8080, ep("10.244.2.1", "far", true, true, false), ep("10.244.1.1", "worker", true, true, false),
		ep("10.244.1.2", "worker", false, false, false), ep("10.244.0.9", "control", false, true, true))

	web("draining", "10.96.0.11", http)
	slice("draining", 80, ep("10.244.1.3", "worker", false, true, true), ep("10.244.1.4", "worker", false, false, true), ep("10.244.1.5", "worker", false, true, false))

	web("early", "10.96.0.12", http).PublishNotReady = true
	slice("early", 80, ep("10.244.1.6", "worker", false, false, false))

	web("empty", "10.96.0.13", http)
	web("zz-thief", "10.96.0.14", http).ExternalIPs = []netip.Addr{addr("10.96.0.10"), addr("198.51.100.1"), addr("198.51.100.2")}

	run(c, "default", "hostport", "worker", "10.244.1.20", nil,
		model.PodPort{Protocol: model.ProtocolTCP, Port: 9000, HostPort: 9001},
		model.PodPort{Protocol: model.ProtocolTCP, Port: 9000, HostPort: 30604},
		model.PodPort{Protocol: model.ProtocolUDP, Port: 53, HostPort: 53, HostIP: addr("192.168.50.1")})
	return c
}

func policyFixture() *model.Cluster {
	c := base()
	run(c, "default", "nginx", "worker", "10.244.1.1", app("nginx"), model.PodPort{Name: "http", Protocol: model.ProtocolTCP, Port: 8080})
	run(c, "default", "nginx2", "worker", "10.244.1.2", app("nginx"), model.PodPort{Name: "http", Protocol: model.ProtocolTCP, Port: 80})
	run(c, "default", "free", "worker", "10.244.1.3", app("free"))
	run(c, "default", "client", "far", "10.244.2.1", app("client"))
	run(c, "other", "client", "far", "10.244.2.2", app("client"))
	run(c, "other", "db", "control", "10.244.0.5", app("db"), model.PodPort{Name: "sql", Protocol: model.ProtocolTCP, Port: 5432})
	nginx := model.Selector{Namespace: "default", Pods: equals("app", "nginx")}
	add := func(name string, p model.Policy) {
		p.Kind, p.Tier, p.Name = "NetworkPolicy", "default", model.Name{Namespace: "default", Name: name}
		c.Policies[p.ID()] = &p
	}
	add("from-outside", model.Policy{Subject: nginx, AppliesIngress: true, Ingress: []model.Rule{
		{Peers: []model.Peer{{CIDR: prefix("172.31.0.0/16"), Except: []netip.Prefix{prefix("172.31.1.128/25")}}}, Ports: []model.PortRange{{Protocol: model.ProtocolTCP, Named: "http"}}},
		{Peers: []model.Peer{{CIDR: prefix("172.31.1.162/32")}}},
	}})
	add("from-clients", model.Policy{Subject: nginx, AppliesIngress: true, AppliesEgress: true,
		Ingress: []model.Rule{{Peers: []model.Peer{{Pods: &model.Selector{Namespaces: equals("team", "red"), Pods: equals("app", "client")}}}, Ports: []model.PortRange{tcp(8000, 8100)}}},
		Egress: []model.Rule{{Ports: []model.PortRange{{Protocol: model.ProtocolUDP, First: 53, Last: 53}}},
			{Peers: []model.Peer{{Pods: &model.Selector{Namespace: "other"}}}, Ports: []model.PortRange{{Protocol: model.ProtocolTCP, Named: "sql"}}}},
	})
	add("not-here", model.Policy{Subject: model.Selector{Namespace: "other"}, AppliesIngress: true})
	return c
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*model.Cluster{"addresses": addresses(), "services": serviceFixture(), "policy": policyFixture(), "dual": dual(), "empty": model.NewCluster()} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".golden")
			got := Calc(c).String()
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("differs from %s (go test ./internal/calc -update writes it anew):\n%s", path, got)
			}
		})
	}
}

func TestEqualAndDiff(t *testing.T) {
	t.Parallel()
	a, b := Calc(policyFixture()), Calc(policyFixture())
	if !nodestate.Equal(a, b) || nodestate.Diff(a, b) != "" {
		t.Fatalf("equal clusters differ:\n%s", nodestate.Diff(a, b))
	}
	changed := policyFixture()
	delete(changed.Policies, policyID("default", "from-clients"))
	if c := Calc(changed); nodestate.Equal(a, c) || nodestate.Diff(a, c) == "" {
		t.Fatal("different states count as equal")
	}
}
