// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/service"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// attacked is dual with API servers on a node and beyond the cluster, and a tenant's pod in
// namespace team.
func attacked() *model.Cluster {
	c := dual()
	c.Nodes["control"].Addrs = append(c.Nodes["control"].Addrs, addr("fd00:31:1::8"))
	c.Services[cluster.APIService] = &model.Service{Name: cluster.APIService, ClusterIPs: []netip.Addr{addr("10.96.0.1"), addr("fd00:10:96::1")},
		Ports: []model.ServicePort{{Name: "https", Protocol: model.ProtocolTCP, Port: 443}}}
	slice(c, cluster.APIService, "", "https", 6443, "172.31.1.8", "203.0.113.6", "fd00:31:1::8", "2001:db8:6::6")
	run(c, "team", "evil", "far", "10.244.2.66", nil)
	editPod(c, name("team", "evil"), func(p *model.Pod) { p.Addrs = append(p.Addrs, addr("fd00:10:244:2::66")) })
	return c
}

func slice(c *model.Cluster, svc model.Name, suffix, portName string, port uint16, ips ...string) {
	n := name(svc.Namespace, strings.TrimSuffix(svc.Name+"-"+suffix, "-"))
	sl := &model.EndpointSlice{Name: n, Service: svc}
	sl.Ports = []model.EndpointPort{{Name: portName, Protocol: model.ProtocolTCP, Port: port}, {Name: "u", Protocol: model.ProtocolUDP, Port: port}}
	for _, ip := range ips {
		sl.Endpoints = append(sl.Endpoints, model.ServiceEndpoint{Addrs: []netip.Addr{addr(ip)}, Ready: true, Serving: true})
	}
	c.Slices[n] = sl
}

var evilName = name("team", "evil")

// evilService adds the tenant's Service on a port, of TCP and UDP, with the tenant's pod behind it.
func evilService(c *model.Cluster, port uint16, change func(*model.Service)) *model.Service {
	s := &model.Service{Name: evilName, Created: 2000, UID: "evil", ClusterIPs: []netip.Addr{addr("10.96.0.66"), addr("fd00:10:96::66")},
		Ports: []model.ServicePort{{Name: "p", Protocol: model.ProtocolTCP, Port: port}, {Name: "u", Protocol: model.ProtocolUDP, Port: port}}}
	change(s)
	c.Services[evilName] = s
	slice(c, evilName, "4", "p", 8080, "10.244.2.66")
	slice(c, evilName, "6", "p", 8080, "fd00:10:244:2::66")
	return s
}

func external(ips ...string) func(*model.Service) {
	return func(s *model.Service) { s.ExternalIPs = addrList(ips...) }
}

func addrList(ips ...string) (out []netip.Addr) {
	for _, ip := range ips {
		out = append(out, addr(ip))
	}
	return out
}

// keeps fails where an address and port lead to the tenant, by themselves or as a node's port, and
// where the tenant's Service does not work at its cluster IPs.
func keeps(t *testing.T, c *model.Cluster, proto model.Protocol, port uint16, ips ...string) {
	t.Helper()
	s := Calc(c)
	for _, ip := range ips {
		a := addr(ip)
		for _, at := range []netip.Addr{a, cluster.Unspecified(a)} {
			f := nodestate.Frontend{Addr: at, Port: port, Proto: proto}
			if v, ok := s.Frontends.Get(f); ok && ofTenant(s, v) {
				t.Errorf("%s leads to %s", f, s.Rules.At(v.Rule))
			}
		}
	}
	for _, ip := range []string{"10.96.0.66", "fd00:10:96::66"} {
		if svc := c.Services[evilName]; svc == nil || svc.Ports[0].Port != port {
			break
		}
		if f := front(ip, port); !ofTenant(s, s.Frontends.At(f)) || len(s.Backends.At(f)) != 1 {
			t.Errorf("the tenant's own %s: %+v with %v", f, s.Frontends.At(f), s.Backends.At(f))
		}
	}
}

