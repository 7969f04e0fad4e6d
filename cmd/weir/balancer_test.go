// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/controller"
	"github.com/weir-net/weir/internal/model"
)

const controllerUser = "system:serviceaccount:kube-system:weir-controller"

var finalizer = []string{"service.kubernetes.io/load-balancer-cleanup"}

// testBalancers gives addresses with the rights of the deployment.
func testBalancers(t *testing.T, s *apitest.Server, f *follower, kubeconfig string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	services := s.Clients.Kube.CoreV1().Services("later")
	if _, err := s.Clients.Dynamic.Resource(poolResource).Create(ctx, apitest.Object("projectcalico.org/v3", "IPPool", "lb",
		map[string]any{"cidr": "192.0.2.0/28", "allowedUses": []any{"LoadBalancer"}}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	own := s.As(controllerUser, "")
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		c := controller.New(controller.Config{Kube: own.Kube, Dynamic: own.Dynamic, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			Identity: "lb-test", Namespace: deploy.Namespace, PodCIDR: "10.244.0.0/16", VXLANMode: "Never", Grace: time.Minute, Interval: 200 * time.Millisecond})
		go func() { done <- c.Run(ctx) }()
		return func() { cancel(); <-done }
	}
	make := func(name, class, ip string) {
		t.Helper()
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
			Selector: map[string]string{"a": "b"}, LoadBalancerIP: ip, Ports: []corev1.ServicePort{{Port: 80}}}}
		if class != "" {
			svc.Spec.LoadBalancerClass = &class
		}
		if _, err := services.Create(ctx, svc, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	has := func(name, want string) {
		t.Helper()
		apitest.Eventually(t, 10*time.Second, name+" has "+want, func() error {
			svc, err := services.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			var got []string
			for _, in := range svc.Status.LoadBalancer.Ingress {
				got = append(got, in.IP)
			}
			if strings.Join(got, " ") != want {
				return fmt.Errorf("%v %+v", got, svc.Status.Conditions)
			}
			return nil
		})
	}
	stop := run()
	make("plain", "", "")
	has("plain", "192.0.2.1")
	make("classed", "weir.dev/load-balancer", "")
	make("foreign", "example.com/lb", "")
	has("classed", "192.0.2.2")
	make("fixed", "", "192.0.2.9")
	has("fixed", "192.0.2.9")
	make("twice", "", "192.0.2.9")
	apitest.Eventually(t, 5*time.Second, "the event about a taken address", func() error {
		events, err := s.Clients.Kube.CoreV1().Events("later").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == "twice" && strings.Contains(e.Message, "belongs to Service later/fixed") {
				return nil
			}
		}
		return fmt.Errorf("%d events", len(events.Items))
	})
	apitest.Eventually(t, 5*time.Second, "the condition about it", func() error { // written after the event was sent
		svc, err := services.Get(ctx, "twice", metav1.GetOptions{})
		if err != nil || len(svc.Status.Conditions) != 1 || svc.Status.Conditions[0].Status != metav1.ConditionFalse {
			return fmt.Errorf("%v %+v", err, svc.Status)
		}
		return nil
	})
	f.eventually(t, 5*time.Second, "the address in what nodes see", func() error {
		m := f.cluster.Services[model.Name{Namespace: "later", Name: "plain"}]
		if m == nil || len(m.LBIPs) != 1 || m.LBIPs[0] != netip.MustParseAddr("192.0.2.1") {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	if out, err := weir(t, kubeconfig, "", "ipam", "check"); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
	if out, err := weir(t, kubeconfig, "", "ipam", "show"); err != nil || !strings.Contains(out, "192.0.2.0/28") || !strings.Contains(out, "3 (") {
		t.Errorf("show: %v\n%s", err, out)
	}
	// An agent cannot take the load balancers' addresses.
	agent := client.Blocks(s.As(agentUser, "n1").Dynamic)
	if err := agent.Delete(ctx, "192-0-2-0-28", ""); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("an agent deleted a block of load balancers: %v", err)
	}
	// A Service that goes while no controller runs waits for one, unless somebody forces it; and
	// one that is no load balancer any more.
	stop()
	if err := services.Delete(ctx, "fixed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if svc, err := services.Get(ctx, "fixed", metav1.GetOptions{}); err != nil || svc.DeletionTimestamp == nil || !slices.Equal(svc.Finalizers, finalizer) {
		t.Errorf("a Service that is deleted, and has its address: %v %+v", err, svc.ObjectMeta)
	}
	if _, err := services.Patch(ctx, "fixed", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if out, err := weir(t, kubeconfig, "", "ipam", "check"); !errors.Is(err, errUnhealthy) || !strings.Contains(out, "later/fixed") {
		t.Errorf("a leaked address is not found: %v\n%s", err, out)
	}
	if _, err := services.Patch(ctx, "plain", "application/merge-patch+json", []byte(`{"spec":{"type":"ClusterIP"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	stop = run()
	has("twice", "192.0.2.9")
	has("plain", "")
	apitest.Eventually(t, 10*time.Second, "the finalizer of what is no load balancer is removed", func() error {
		svc, err := services.Get(ctx, "plain", metav1.GetOptions{})
		if err != nil || len(svc.Finalizers) > 0 {
			return fmt.Errorf("%v %v", err, svc.Finalizers)
		}
		return nil
	})
	apitest.Eventually(t, 10*time.Second, "its address is free", func() error {
		b, err := client.Blocks(s.Clients.Dynamic).Get(ctx, "192-0-2-0-28")
		if err != nil || slices.ContainsFunc(b.Spec.Allocations, func(a weirv1.Allocation) bool { return a.Address == "192.0.2.1" }) {
			return fmt.Errorf("%v %+v", err, b)
		}
		return nil
	})
	make("again", "", "")
	has("again", "192.0.2.1")
	has("foreign", "")
	for _, name := range []string{"plain", "classed", "foreign", "twice", "again"} {
		if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"plain", "classed", "foreign", "twice", "again"} { // none waits for a finalizer
		apitest.Eventually(t, 10*time.Second, name+" is gone", func() error {
			if _, err := services.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("err %v", err)
			}
			return nil
		})
	}
	apitest.Eventually(t, 10*time.Second, "the block is given back", func() error {
		_, err := client.Blocks(s.Clients.Dynamic).Get(ctx, weirv1.BlockName(netip.MustParsePrefix("192.0.2.0/28")))
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("err %v", err)
	})
	stop()
	if err := s.Clients.Dynamic.Resource(poolResource).Delete(ctx, "lb", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}
