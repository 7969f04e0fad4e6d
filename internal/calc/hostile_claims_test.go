// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func TestHostileHostPortOfLoopback(t *testing.T) {
	hostile.Record(t, "a pod's host port on a loopback address takes the node's resolver or the probes of its static pods", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	at := func(ip string, port uint16, proto model.Protocol) (served bool) {
		c := attacked()
		run(c, "team", "evil", "worker", "10.244.1.66", nil, model.PodPort{Protocol: proto, Port: 8080, HostPort: port, HostIP: addr(ip)})
		six := addr("fd00:10:244:1::66")
		editPod(c, evilName, func(p *model.Pod) { p.Addrs = append(p.Addrs, six) })
		c.Local.Endpoints[six] = c.Local.Endpoints[addr("10.244.1.66")]
		f := front(ip, port)
		f.Proto = proto
		_, served = Calc(c).Frontends.Get(f)
		return served
	}
	for _, proto := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP} {
		for _, ip := range []string{"127.0.0.1", "::1", "127.0.0.53", "127.1.2.3"} {
			for _, port := range []uint16{53, 443, 2379, 2381, 6444, 7445, 10257, 10259} {
				if at(ip, port, proto) {
					t.Errorf("%s port %d/%s is served", ip, port, proto)
				}
			}
		}
		if at("127.0.0.53", 54321, proto) {
			t.Error("another loopback address is served")
		}
		for _, ip := range []string{"127.0.0.1", "::1"} { // as Kubernetes' conformance tests have it
			if !at(ip, 54323, proto) {
				t.Errorf("%s port 54323/%s is not served", ip, proto)
			}
		}
	}
}

// TestHostileYoungerHostPort: of a Service's external IP at a node's address and a pod's host port
// there the older one has it.
func TestHostileYoungerHostPort(t *testing.T) {
	hostile.Record(t, "a younger pod's host port takes the port of an older Service's external IP at its node", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, node := range []string{"worker", "far"} {
		for _, ips := range [][]string{{"172.31.1.207", "fd00:31:1::207"}, {"172.31.2.20", "fd00:31:2::20"}} {
			for _, tt := range []struct {
				created int64
				at      string
				pod     bool // the pod's port comes first
			}{{3000, "", false}, {1000, "", true}, {2000, "", false}, {1000, "0.0.0.0", true}, {1000, "198.51.100.3", false}, {1000, "127.0.0.1", false}} {
				c := attacked()
				web := name("victim", "web")
				c.Services[web] = &model.Service{Name: web, Created: 2000, UID: "a", ClusterIPs: addrList("10.96.0.70", "fd00:10:96::70"), ExternalIPs: addrList(ips...),
					Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 8443}}}
				evilPod(c, 8443, netip.Addr{})
				p := c.Pods.Get(evilName)
				p.Node, p.Created, p.UID = node, tt.created, "b"
				if tt.at != "" {
					p.Ports[0].HostIP = addr(tt.at)
				}
				c.Pods.Put(p)
				s := Calc(c)
				there := (node == "worker") == (ips[0] == "172.31.1.207")
				for _, ip := range ips {
					r := s.Rules.At(s.Frontends.At(front(ip, 8443)).Rule)
					want := !(there && tt.pod) || tt.at == "0.0.0.0" && addr(ip).Is6()
					if (r.Name == web.String()) != want {
						t.Errorf("%s with the pod of %d, hostIP %q, on %s: %s", ip, tt.created, tt.at, node, r)
					}
				}
			}
		}
	}
}

