// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/hostile"
)

// replica is a ready pod of the fan-out on node n-<name>, whose owner is to be added.
func replica(name string, hostIPs ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"k8s-app": names.Name}},
		Spec: corev1.PodSpec{NodeName: "n-" + name, ServiceAccountName: names.Name, HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, HostIP: hostIPs[0],
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	for _, ip := range hostIPs {
		p.Status.HostIPs = append(p.Status.HostIPs, corev1.HostIP{IP: ip})
	}
	return p
}

func addresses(endpoints []discoveryv1.Endpoint) string {
	var out []string
	for _, e := range endpoints {
		out = append(out, strings.Join(append([]string{e.TargetRef.Name}, e.Addresses...), "="))
	}
	return strings.Join(out, " ")
}

func TestEndpoints(t *testing.T) {
	old := replica("e", "192.0.2.5")
	old.Status.HostIPs = nil // of a kubelet that writes one address
	v4, v6 := endpoints([]*corev1.Pod{
		replica("d", "2001:db8::4"), replica("c", "192.0.2.1"), // the second one of node a
		replica("a", "192.0.2.1", "2001:db8::1"), replica("b", "2001:db8::2", "192.0.2.2", "192.0.2.22"), old})
	if got := addresses(v4); got != "a=192.0.2.1 b=192.0.2.2 e=192.0.2.5" {
		t.Errorf("IPv4: %s", got)
	}
	if got := addresses(v6); got != "a=2001:db8::1 b=2001:db8::2 d=2001:db8::4" {
		t.Errorf("IPv6: %s", got)
	}
}

func TestReady(t *testing.T) {
	now := metav1.Now()
	for what, change := range map[string]func(*corev1.Pod){
		"deleted":   func(p *corev1.Pod) { p.DeletionTimestamp = &now },
		"not ready": func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse },
		"unknown":   func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionUnknown },
		"only set":  func(p *corev1.Pod) { p.Status.Conditions[0].Type = corev1.PodInitialized },
	} {
		p := replica("a", "192.0.2.1")
		if !isReady(p) {
			t.Fatal("a replica is not ready")
		}
		if change(p); isReady(p) {
			t.Errorf("%s: it is ready", what)
		}
	}
}

// A node writes the status of its pods: an address that the API server refuses would keep the
// slice, and with it all other replicas, from being written.
func TestHostileStatusOfFanOut(t *testing.T) {
	hostile.Record(t, "the status of one pod of the fan-out keeps others from being named", hostile.Node, hostile.ControlPlane, hostile.Both)
	for _, bad := range []string{"", "nonsense", "127.0.0.1", "::1", "0.0.0.0", "::", "169.254.169.254", "fe80::1", "2001:db8::1%eth0", "224.0.0.1", "ff02::1", "::ffff:127.0.0.1", "255.255.255.255"} {
		v4, v6 := endpoints([]*corev1.Pod{replica("a", bad, bad), replica("b", "192.0.2.2", "2001:db8::2")})
		if addresses(v4) != "b=192.0.2.2" || addresses(v6) != "b=2001:db8::2" {
			t.Errorf("%q: %s, %s", bad, addresses(v4), addresses(v6))
		}
	}
	if v4, v6 := endpoints([]*corev1.Pod{replica("a", "::ffff:192.0.2.1")}); addresses(v4) != "a=192.0.2.1" || len(v6) > 0 {
		t.Errorf("an IPv4-mapped address: %s, %s", addresses(v4), addresses(v6))
	}
}
