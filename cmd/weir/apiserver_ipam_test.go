// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
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
)

func testIPAM(t *testing.T, s *apitest.Server, kubeconfig string) {
	ctx := t.Context()
	p := netip.MustParsePrefix("10.244.7.0/26")
	_, err := client.Blocks(s.Clients.Dynamic).Create(ctx, &weirv1.IPAMBlock{ObjectMeta: metav1.ObjectMeta{Name: weirv1.BlockName(p)},
		Spec: weirv1.IPAMBlockSpec{CIDR: p.String(), Node: "left", Pool: "default"}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := weir(t, kubeconfig, "", "ipam", "show", "--blocks"); err != nil || !strings.Contains(out, "10.244.7.0/26") || !strings.Contains(out, "65536") {
		t.Errorf("show: %v\n%s", err, out)
	}
	out, err := weir(t, kubeconfig, "", "ipam", "check")
	if !errors.Is(err, errUnhealthy) || !strings.Contains(out, "weir ipam release 10.244.7.0/26") {
		t.Errorf("check: %v\n%s", err, out)
	}
	for _, bad := range []string{"10.244.99.0/26", "nonsense", "10.244.7.1"} {
		if out, err := weir(t, kubeconfig, "", "ipam", "release", bad, "--state-dir", t.TempDir()); err == nil {
			t.Errorf("released %s: %s", bad, out)
		}
	}
	if out, err := weir(t, kubeconfig, "", "ipam", "release", "10.244.7.0/26"); err != nil {
		t.Errorf("release: %v\n%s", err, out)
	}
	if out, err := weir(t, kubeconfig, "", "ipam", "check"); err != nil || !strings.Contains(out, "Nothing leaked") {
		t.Errorf("check after release: %v\n%s", err, out)
	}
}

func testController(t *testing.T, s *apitest.Server) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	admin := s.Clients
	blocks := client.Blocks(admin.Dynamic)
	for cidr, node := range map[string]string{"10.244.2.0/26": "gone", "10.244.2.64/26": "gone", "10.244.3.0/26": "n1"} {
		p := netip.MustParsePrefix(cidr)
		if _, err := blocks.Create(ctx, &weirv1.IPAMBlock{ObjectMeta: metav1.ObjectMeta{Name: weirv1.BlockName(p)}, Spec: weirv1.IPAMBlockSpec{CIDR: cidr, Node: node}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.NodeStatuses(admin.Dynamic).Apply(ctx, &weirv1.NodeStatus{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}, "x"); err != nil {
		t.Fatal(err)
	}
	pod, err := admin.Kube.CoreV1().Pods("later").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{NodeName: "gone", Containers: []corev1.Container{{Name: "c", Image: "i"}}, AutomountServiceAccountToken: new(bool), ServiceAccountName: "default"}}, metav1.CreateOptions{})
	if apierrors.IsForbidden(err) { // no controller makes service accounts here
		if _, err := admin.Kube.CoreV1().ServiceAccounts("later").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod, err = admin.Kube.CoreV1().Pods("later").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{NodeName: "gone", Containers: []corev1.Container{{Name: "c", Image: "i"}}, AutomountServiceAccountToken: new(bool)}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	status, _ := json.Marshal(map[string]any{"status": map[string]any{"phase": "Running", "podIP": "10.244.2.70", "podIPs": []map[string]any{{"ip": "10.244.2.70"}}}})
	if _, err := admin.Kube.CoreV1().Pods("later").Patch(ctx, pod.Name, "application/merge-patch+json", status, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct{ name, cidr string }{{"over", "10.244.128.0/17"}} {
		if _, err := admin.Dynamic.Resource(poolResource).Create(ctx, apitest.Object("projectcalico.org/v3", "IPPool", p.name, map[string]any{"cidr": p.cidr}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	createNamed(t, admin)
	own := s.As("system:serviceaccount:kube-system:weir-controller", "")
	c := controller.New(controller.Config{Kube: own.Kube, Dynamic: own.Dynamic, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Identity: "test", Namespace: deploy.Namespace, PodCIDR: "10.244.0.0/16", VXLANMode: "Never", Grace: time.Second, Interval: 200 * time.Millisecond})
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	apitest.Eventually(t, 20*time.Second, "giving back the free block of the node that is gone", func() error {
		list, err := blocks.List(ctx)
		if err != nil {
			return err
		}
		var names []string
		for _, b := range list {
			names = append(names, b.Name)
		}
		if got := strings.Join(names, " "); got != "10-244-2-64-26 10-244-3-0-26" {
			return errors.New(got)
		}
		return nil
	})
	apitest.Eventually(t, 5*time.Second, "the event about the overlap", func() error {
		events, err := admin.Kube.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "PoolOverlaps" && e.InvolvedObject.Name == "over" && strings.Contains(e.Message, "10.244.0.0/16") {
				return nil
			}
		}
		return fmt.Errorf("%d events", len(events.Items))
	})
	awaitConditions(t, admin)
	zero := int64(0)
	if err := admin.Kube.CoreV1().Pods("later").Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, 10*time.Second, "giving back the other block once its pod is gone", func() error {
		_, err := blocks.Get(ctx, "10-244-2-64-26")
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("err %v", err)
	})
	apitest.Eventually(t, 5*time.Second, "removing the status of the node that is gone", func() error {
		if _, err := client.NodeStatuses(admin.Dynamic).Get(ctx, "gone"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("err %v", err)
		}
		if _, err := client.NodeStatuses(admin.Dynamic).Get(ctx, "n1"); err != nil {
			t.Fatal(err)
		}
		return nil
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
}