// TestHostileOtherPortOfAddress: an address that is another namespace's is so with all its ports.
func TestHostileOtherPortOfAddress(t *testing.T) {
	hostile.Record(t, "a Service takes another port of an older external address of another namespace", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	ips := []string{"198.51.100.9", "2001:db8:9::9"}
	for _, ofStatus := range []bool{false, true} {
		c := attacked()
		victim := name("victim", "web")
		svc := &model.Service{Name: victim, Created: 1000, UID: "m", ClusterIPs: addrList("10.96.0.70", "fd00:10:96::70"),
			ExternalIPs: addrList(ips...), Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 80}}}
		if ofStatus {
			svc.ExternalIPs, svc.LBIPs = nil, svc.ExternalIPs
		}
		c.Services[victim] = svc
		evilService(c, 443, external(ips...))
		keeps(t, c, model.ProtocolTCP, 443, ips...)

		k := New()
		k.Update(c, model.AllDirty())
		both := map[model.Name]struct{}{victim: {}}
		delete(c.Services, victim) // then it is free
		s, _ := k.Update(c, model.Dirty{Services: both})
		for _, ip := range ips {
			if !ofTenant(s, s.Frontends.At(front(ip, 443))) {
				t.Errorf("%s is not served when the older Service is gone", ip)
			}
		}
		svc = &model.Service{Name: victim, Created: 3000, UID: "n", ClusterIPs: svc.ClusterIPs, ExternalIPs: addrList(ips...), Ports: svc.Ports}
		c.Services[victim] = svc // current it is the younger one
		s, _ = k.Update(c, model.Dirty{Services: both})
		for _, ip := range ips {
			if _, ok := s.Frontends.Get(front(ip, 80)); ok || !ofTenant(s, s.Frontends.At(front(ip, 443))) {
				t.Errorf("%s: the younger Service took a port of it", ip)
			}
		}
		svc.Name = name("team", "web") // the namespace's own
		delete(c.Services, victim)
		c.Services[svc.Name] = svc
		if _, ok := Calc(c).Frontends.Get(front(ips[0], 80)); !ok {
			t.Error("a Service of the same namespace may not have another port")
		}
		// A node's address is every namespace's.
		evilService(c, 443, external("172.31.2.20"))
		c.Services[victim] = &model.Service{Name: victim, Created: 3000, ClusterIPs: addrList("10.96.0.70"), ExternalIPs: addrList("172.31.2.20"), Ports: svc.Ports}
		if _, ok := Calc(c).Frontends.Get(front("172.31.2.20", 80)); !ok {
			t.Error("another port of a node's address is not served")
		}
	}
}

// claimed adds Services of others at which the claims of a node may aim: with external addresses,
// of a load balancer and of their own, and with pods and what is no pod behind them.
func claimed(c *model.Cluster) *model.Cluster {
	victim := name("victim", "web")
	c.Services[victim] = &model.Service{Name: victim, Created: 1000, UID: "m", ClusterIPs: addrList("10.96.0.70", "fd00:10:96::70"), ExternalIPs: addrList("198.51.100.7", "2001:db8:1::1"),
		LBIPs: addrList("192.0.2.70", "2001:db8:2::70"), Ports: []model.ServicePort{{Name: "p", Protocol: model.ProtocolTCP, Port: 80}}}
	slice(c, victim, "4", "p", 8080, "10.244.0.60", "198.51.100.8")
	slice(c, victim, "6", "p", 8080, "fd00:10:244::3f", "2001:db8:1::2")
	c.Settings.L2Reachability = true
	c.Pools["lb"] = &model.Pool{Name: "lb", CIDR: prefix("172.31.1.240/28"), LoadBalancer: true}
	lb := name("victim", "lb")
	c.Services[lb] = &model.Service{Name: lb, Created: 1000, UID: "l", ClusterIPs: addrList("10.96.0.71"), LBIPs: addrList("172.31.1.241"), Ports: c.Services[victim].Ports}
	return c
}

// TestHostilePodAddressOfService: what a node writes into the status of its pods takes no Service's
// address and no backend.
func TestHostilePodAddressOfService(t *testing.T) {
	hostile.Record(t, "a node writes a Service's external address, or that of its backend, into the status of its pod", hostile.Node, hostile.ControlPlane, hostile.Both)
	c := claimed(evil())
	k := New()
	was, _ := k.Update(c, model.AllDirty())
	p := pod(c, "aaa", "far", addrList("198.51.100.7", "2001:db8:1::1", "192.0.2.70", "2001:db8:2::70", "10.244.0.60", "198.51.100.8", "fd00:10:244::3f", "2001:db8:1::2", "172.31.1.241")...)
	is, _ := k.Update(c, model.Dirty{Pods: map[model.Name]*model.Pod{p.Name: nil}})
	sameServices(t, was, is)
	sameServices(t, was, Calc(c))
	// A claim that comes to count does so for Services.
	moved := *c.Blocks[prefix("10.244.0.0/26")]
	moved.Node = "far"
	c.Blocks[moved.CIDR] = &moved
	is, _ = k.Update(c, model.Dirty{Kinds: model.KindBlocks})
	if len(is.Backends.At(front("10.96.0.70", 80))) != 1 {
		t.Errorf("a pod that is in its node's block: %v", is.Backends.At(front("10.96.0.70", 80)))
	}
}

// sameServices holds that frontends, backends and announcements are the same.
func sameServices(t *testing.T, was, is *nodestate.State) {
	t.Helper()
	for f, v := range was.Frontends.All() {
		if now, ok := is.Frontends.Get(f); !ok || now != v {
			t.Errorf("%s: before %+v, after %+v, %v", f, v, now, ok)
		}
	}
	for f, v := range was.Backends.All() {
		if now := is.Backends.At(f); len(now) != len(v) {
			t.Errorf("backends of %s: before %v, after %v", f, v, now)
		}
	}
	for a, v := range was.Announced {
		if is.Announced[a] != v {
			t.Errorf("%s is announced no longer", a)
		}
	}
}
