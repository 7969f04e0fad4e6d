// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/hostile"
)

func clusterOfServices(t *testing.T, services ...*corev1.Service) *fixture {
	t.Helper()
	n := node("cp")
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.31.1.8"}, {Type: corev1.NodeInternalIP, Address: "fd00:31:1::8"}}
	port, name := int32(7443), "https"
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"172.31.1.8"}}}}
	f := newFixture(t, n, slice)
	for _, s := range services {
		if _, err := f.kube.CoreV1().Services(s.Namespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func serviceWith(name, clusterIP string, created int64, port int32, external ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Unix(created, 0)},
		Spec: corev1.ServiceSpec{ClusterIP: clusterIP, ExternalIPs: external, Ports: []corev1.ServicePort{{Name: "p", Port: port}}}}
}

func (f *fixture) serviceEvents() (out []corev1.Event) {
	f.t.Helper()
	list, err := f.kube.CoreV1().Events("team").List(f.t.Context(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Reason == reasonRefused {
			out = append(out, e)
		}
	}
	return out
}

// What agents refuse is said once as an event, whoever leads; what is only pointed at is not.
func TestRefusedServicesHaveAnEvent(t *testing.T) {
	f := clusterOfServices(t, serviceWith("api", "10.96.0.66", 2000, 7443, "172.31.1.8"), serviceWith("old", "10.96.0.67", 1000, 80, "192.0.2.1"),
		serviceWith("apple", "10.96.0.68", 2000, 80, "192.0.2.1"), serviceWith("fine", "10.96.0.69", 1000, 80, "192.0.2.2"))
	for range 3 {
		if err := f.after(time.Second); err != nil {
			t.Fatal(err)
		}
	}
	next := New(f.cfg) // another leader
	if err := next.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	events := f.serviceEvents()
	said := map[string]string{}
	for _, e := range events {
		said[e.InvolvedObject.Name] = e.Message
	}
	if len(events) != 2 || !strings.Contains(said["api"], "API server") || !strings.Contains(said["apple"], "team/old") {
		t.Errorf("%d events: %v", len(events), said)
	}
	if err := f.kube.CoreV1().Services("team").Delete(t.Context(), "api", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.after(time.Second); err != nil || len(f.refusals.reported) != 1 {
		t.Errorf("remembers %v of Services that are gone (%v)", f.refusals.reported, err)
	}
}

// What may be named follows the setting of the agents, by the controller's environment.
func TestRefusedServicesFollowTheSetting(t *testing.T) {
	f := clusterOfServices(t, serviceWith("dns", "10.96.0.66", 1000, 53, "8.8.8.8"))
	if err := f.after(time.Second); err != nil || len(f.serviceEvents()) != 0 {
		t.Fatalf("without the setting: %v %v", f.serviceEvents(), err)
	}
	f.cfg.Environ = []string{"FELIX_SERVICEEXTERNALIPS=192.0.2.0/24"}
	if err := f.after(time.Second); err != nil || len(f.serviceEvents()) != 1 {
		t.Fatalf("with the setting: %v %v", f.serviceEvents(), err)
	}
}

// The events are bounded in each look at the cluster: whoever makes Services must not write an
// event for each at once.
func TestHostileEvents(t *testing.T) {
	hostile.Record(t, "a tenant's refused Services fill the events of the cluster at once", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	var all []*corev1.Service
	for i := range 3 * maxEvents {
		all = append(all, serviceWith("evil-"+strings.Repeat("x", i), "10.96.1."+string(rune('0'+i%10)), 1000, 10250, "172.31.1.8", "fd00:31:1::8"))
	}
	f := clusterOfServices(t, all...)
	for round := 1; round <= 2; round++ {
		if err := f.after(time.Second); err != nil {
			t.Fatal(err)
		}
		if n := len(f.serviceEvents()); n == 0 || n > round*maxEvents {
			t.Errorf("%d events after %d looks", n, round)
		}
	}
}

// A namespace that takes no events, as with a quota of them, has its own fault: other Services are
// reported on.
func TestHostileEventsOfOneNamespace(t *testing.T) {
	hostile.Record(t, "a namespace that takes no more events keeps what is refused of others' Services from being reported", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	var all []*corev1.Service
	for i := range 2 * maxEvents {
		evil := serviceWith(fmt.Sprint("evil-", i), fmt.Sprint("10.96.1.", i+1), 1000, 10250, "172.31.1.8")
		evil.Namespace = "a"
		all = append(all, evil)
	}
	f := clusterOfServices(t, append(all, serviceWith("evil", "10.96.0.66", 1000, 10250, "172.31.1.8"))...)
	tries := 0
	f.kube.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() != "a" {
			return false, nil, nil
		}
		tries++
		return true, nil, apierrors.NewForbidden(corev1.Resource("events"), "e", errors.New("exceeded quota"))
	})
	if err := f.after(time.Second); err == nil || !strings.Contains(err.Error(), "exceeded quota") {
		t.Errorf("%v", err)
	}
	if n := len(f.serviceEvents()); n != 1 || tries != 1 {
		t.Errorf("%d events of another namespace, %d tries in the one that takes none", n, tries)
	}
}
