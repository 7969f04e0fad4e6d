// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/model"
)

func TestRecordsOfNodes(t *testing.T) {
	addr := netip.MustParseAddr
	inv := ipam.Inventory{
		Pools:  []model.Pool{{Name: "p", CIDR: netip.MustParsePrefix("10.0.0.0/16"), BlockBits: 26, Workload: true}},
		Blocks: []ipam.Block{{CIDR: netip.MustParsePrefix("10.0.0.0/26"), Node: "n1", Pool: "p"}},
		Nodes:  map[string]bool{"n1": true, "n2": true, "n3": true},
		Pods:   []*model.Pod{{Name: model.Name{Namespace: "ns", Name: "a"}, Node: "n1", Addrs: []netip.Addr{addr("10.0.0.1")}}},
	}
	silent := recordsOf(&inv, func(node string, into *ipam.NodeRecords) error {
		switch node {
		case "n1":
			into.Records = []ipam.Record{{Address: addr("10.0.0.1"), ContainerID: "c", Namespace: "ns", Pod: "a"}}
		case "n2":
			into.Records = []ipam.Record{{Address: addr("10.0.0.2"), ContainerID: "c", Namespace: "ns", Pod: "gone"}}
		default:
			return errors.New("it is away")
		}
		return nil
	})
	if len(silent) != 1 || !strings.Contains(silent[0], "node n3 were not compared: it is away") {
		t.Errorf("silent: %q", silent)
	}
	if got := allocations(inv.Records); got != "2 allocations of 2 nodes" {
		t.Errorf("it says %q", got)
	}
	if p := ipam.Check(inv); len(p) != 1 || !strings.Contains(p[0].String(), "ns/gone") || !strings.Contains(p[0].String(), "on node n2") {
		t.Errorf("findings: %v", p)
	}
}

// testNodeIPAM is weir ipam in the pod of an agent that may read single objects alone, as
// --fanout=always has it.
func testNodeIPAM(t *testing.T, s *apitest.Server, kubeconfig string) {
	ctx := t.Context()
	kube := s.Clients.Kube
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "fed"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}
	if _, err := kube.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "fed"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "fed"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "fed"}}}
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range cfg.AuthInfos {
		u.Impersonate = "fed"
	}
	fed := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, fed); err != nil {
		t.Fatal(err)
	}
	newNamedPod(t, s, "held", "10.244.9.1")
	apitest.Eventually(t, 0, "the right to read a pod", func() error {
		_, err := s.As("fed", "").Kube.CoreV1().Pods("default").Get(ctx, "held", metav1.GetOptions{})
		return err
	})

	dir := t.TempDir()
	for addr, pod := range map[string]string{"10.244.9.1": "held", "10.244.9.2": "gone"} {
		writeRecord(t, dir, ipam.Record{Address: netip.MustParseAddr(addr), ContainerID: "c", IfName: "eth0", Namespace: "default", Pod: pod, Node: "n1"})
	}
	for _, args := range [][]string{{"check"}, {"show"}, {"release", "10.244.9.0/26"}} {
		out, err := weir(t, fed, "", append([]string{"ipam", "--node", "n1", "--state-dir", dir}, args...)...)
		if err == nil || !strings.Contains(err.Error(), "--fanout=always") || !strings.Contains(err.Error(), "weir ipam "+args[0]) {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
		// Whoever is on no node lacks a right, and nothing else is to be said.
		if _, err := weir(t, fed, "", append([]string{"ipam", "--node", "n1", "--state-dir", dir + "/none"}, args...)...); err == nil || strings.Contains(err.Error(), "--fanout") {
			t.Errorf("%s elsewhere: %v", args, err)
		}
	}
	release := func(addr string) error {
		_, err := weir(t, fed, "", "ipam", "--node", "n1", "--state-dir", dir, "release", addr)
		return err
	}
	if err := release("10.244.9.1"); err == nil || !strings.Contains(err.Error(), "belongs to pod default/held") {
		t.Errorf("the address of a pod is released: %v", err)
	}
	if err := release("10.244.9.2"); err != nil {
		t.Errorf("the address of a pod that is gone: %v", err)
	}
	if err := release("10.244.9.3"); err == nil {
		t.Error("an address that nobody has is released")
	}
	if err := os.WriteFile(filepath.Join(dir, "10.244.9.4"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := release("10.244.9.4"); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("an address whose file cannot be read: %v", err)
	}
}

// writeRecord writes a record as an agent does.
func writeRecord(t *testing.T, dir string, r ipam.Record) {
	t.Helper()
	body, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, r.Address.String()), fmt.Appendf(nil, "%s\nsha256:%x\n", body, sha256.Sum256(body)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newNamedPod makes a pod with an address that runs.
func newNamedPod(t *testing.T, s *apitest.Server, name, addr string) {
	t.Helper()
	ctx, kube := t.Context(), s.Clients.Kube
	if _, err := kube.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "held"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	no := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: "n1", ServiceAccountName: "held", AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	status := fmt.Appendf(nil, `{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, addr, addr)
	if _, err := kube.CoreV1().Pods("default").Patch(ctx, name, "application/merge-patch+json", status, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		zero := int64(0)
		_ = kube.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	})
}
