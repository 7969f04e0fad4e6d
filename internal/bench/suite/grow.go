// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/weir-net/weir/internal/bench/probe"
	"github.com/weir-net/weir/internal/sleep"
)

// writers is how many objects are written at a time.
const writers = 16

// many makes objects from..to with some writers.
func many(ctx context.Context, from, to int, write func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := numbers(from, to)
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for i := range next {
				if ctx.Err() != nil {
					return
				}
				if err := write(ctx, i); err != nil && !apierrors.IsAlreadyExists(err) {
					cancel(err)
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

func numbers(from, to int) <-chan int {
	out := make(chan int, to-from)
	for i := from; i < to; i++ {
		out <- i
	}
	close(out)
	return out
}

// fillerAddress is of no pod: 198.18.0.0/15 is for benchmarks (RFC 2544), 2001:2::/48 likewise (RFC
// 5180).
func fillerAddress(i int, six bool) string {
	if six {
		return netip.AddrFrom16([16]byte{0x20, 1, 0, 2, 12: byte(i >> 24), 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}).String()
	}
	return netip.AddrFrom4([4]byte{198, 18 + byte(i>>16&1), byte(i >> 8), byte(i)}).String()
}

// grow makes other Services up to a number, each with two endpoints that belong to no pod, and the
// other policies.
func (s *site) grow(ctx context.Context, size int) error {
	if size > s.fillers {
		s.say(fmt.Sprintf("making %d Services of two endpoints without pods", size-s.fillers))
		if err := many(ctx, s.fillers, size, s.filler); err != nil {
			return fmt.Errorf("making Services: %w", err)
		}
		s.fillers = size
	}
	if s.policies < s.o.Policies {
		s.say(fmt.Sprintf("making %d network policies", s.o.Policies-s.policies))
		if err := many(ctx, s.policies, s.o.Policies, s.fillerPolicy); err != nil {
			return fmt.Errorf("making policies: %w", err)
		}
		s.policies = s.o.Policies
	}
	return s.settled(ctx)
}

// settling is how long a data plane may take to put all Services in force.
const settling = 30 * time.Minute

// settled waits until a Service that is made after all others works, and then a moment for what is
// still at work.
func (s *site) settled(ctx context.Context) error {
	if s.fillers == 0 && s.policies == 0 {
		return nil
	}
	at, err := s.makeService(ctx, fmt.Sprintf("last-%d-%d", s.fillers, s.policies), corev1.ServiceTypeClusterIP)
	if err != nil {
		return err
	}
	began := time.Now()
	ping := probe.Spec{Test: probe.Ping, To: at.To, UDP: at.UDP, Patience: time.Second}
	err = poll(ctx, settling, func() (bool, error) {
		for _, from := range []string{podClient, podNear} { // both nodes
			if _, err := s.probe(ctx, from, ping); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("a Service made after %d others is not in force: %w", s.fillers, err)
	}
	s.say(fmt.Sprintf("a Service made after them was in force after %s", time.Since(began).Round(10*time.Millisecond)))
	return sleep.For(ctx, 3*time.Second)
}

// filler makes the i-th other Service.
func (s *site) filler(ctx context.Context, i int) error {
	name := fmt.Sprintf("other-%d", i)
	v := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "tcp", Port: 80}}}}
	if s.o.IPFamily != "" {
		v.Spec.IPFamilies = []corev1.IPFamily{corev1.IPFamily(s.o.IPFamily)}
	}
	if _, err := s.Kube.CoreV1().Services(s.namespace).Create(ctx, v, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	six := s.service.To.Addr().Is6()
	slice := s.slice(name, 80, "tcp")
	for n := range 2 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fillerAddress(2*i+n, six)}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}})
	}
	_, err := s.Kube.DiscoveryV1().EndpointSlices(s.namespace).Create(ctx, slice, metav1.CreateOptions{})
	return err
}

