// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/apitest"
)

func finalizedBy(names ...string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Finalizers = names }
}

// finalizers waits until the Service has exactly these.
func (f *fixture) finalizers(name string, want ...string) {
	f.t.Helper()
	apitest.Eventually(f.t, 10*time.Second, fmt.Sprintf("%s has the finalizers %v", name, want), func() error {
		if got := f.get(name).Finalizers; fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

// change writes a Service as a user would. The real API server clears the status of what is no load
// balancer; the fake one does not, so a change of the type does.
func (f *fixture) change(name string, change func(*corev1.Service)) {
	f.t.Helper()
	apitest.Eventually(f.t, 10*time.Second, "change "+name, func() error {
		s := f.get(name)
		change(s)
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			s.Status.LoadBalancer.Ingress = nil
		}
		_, err := f.kube.CoreV1().Services("ns").Update(f.t.Context(), s, metav1.UpdateOptions{})
		return err
	})
}

func TestFinalizer(t *testing.T) {
	f := newFixture(t)
	f.pool("lb", "192.0.2.0/29", nil)
	cloud := []func(*corev1.Service){finalizedBy(Finalizer), func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
	}}
	f.add(balancer("cloud", cloud...))
	f.add(balancer("cloud-deleted", append(cloud, func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: time.Now()} })...))
	f.add(balancer("cloud-class", finalizedBy(Finalizer), ofClass("example.com/other")))
	f.add(balancer("a", finalizedBy("example.com/own")))
	f.add(balancer("b", ofClass(Class)))
	f.add(balancer("outside", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.1.2.3" }))
	f.start()
	f.has("a", "192.0.2.1")
	f.finalizers("a", "example.com/own", Finalizer)
	f.finalizers("b", Finalizer)
	f.lacks("outside", "10.1.2.3")
	f.finalizers("outside")
	f.change("a", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	f.finalizers("a", "example.com/own")
	f.eventuallyHeld("192.0.2.2 ns/b")
	f.change("a", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
	f.has("a", "192.0.2.1")
	f.finalizers("a", "example.com/own", Finalizer)
	// It asks for what it cannot have: nothing is left to clean up.
	f.change("b", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.1.2.4" })
	f.lacks("b", "10.1.2.4")
	f.finalizers("b")
	f.change("b", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.5" })
	f.has("b", "192.0.2.5")
	f.finalizers("b", Finalizer)
	f.change("b", func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	f.finalizers("b")
	f.eventuallyHeld("192.0.2.1 ns/a")
	for _, name := range []string{"cloud", "cloud-deleted", "cloud-class"} {
		f.finalizers(name, Finalizer)
	}
}

// An API server that does not take the removal, and a controller that starts anew meanwhile: the
// address is not free before the finalizer is gone, and the finalizer is still known to be ours.
func TestFinalizerAfterFailure(t *testing.T) {
	f := newFixture(t)
	f.pool("lb", "192.0.2.0/29", nil)
	f.add(balancer("a"))
	stop := f.start()
	f.finalizers("a", Finalizer)
	stop()
	refused, broken := make(chan struct{}, 1000), true
	f.kube.PrependReactor("update", "services", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if !broken || a.GetSubresource() != "status" {
			return false, nil, nil
		}
		select {
		case refused <- struct{}{}:
		default:
		}
		return true, nil, errors.New("away")
	})
	f.change("a", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	stop = f.start()
	<-refused
	stop()
	f.eventuallyHeld("192.0.2.1 ns/a")
	f.finalizers("a", Finalizer)
	broken = false
	f.start()
	f.finalizers("a")
	f.eventuallyHeld()
}
