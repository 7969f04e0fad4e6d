// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"net/netip"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// leads fails where the tenant's Service has one of these backends. That alongside them, the
// tenant's own pod, stays.
func leads(t *testing.T, c *model.Cluster, port uint16, ips ...string) {
	t.Helper()
	evilService(c, 80, func(*model.Service) {})
	slice(c, evilName, "4", "p", port, "10.244.2.66")
	slice(c, evilName, "6", "p", port, "fd00:10:244:2::66")
	for _, ip := range ips {
		sl := c.Slices[name("team", "evil-4")]
		if addr(ip).Is6() {
			sl = c.Slices[name("team", "evil-6")]
		}
		sl.Endpoints = append(sl.Endpoints, model.ServiceEndpoint{Addrs: []netip.Addr{addr(ip)}, Ready: true, Serving: true})
	}
	s := Calc(c)
	for _, id := range []string{"10.96.0.66", "fd00:10:96::66"} {
		list := s.Backends.At(front(id, 80))
		if len(list) != 1 || list[0].Addr != addr("10.244.2.66") && list[0].Addr != addr("fd00:10:244:2::66") {
			t.Errorf("port %d: %s leads to %v", port, id, list)
		}
	}
}

func TestHostileBackendOfNode(t *testing.T) {
	hostile.Record(t, "a tenant's EndpointSlice leads to a node's kubelet or failsafe port", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, port := range []uint16{10250, 22, 6443, 9099} {
		leads(t, attacked(), port, "172.31.1.8", "172.31.1.207", "192.168.50.1", "fd00:31:1::207", "fd00:31:2::20")
	}
}

func TestHostileBackendOfAPIServer(t *testing.T) {
	hostile.Record(t, "a tenant's EndpointSlice leads to an API server", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	leads(t, attacked(), 6443, "203.0.113.6", "2001:db8:6::6")
}

func TestHostileBackendOfMetadata(t *testing.T) {
	hostile.Record(t, "a tenant's EndpointSlice leads to link-local, loopback or a cloud's metadata", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	leads(t, attacked(), 80, "169.254.169.254", "127.0.0.1", "fd00:ec2::254", "::1", "100.100.100.200", "::ffff:127.0.0.1")
}

func TestHostileBackendOfOtherTenant(t *testing.T) {
	hostile.Record(t, "a tenant's EndpointSlice leads to another tenant's pod", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	run(c, "victim", "new", "worker", "10.244.1.77", nil)
	editPod(c, name("victim", "new"), func(p *model.Pod) { p.Addrs = nil }) // the API does not show its address yet: the node knows it
	leads(t, c, 8080, "10.244.2.1", "fd00:10:244:2::1", "10.244.1.1", "10.244.1.77")
}

func TestHostileBackendWithTargetRef(t *testing.T) {
	hostile.Record(t, "a tenant's EndpointSlice says that it is on the victim's node, for its zone, and no longer ready", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := attacked()
	evilService(c, 80, func(s *model.Service) { s.PublishNotReady = true })
	for suffix, ip := range map[string]string{"4": "10.244.1.1", "6": "fd00:10:244:1::1"} {
		slice(c, evilName, suffix, "p", 8080, ip)
		e := &c.Slices[name("team", "evil-"+suffix)].Endpoints[0]
		e.Node, e.Hints, e.Ready, e.Terminating = "worker", model.HintsFor(nil, []string{"worker"}), false, true
	}
	s := Calc(c)
	for _, id := range []string{"10.96.0.66", "fd00:10:96::66"} {
		if list := s.Backends.At(front(id, 80)); len(list) != 0 {
			t.Errorf("%s leads to %v", id, list)
		}
	}
}

func TestHostileHealthCheckPort(t *testing.T) {
	hostile.Record(t, "a healthCheckNodePort takes a port that the node needs", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, port := range []uint16{6443, 10250, 22, 10256, 9099, 10249} {
		c := attacked()
		evilService(c, 80, func(s *model.Service) { s.HealthPort = port })
		if h, ok := Calc(c).HealthChecks.Get(evilName); ok {
			t.Errorf("the agent listens for %s: %+v", evilName, h)
		}
	}
}

func TestHostileHealthCheckPortOfOthers(t *testing.T) {
	hostile.Record(t, "a healthCheckNodePort takes another Service's node port or health check, or a pod's host port", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, port := range []uint16{30080, 32000, 9000} { // default/web's, and the pod's of that name
		c := attacked()
		c.Services[name("default", "web")].Created = 1000
		evilService(c, 80, func(s *model.Service) { s.HealthPort = port })
		if h, ok := Calc(c).HealthChecks.Get(evilName); ok {
			t.Errorf("the agent listens for %s: %+v", evilName, h)
		}
	}
}
