// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/apitest"
)

// testLiveChange asks an agent that does not answer because it starts again with another data
// plane, as it reported before.
func testLiveChange(t *testing.T, s *apitest.Server, kubeconfig string) {
	statuses := client.NodeStatuses(s.Clients.Dynamic)
	now := metav1.Now()
	change := func(c weirv1.Condition) {
		t.Helper()
		err := statuses.Apply(t.Context(), &weirv1.NodeStatus{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: weirv1.NodeStatusStatus{
			Dataplane: "eBPF", LastHeartbeat: &now, Conditions: []weirv1.Condition{{Type: weirv1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: now}, c}}}, "weir-agent")
		if err != nil {
			t.Fatal(err)
		}
	}
	change(weirv1.Condition{Type: weirv1.ConditionDataplane, Status: metav1.ConditionFalse, Reason: weirv1.ReasonChanging,
		Message: "the data plane changes from eBPF to nftables", LastTransitionTime: now})
	out, err := weir(t, kubeconfig, "", "status", "--live", "--node", "n1")
	if !errors.Is(err, errUnhealthy) || !strings.Contains(out, "changes from eBPF to nftables") || strings.Contains(out, "no live report") {
		t.Errorf("status of an agent that changes its data plane: %v\n%s", err, out)
	}
	change(weirv1.Condition{Type: weirv1.ConditionDataplane, Status: metav1.ConditionTrue, Reason: "AsItShouldBe", LastTransitionTime: now})
	out, err = weir(t, kubeconfig, "", "status", "--live", "--node", "n1")
	if !errors.Is(err, errUnhealthy) || !strings.Contains(out, "no live report") {
		t.Errorf("status of an agent that does not run, and has changed its data plane: %v\n%s", err, out)
	}
}

// testLive asks agents that are not there, with and without the right to.
func testLive(t *testing.T, s *apitest.Server, kubeconfig string) {
	ctx, kube := t.Context(), s.Clients.Kube
	out, err := weir(t, kubeconfig, "", "status", "--live", "--node", "n1")
	if !errors.Is(err, errUnhealthy) || !strings.Contains(out, "no live report") || !strings.Contains(out, "weir-node-x does not run") ||
		!strings.Contains(out, "APIService v1alpha1.live.weir.dev not available") {
		t.Errorf("status of an agent that does not run: %v\n%s", err, out)
	}
	testLiveChange(t, s, kubeconfig)
	if _, err := weir(t, kubeconfig, "", "status", "--node", "nowhere"); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("status of a node that is not there: %v", err)
	}
	pods := kube.CoreV1().Pods(deploy.Namespace)
	pod, err := pods.Get(ctx, "weir-node-x", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "weir-node", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "looks"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}}}
	if _, err := kube.RbacV1().Roles(deploy.Namespace).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "looks"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "looks"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "looker"}}}
	if _, err := kube.RbacV1().RoleBindings(deploy.Namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ user, says string }{
		{"nobody", "verb list on pods"}, {"looker", "verbs get and create on pods/exec in namespace kube-system"},
	} {
		cfg := rest.CopyConfig(s.Config)
		cfg.Impersonate = rest.ImpersonationConfig{UserName: c.user, Groups: []string{"system:authenticated"}}
		a := &agentapi.Client{Kube: s.As(c.user, "").Kube, Config: cfg, Namespace: deploy.Namespace}
		// Rights that were just given may not count yet.
		apitest.Eventually(t, 0, "the refusal of "+c.user, func() error {
			err := a.Ask(ctx, "n1", wire.Question{Path: "/version"}, io.Discard)
			if !errors.Is(err, agentapi.ErrNoRight) || !strings.Contains(err.Error(), c.says) {
				return errors.Join(errors.New("not the expected error"), err)
			}
			return nil
		})
	}
	a := &agentapi.Client{Kube: kube, Config: s.Config, Namespace: deploy.Namespace}
	if err := a.Ask(ctx, "n1", wire.Question{Path: "/version"}, io.Discard); err == nil || errors.Is(err, agentapi.ErrNoRight) {
		t.Errorf("asking where no kubelet is: %v", err)
	}
}