// slice is an EndpointSlice of a Service, without endpoints.
func (s *site) slice(service string, port int32, names ...string) *discoveryv1.EndpointSlice {
	kind := discoveryv1.AddressTypeIPv4
	if s.o.IPFamily == "IPv6" || s.at[podServer].To.Addr().Is6() {
		kind = discoveryv1.AddressTypeIPv6
	}
	e := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}}, AddressType: kind}
	for _, name := range names {
		protocol := corev1.ProtocolTCP
		if name == "udp" {
			protocol = corev1.ProtocolUDP
		}
		e.Ports = append(e.Ports, discoveryv1.EndpointPort{Name: ptr.To(name), Port: ptr.To(port), Protocol: ptr.To(protocol)})
	}
	return e
}

// fillerPolicy makes the i-th other policy. It binds the server that the changing policy binds,
// which nothing else is measured by.
func (s *site) fillerPolicy(ctx context.Context, i int) error {
	tcp := corev1.ProtocolTCP
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("other-%d", i)}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{Label: podPolicy}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"other": fmt.Sprint(i)}}}},
			Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp}}}}}}
	_, err := s.Kube.NetworkingV1().NetworkPolicies(s.namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// buildControl makes the rights for what the rows of the control plane change, and a namespace for
// the pods that they start: who may make pods in a namespace may do there what its level of Pod
// Security lets pods do.
func (s *site) buildControl(ctx context.Context) error {
	if err := s.makeNamespace(ctx, &s.started, startedNamespace(s.o, s.namespace+"-started")); err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
	if _, err := s.Kube.CoreV1().ServiceAccounts(s.namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making a service account: %w", err)
	}
	for namespace, rules := range map[string][]rbacv1.PolicyRule{s.namespace: changeRules(), s.started: startRules()} {
		role, binding := grant(rules, s.namespace)
		if _, err := s.Kube.RbacV1().Roles(namespace).Create(ctx, role, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("making a role in %s: %w", namespace, err)
		}
		if _, err := s.Kube.RbacV1().RoleBindings(namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("binding a role in %s: %w", namespace, err)
		}
	}
	return nil
}

// finishControl makes what needs the pods' addresses.
func (s *site) finishControl(ctx context.Context) error {
	v := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: movingName}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "tcp", Port: servicePort}}}}
	if s.o.IPFamily != "" {
		v.Spec.IPFamilies = []corev1.IPFamily{corev1.IPFamily(s.o.IPFamily)}
	}
	v, err := s.Kube.CoreV1().Services(s.namespace).Create(ctx, v, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making the Service %s: %w", movingName, err)
	}
	ip, err := netip.ParseAddr(v.Spec.ClusterIP)
	if err != nil {
		return fmt.Errorf("the cluster IP of the Service %s: %w", movingName, err)
	}
	s.moving = probe.Listening{To: netip.AddrPortFrom(ip, servicePort), UDP: netip.AddrPortFrom(ip, servicePort)}
	e := s.slice(movingName, servicePort, "tcp")
	e.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{s.at[podServer].To.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}}
	if _, err := s.Kube.DiscoveryV1().EndpointSlices(s.namespace).Create(ctx, e, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making the EndpointSlice %s: %w", sliceName, err)
	}
	// It binds a server that nothing else is measured by.
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: policyName}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{Label: podPolicy}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{}}}}
	if _, err := s.Kube.NetworkingV1().NetworkPolicies(s.namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making the NetworkPolicy %s: %w", policyName, err)
	}
	return nil
}

// control is what a test of the control plane changes.
func (s *site) control(t probe.Test) *probe.Control {
	c := &probe.Control{Namespace: s.namespace}
	switch t {
	case probe.Endpoint:
		c.Name, c.Backends = sliceName, map[string]netip.Addr{podServer: s.at[podServer].To.Addr(), podOther: s.at[podOther].To.Addr()}
	case probe.Policy:
		c.Name = policyName
	case probe.PodStart:
		c.Namespace, c.Name = s.started, startedName
		p := podObject(s.o, "", s.server, 300, false)
		p.Name, p.APIVersion, p.Kind = "", "v1", "Pod"
		p.Labels = map[string]string{Label: "started"}
		p.Spec.Containers[0].Command, p.Spec.Containers[0].Env = []string{program, "hello"}, nil
		raw, err := json.Marshal(p)
		if err == nil {
			c.Pod = raw
		}
	}
	return c
}
