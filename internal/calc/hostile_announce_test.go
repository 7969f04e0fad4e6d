package calc

import (
	"net/netip"
	"slices"
	"testing"

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

// TestHostileClaimedBalancer: what a Service has of a load balancer's block, or by an administrator's grant, goes on being answered for when a node
// says that it is its own.
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
				c.Blocks[prefix(p)] = &model.Block{CIDR: prefix(p), Node: loadBalancers, Created: 200}
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