func ofTenant(s *nodestate.State, v nodestate.Service) bool {
	r := s.Rules.At(v.Rule)
	return r.Name == evilName.String()
}

func TestHostileExternalIPOfAPIServer(t *testing.T) {
	hostile.Record(t, "a Service's external IP takes an API server's address and port", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, ip := range []string{"172.31.1.8", "203.0.113.6", "fd00:31:1::8", "2001:db8:6::6", "172.31.1.207", "172.31.2.20", "fd00:31:2::20"} {
		c := attacked()
		c.Settings.FailsafeIn = nil // an operator who sets them to none is no less protected
		evilService(c, 6443, external(ip))
		keeps(t, c, model.ProtocolTCP, 6443, ip)
		if !slices.Contains([]string{"172.31.1.207", "172.31.2.20", "fd00:31:2::20"}, ip) { // no API server is there
			c.Settings.ServiceExternalIPs = []netip.Prefix{prefix("0.0.0.0/0"), prefix("::/0")}
			keeps(t, c, model.ProtocolTCP, 6443, ip)
		}
	}
}

func TestHostileExternalIPOfKubelet(t *testing.T) {
	hostile.Record(t, "a Service's external IP takes the kubelet's port of a node", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	ips := []string{"172.31.1.8", "172.31.1.207", "192.168.50.1", "172.31.2.20", "fd00:31:1::207", "fd00:50::1", "2001:db8::9"}
	c := attacked()
	evilService(c, 10250, external(ips...))
	keeps(t, c, model.ProtocolTCP, 10250, ips...)
}

func TestHostileExternalIPOfFailsafe(t *testing.T) {
	hostile.Record(t, "a Service's external IP takes a failsafe port of a node", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	c.Settings.FailsafeIn = append(c.Settings.FailsafeIn, model.Failsafe{Protocol: model.ProtocolUDP, Port: 2222})
	for _, p := range []struct {
		proto model.Protocol
		port  uint16
	}{{model.ProtocolTCP, 22}, {model.ProtocolTCP, 2379}, {model.ProtocolUDP, 2222}} {
		evilService(c, p.port, external("172.31.1.8", "fd00:31:1::207"))
		keeps(t, c, p.proto, p.port, "172.31.1.8", "fd00:31:1::207")
	}
}

func TestHostileExternalIPOfAgent(t *testing.T) {
	hostile.Record(t, "a Service's external IP takes a port that the agent or the tunnel uses", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, p := range []struct {
		proto model.Protocol
		port  uint16
	}{{model.ProtocolTCP, 9099}, {model.ProtocolTCP, 9091}, {model.ProtocolTCP, 5474}, {model.ProtocolTCP, 5473}, {model.ProtocolTCP, 10256}, {model.ProtocolUDP, 4789}} {
		c := attacked()
		c.Settings.FailsafeIn = nil // some of these ports are there, too
		evilService(c, p.port, external("172.31.1.8", "fd00:31:1::207"))
		keeps(t, c, p.proto, p.port, "172.31.1.8", "fd00:31:1::207")
	}
}

func TestHostileStatusOfLoadBalancer(t *testing.T) {
	hostile.Record(t, "a load balancer's status takes an address and port of a node or an API server", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	ips := []string{"172.31.1.8", "203.0.113.6", "fd00:31:1::8", "2001:db8:6::6"}
	evilService(c, 6443, func(s *model.Service) { s.LBIPs = addrList(ips...) })
	keeps(t, c, model.ProtocolTCP, 6443, ips...)
}

func TestHostileNodePort(t *testing.T) {
	hostile.Record(t, "a node port takes a port that every node needs", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, port := range []uint16{10250, 6443, 22, 9099} {
		c := attacked()
		evilService(c, 80, func(s *model.Service) { s.Ports[0].NodePort = port })
		keeps(t, c, model.ProtocolTCP, port, "172.31.1.207", "fd00:31:1::207")
	}
}

// evilPod is a pod of the tenant on this node, with a host port.
func evilPod(c *model.Cluster, port uint16, hostIP netip.Addr) {
	run(c, "team", "evil", "worker", "10.244.1.66", nil, model.PodPort{Protocol: model.ProtocolTCP, Port: 8080, HostPort: port, HostIP: hostIP})
	six := addr("fd00:10:244:1::66")
	editPod(c, evilName, func(p *model.Pod) { p.Addrs = append(p.Addrs, six) })
	c.Local.Endpoints[six] = c.Local.Endpoints[addr("10.244.1.66")]
}

func TestHostileHostPort(t *testing.T) {
	hostile.Record(t, "a pod's host port takes a port that its node needs", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, port := range []uint16{6443, 10250, 22, 10256} {
		for _, ip := range []netip.Addr{{}, addr("172.31.1.207"), addr("fd00:31:1::207"), addr("127.0.0.1")} {
			c := attacked()
			evilPod(c, port, ip)
			at := "172.31.1.207"
			if ip.IsValid() {
				at = ip.String()
			}
			keeps(t, c, model.ProtocolTCP, port, at, "fd00:31:1::207")
		}
	}
}

func TestHostileHostPortOfProbes(t *testing.T) {
	hostile.Record(t, "a pod's host port on 127.0.0.1 answers the kubelet's probes of the agent", hostile.Tenant, hostile.ControlPlane, hostile.IPv4)
	for _, port := range []uint16{9099, 10248, 10249} {
		c := attacked()
		evilPod(c, port, addr("127.0.0.1"))
		keeps(t, c, model.ProtocolTCP, port, "127.0.0.1")
	}
}

func TestHostileHostIP(t *testing.T) {
	hostile.Record(t, "a pod's hostIP names another node or an address outside and takes what its node sends there", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, ip := range []string{"172.31.1.8", "203.0.113.6", "8.8.8.8", "10.96.0.10", "10.244.2.1", "fd00:31:2::20", "2001:db8:6::6"} {
		c := attacked()
		evilPod(c, 80, addr(ip))
		keeps(t, c, model.ProtocolTCP, 80, ip)
	}
	c := attacked()
	evilPod(c, 80, addr("192.168.50.1")) // its own node's
	if _, ok := Calc(c).Frontends.Get(front("192.168.50.1", 80)); !ok {
		t.Error("a hostIP of the node itself is not served")
	}
}

func TestHostileExternalIPOfPod(t *testing.T) {
	hostile.Record(t, "a Service's external IP takes the address of another tenant's pod", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	run(c, "victim", "fixed", "worker", "192.0.2.7", nil) // outside of all pools
	c.Local.Endpoints[addr("2001:db8:7::7")] = c.Local.Endpoints[addr("192.0.2.7")]
	evilService(c, 80, external("192.0.2.7", "2001:db8:7::7", "10.244.2.1", "fd00:10:244:2::1"))
	keeps(t, c, model.ProtocolTCP, 80, "192.0.2.7", "2001:db8:7::7", "10.244.2.1", "fd00:10:244:2::1")
}

func TestHostileExternalIPInPool(t *testing.T) {
	hostile.Record(t, "a Service's external IP takes a free address of a pool or of the Services' range, and who gets it later", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	c.Pools["lb"] = &model.Pool{Name: "lb", CIDR: prefix("192.0.2.240/28"), LoadBalancer: true}
	ips := []string{"10.244.200.1", "fd00:10:244:2::dead", "10.96.0.200", "fd00:10:96::200", "10.96.0.10", "fd00:10:96::10", "192.0.2.241"}
	evilService(c, 80, external(ips...))
	keeps(t, c, model.ProtocolTCP, 80, ips...)
}

// A claim on what is never a Service's: this goes past internal/watch, which leaves most of it out
// already.
func TestHostileExternalIPOfNobody(t *testing.T) {
	hostile.Record(t, "a Service's external IP takes a loopback, link-local, multicast or metadata address", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	ips := []string{"169.254.169.254", "127.0.0.1", "224.0.0.251", "::1", "ff02::fb", "fd00:ec2::254", "168.63.129.16", "::ffff:172.31.1.8"}
	c := attacked()
	evilService(c, 80, external(ips...))
	keeps(t, c, model.ProtocolTCP, 80, ips...)
}

func TestHostileYoungerService(t *testing.T) {
	hostile.Record(t, "a younger Service with a smaller name takes an older Service's external address", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for what, younger := range map[string]func(*model.Service){
		"later":                     func(s *model.Service) { s.Created, s.UID = 2000, "a" },
		"the same second, by UID":   func(s *model.Service) { s.Created, s.UID = 1000, "x" },
		"and by a load balancer":    func(s *model.Service) { s.Created, s.LBIPs, s.ExternalIPs = 2000, s.ExternalIPs, nil },
		"and says nothing of a UID": func(s *model.Service) { s.Created, s.UID = 1001, "" },
	} {
		c := attacked()
		victim := name("victim", "web")
		c.Services[victim] = &model.Service{Name: victim, Created: 1000, UID: "m", ClusterIPs: addrList("10.96.0.70", "fd00:10:96::70"),
			ExternalIPs: addrList("198.51.100.9", "2001:db8:9::9"), Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 80}}}
		evilService(c, 80, external("198.51.100.9", "2001:db8:9::9"))
		younger(c.Services[evilName])
		keeps(t, c, model.ProtocolTCP, 80, "198.51.100.9", "2001:db8:9::9")
		s := Calc(c)
		for _, ip := range []string{"198.51.100.9", "2001:db8:9::9"} {
			if r := s.Rules.At(s.Frontends.At(front(ip, 80)).Rule); r.Name != victim.String() {
				t.Errorf("%s: %s belongs to %q", what, ip, r)
			}
		}
	}
}

func TestHostileNodePortByExternalIP(t *testing.T) {
	hostile.Record(t, "a Service's external IP is a node's address and takes another Service's node port there", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	c.Services[name("default", "web")].Created = 1000
	c.Services[name("default", "web")].ExternalIPs = nil
	evilService(c, 30080, external("172.31.1.8", "172.31.1.207", "fd00:31:1::207", "fd00:31:2::20"))
	keeps(t, c, model.ProtocolTCP, 30080, "172.31.1.8", "172.31.1.207", "fd00:31:1::207", "fd00:31:2::20")
}

func TestHostileHostPortByExternalIP(t *testing.T) {
	hostile.Record(t, "a Service's external IP is a node's address and takes a pod's host port there", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked() // default/web has host port 9000
	evilService(c, 9000, external("172.31.1.207", "fd00:31:1::207"))
	keeps(t, c, model.ProtocolTCP, 9000, "172.31.1.207", "fd00:31:1::207")
}

func TestHostileExternalIPOutside(t *testing.T) {
	hostile.Record(t, "a Service's external IP takes what the whole cluster sends to an address outside", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	c.Settings.ServiceExternalIPs = []netip.Prefix{prefix("198.51.100.0/24"), prefix("2001:db8:5::/48")}
	ips := []string{"8.8.8.8", "192.0.2.1", "2001:4860:4860::8888", "172.31.1.207", "fd00:31:2::20"}
	evilService(c, 80, external(append(ips, "198.51.100.77", "2001:db8:5::77")...))
	keeps(t, c, model.ProtocolTCP, 80, ips...)
	s := Calc(c)
	for _, ip := range []string{"198.51.100.77", "2001:db8:5::77", "198.51.100.1"} { // the last one is default/web's
		if _, ok := s.Frontends.Get(front(ip, 80)); !ok {
			t.Errorf("%s is in serviceExternalIPs, and not served", ip)
		}
	}
	c.Settings.ServiceExternalIPs = []netip.Prefix{} // none
	keeps(t, c, model.ProtocolTCP, 80, "198.51.100.77", "2001:db8:5::77")
	c.Settings.ServiceExternalIPs = nil
	s = Calc(c)
	if _, ok := s.Frontends.Get(front("8.8.8.8", 80)); !ok {
		t.Error("without the setting an address outside is not served")
	}
	if list := s.Refused.At(nodestate.Object{Kind: "Service", Name: evilName}); len(list) != 1 || !list[0].Allowed {
		t.Errorf("without the setting it is said: %v", list)
	}
}

func TestHostileExternalIPOfGateway(t *testing.T) {
	hostile.Record(t, "a Service's external IP takes the node's gateway", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	c.Local.Gateways = addrList("172.31.1.1", "fd00:31:1::1")
	c.Settings.L2Reachability = true
	evilService(c, 53, func(s *model.Service) {
		s.ExternalIPs, s.LBIPs = addrList("172.31.1.1", "fd00:31:1::1"), addrList("172.31.1.1", "fd00:31:1::1")
	})
	keeps(t, c, model.ProtocolTCP, 53, "172.31.1.1", "fd00:31:1::1")
}

func TestHostileAnnounced(t *testing.T) {
	hostile.Record(t, "a Service's refused external IP is answered for on the link", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	c.Settings.L2Reachability, c.Settings.ServiceExternalIPs = true, []netip.Prefix{prefix("192.0.2.0/24")}
	c.Nodes["worker"].Subnets = append(c.Nodes["worker"].Subnets, prefix("fd00:31:1::/64"))
	delete(c.Nodes, "control")
	ips := []string{"172.31.1.55", "172.31.1.99", "fd00:31:1::55"}
	evilService(c, 80, external(ips...))
	s := Calc(c)
	for _, ip := range ips {
		if s.Announced[addr(ip)] {
			t.Errorf("the node answers for %s", ip)
		}
	}
	c.Settings.ServiceExternalIPs = nil
	if s := Calc(c); !s.Announced[addr("172.31.1.55")] {
		t.Errorf("the addresses are none that the node would answer for: %v", s.Announced)
	}
}

func TestHostileManyExternalIPs(t *testing.T) {
	hostile.Record(t, "a Service with thousands of refused external IPs fills the report", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	a := addr("10.244.100.0")
	s := evilService(c, 80, func(*model.Service) {})
	for range 5000 {
		s.ExternalIPs = append(s.ExternalIPs, a)
		a = a.Next()
	}
	list := Calc(c).Refused.At(nodestate.Object{Kind: "Service", Name: evilName})
	if len(list) != service.MaxRefusals+1 || list[service.MaxRefusals].Value != "4996 more" {
		t.Errorf("%d: %v", len(list), list[len(list)-1])
	}
}

// An administrator's namespace may have what a tenant's may not.
func TestBackendsOfTrustedNamespaces(t *testing.T) {
	t.Parallel()
	for ns, labels := range map[string]map[string]string{"kube-system": nil, "monitoring": {service.LabelBackends: service.BackendsAny}} {
		c := attacked()
		c.Namespaces[ns] = &model.Namespace{Name: ns, Labels: labels}
		n := name(ns, "kubelet")
		c.Services[n] = &model.Service{Name: n, ClusterIPs: addrList("10.96.0.90"), Ports: []model.ServicePort{{Name: "p", Protocol: model.ProtocolTCP, Port: 80}}}
		slice(c, n, "4", "p", 10250, "172.31.1.8", "10.244.2.1", "169.254.169.254")
		k := New()
		s, _ := k.Update(c, model.AllDirty())
		if list := s.Backends.At(front("10.96.0.90", 80)); len(list) != 2 {
			t.Errorf("%s: %v", ns, list)
		}
		if labels == nil {
			continue
		}
		c.Namespaces[ns] = &model.Namespace{Name: ns}
		s, _ = k.Update(c, model.Dirty{Kinds: model.KindNamespaces})
		if list := s.Backends.At(front("10.96.0.90", 80)); len(list) != 0 {
			t.Errorf("%s without the label: %v", ns, list)
		}
	}
}
