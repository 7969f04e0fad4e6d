// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
)

// All that is compared with nodes' addresses is of one form: an IPv4 address written as IPv6 is
// IPv4.
func TestHostileMappedAddress(t *testing.T) {
	hostile.Record(t, "an IPv4-mapped IPv6 address hides a node's address from the comparison", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "evil"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.66", Type: corev1.ServiceTypeLoadBalancer,
		ExternalIPs: []string{"::ffff:172.31.1.8", "::FFFF:ac1f:108", "0:0:0:0:0:ffff:172.31.1.8", "fe80::1%eth0", "fd00::1%lo"}}}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "::ffff:172.31.1.8"}}
	got, problems := ConvertService(s)
	if len(got.ExternalIPs) != 3 || len(got.LBIPs) != 1 || len(problems) != 2 {
		t.Fatalf("%v, %v, %v", got.ExternalIPs, got.LBIPs, problems)
	}
	for _, a := range append(got.ExternalIPs, got.LBIPs...) {
		if a.String() != "172.31.1.8" {
			t.Errorf("%s is not 172.31.1.8", a)
		}
	}
	port := int32(10250)
	slice, _ := ConvertEndpointSlice(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "evil", Labels: map[string]string{discoveryv1.LabelServiceName: "evil"}},
		AddressType: discoveryv1.AddressTypeIPv6, Ports: []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"::ffff:172.31.1.8"}}}})
	if a := slice.Endpoints[0].Addrs[0]; a.String() != "172.31.1.8" {
		t.Errorf("an endpoint is %s", a)
	}
	pod, _ := ConvertPod(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, HostIP: "::ffff:172.31.1.8"}}}}}})
	if a := pod.Ports[0].HostIP; a.String() != "172.31.1.8" {
		t.Errorf("a hostIP is %s", a)
	}
}

// What a node claims is bounded before anything is computed from it.
func TestHostileNodeAddresses(t *testing.T) {
	t.Run("many", func(t *testing.T) {
		hostile.Record(t, "a node claims tens of thousands of addresses", hostile.Node, hostile.ControlPlane, hostile.Both)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "far"}}
		add := func(kind corev1.NodeAddressType, text string) {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: kind, Address: text})
		}
		add(corev1.NodeExternalIP, "192.0.2.9") // internal ones come first
		for i := range 40000 {
			add(corev1.NodeInternalIP, fmt.Sprintf("10.244.%d.%d", i>>8, i&0xff))
			add(corev1.NodeInternalIP, fmt.Sprintf("fd00:10:244::%x", i+1))
		}
		got, problems := ConvertNode(n)
		if len(got.Addrs) != 2*maxKept || got.Addrs[0].String() != "10.244.0.0" || len(problems) != 1 || problems[0].Value != "79985 more" {
			t.Errorf("%d addresses count, %v; %d problems", len(got.Addrs), got.Addrs[0], len(problems))
		}
		n.Status.Addresses = nil
		for i := range 40000 {
			add(corev1.NodeInternalIP, fmt.Sprintf("127.0.%d.%d", i>>8, i&0xff))
			add(corev1.NodeExternalIP, "nonsense")
		}
		if got, problems := ConvertNode(n); len(got.Addrs) != 0 || len(problems) != maxKept+1 {
			t.Errorf("of addresses that are none %d count; %d problems", len(got.Addrs), len(problems))
		}
	})
	t.Run("subnets", func(t *testing.T) {
		hostile.Record(t, "a node publishes thousands of subnets", hostile.Node, hostile.ControlPlane, hostile.Both)
		s := &weirv1.NodeStatus{ObjectMeta: metav1.ObjectMeta{Name: "far"}}
		for i := range 5000 {
			s.Status.Subnets = append(s.Status.Subnets, fmt.Sprintf("10.%d.%d.0/24", i>>8, i&0xff))
		}
		if got, problems := ConvertNodeStatus(s); len(got.Subnets) != 32 || len(problems) != 1 {
			t.Errorf("%d subnets count; %d problems", len(got.Subnets), len(problems))
		}
	})
}

// What a node comes to claim while no agent runs came later than what it had.
func TestHostileUnseenClaims(t *testing.T) {
	hostile.Record(t, "a node claims addresses while no agent runs, which then passes for older", hostile.Node, hostile.ControlPlane, hostile.Both)
	old, later, new := netip.MustParseAddr("172.31.2.20"), netip.MustParseAddr("172.31.2.21"), netip.MustParseAddr("172.31.1.194")
	before := ClaimsOf(&model.Node{Name: "far", UID: "1", Addrs: []netip.Addr{old, later}, Since: map[netip.Addr]int64{later: 400}})
	c := NewClaims(map[string]NodeClaims{"far": before})
	since := c.Note(&model.Node{Name: "far", UID: "1", Addrs: []netip.Addr{new, old, later}})
	if since[old] != 0 || since[later] != 400 || since[new] < 1_600_000_000 {
		t.Errorf("the node has its addresses since %v", since)
	}
	// Another Node of the name begins anew.
	if since := c.Note(&model.Node{Name: "far", UID: "2", Addrs: []netip.Addr{new, old}}); len(since) != 0 {
		t.Errorf("another Node of the name has its addresses since %v", since)
	}
}

// maxKept is how many addresses of a family a node has at most.
const maxKept = 8

// What no Service may have does not get as far as the model.
func TestHostileLoopbackOfService(t *testing.T) {
	hostile.Record(t, "a Service or an EndpointSlice names a loopback or link-local address", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, ip := range []string{"127.0.0.1", "169.254.169.254", "::1", "fe80::1", "ff02::1", "0.0.0.0", "::", "255.255.255.255", "::ffff:127.0.0.1"} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "evil"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.66", ExternalIPs: []string{ip}}}
		got, problems := ConvertService(s)
		if len(got.ExternalIPs) != 0 || len(problems) != 1 {
			t.Errorf("%s: %v, %v", ip, got.ExternalIPs, problems)
		}
		slice, _ := ConvertEndpointSlice(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "evil", Labels: map[string]string{discoveryv1.LabelServiceName: "evil"}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}}}})
		if len(slice.Endpoints) != 0 {
			t.Errorf("%s: %v", ip, slice.Endpoints)
		}
	}
}

// What is wrong with a Service is kept as long as the Service, in each agent: not with the 250 KB
// that its annotation may have.
func TestHostileLongAnnotations(t *testing.T) {
	hostile.Record(t, "long annotations of a tenant's Services fill the memory of every agent", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	long := strings.Repeat("ä", 125_000)
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "evil", Annotations: map[string]string{model.AnnotationStrategy: long, model.AnnotationExternalMode: long}},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.66", Type: corev1.ServiceTypeLoadBalancer}}
	_, problems := ConvertService(s)
	if len(problems) != 2 {
		t.Fatalf("%d problems", len(problems))
	}
	for _, p := range problems {
		if len(p.Value) > 1024 {
			t.Errorf("%s: a value of %d bytes", p.Field, len(p.Value))
		}
	}
}
