// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestRolesWithoutTiersAreNamed(t *testing.T) {
	rule := func(group string, resources string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: strings.Fields(resources), Verbs: verbs}
	}
	cluster := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	}
	kube := fake.NewClientset(
		cluster("writer", rule("projectcalico.org", "tiers networkpolicies", "get", "create")),
		cluster("reader", rule("projectcalico.org", "networkpolicies", "get", "list", "watch")),
		cluster("kubernetes-own", rule("networking.k8s.io", "networkpolicies", "*")),
		cluster("with-tier", rule("projectcalico.org", "networkpolicies", "*"), rule("projectcalico.org", "tier.networkpolicies", "*")),
		cluster(passthrough, rule("projectcalico.org", "networkpolicies globalnetworkpolicies", "*")),
		cluster("all", rule("*", "*", "*")),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "dev"}, Rules: []rbacv1.PolicyRule{rule("projectcalico.org", "stagednetworkpolicies", "update")}})
	var out bytes.Buffer
	if err := sayTierless(t.Context(), &out, kube); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	if strings.Count(got, "\n") != 2 || !strings.Contains(got, "ClusterRole writer ") || !strings.Contains(got, "Role shop/dev ") {
		t.Errorf("%s", got)
	}
}
