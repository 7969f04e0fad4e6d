// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// passthrough is a role that Calico's installers bind to everybody, so that the rights on tiers
// alone decide. It stays so here: to give everybody the default tier is nobody's wish.
const passthrough = "calico-tiered-policy-passthrough"

// tierless are the roles that let somebody write policies of projectcalico.org and name no tier:
// their subjects need one more role.
func tierless(ctx context.Context, kube kubernetes.Interface) ([]string, error) {
	cluster, err := kube.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ClusterRoles: %w", err)
	}
	own, err := kube.RbacV1().Roles(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Roles: %w", err)
	}
	var out []string
	for i := range cluster.Items {
		if r := &cluster.Items[i]; r.Name != passthrough && writesNoTier(r.Rules) {
			out = append(out, "ClusterRole "+r.Name)
		}
	}
	for i := range own.Items {
		if r := &own.Items[i]; writesNoTier(r.Rules) {
			out = append(out, "Role "+r.Namespace+"/"+r.Name)
		}
	}
	return out, nil
}

// writesNoTier reports whether rules let policies that have tiers be written, of no tier.
func writesNoTier(rules []rbacv1.PolicyRule) bool {
	kinds := []string{"networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies", "stagedglobalnetworkpolicies"}
	writes, tiers := false, false
	for _, r := range rules {
		if !slices.Contains(r.APIGroups, "projectcalico.org") && !slices.Contains(r.APIGroups, rbacv1.APIGroupAll) ||
			!slices.ContainsFunc(r.Verbs, func(v string) bool { return !slices.Contains([]string{"get", "list", "watch"}, v) }) {
			continue
		}
		for _, resource := range r.Resources {
			writes = writes || slices.Contains(kinds, resource)
			tiers = tiers || resource == rbacv1.ResourceAll || strings.HasPrefix(resource, "tier.")
		}
	}
	return writes && !tiers
}

// sayTierless names the roles that no longer suffice to write policies.
func sayTierless(ctx context.Context, out io.Writer, kube kubernetes.Interface) error {
	roles, err := tierless(ctx, kube)
	for _, role := range roles {
		fmt.Fprintf(out, "  %s lets policies of projectcalico.org be written and names no tier: give its subjects ClusterRole weir-default-tier too, or tiers of their own; see docs/reference/policy.md\n", role)
	}
	return err
}
