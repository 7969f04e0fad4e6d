// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/objects"
)

// readAdmission compares the policies of admission and their bindings with those that this program
// installs: without them, or with ones that only audit, the rights of nodes and of the controller
// are larger than they look.
func (r *report) readAdmission(ctx context.Context, c *clientset.Clients) error {
	o := deploy.Defaults()
	if prefix, known := deploy.Networks[r.on]; known {
		o.On, o.InterfacePrefix = r.on, prefix
	}
	all, err := deploy.Objects(o)
	if err != nil {
		return err
	}
	var missing []string
	for _, want := range all {
		if !strings.HasPrefix(want.GetKind(), "ValidatingAdmissionPolicy") {
			continue
		}
		have, err := objects.Resource(c.Dynamic, want).Get(ctx, want.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err):
			r.components = append(r.components, "policies of admission not looked at (rights: ClusterRole weir-viewer)")
			return nil
		case apierrors.IsNotFound(err):
			missing = append(missing, objects.Describe(want))
		case err != nil:
			return fmt.Errorf("get %s: %w", objects.Describe(want), err)
		default:
			if at := differs("spec", want.Object["spec"], have.Object["spec"]); at != "" {
				r.faults = append(r.faults, objects.Describe(want)+" is not the one that this weir installs ("+at+" differs): run `weir install` of the version that the cluster should have")
			}
		}
	}
	if len(missing) > 0 {
		r.faults = append(r.faults, "what admission should refuse is allowed, for these do not exist: "+strings.Join(missing, ", ")+"; run `weir install`")
	}
	return nil
}

// defaulted are the fields that the API server adds to such objects, with the values that mean
// nothing more.
var defaulted = map[string]any{"matchPolicy": "Equivalent", "namespaceSelector": map[string]any{}, "objectSelector": map[string]any{}, "scope": "*"}

// differs returns the path of the first difference between two values of JSON, "" where there is
// none but what the API server adds.
func differs(path string, want, have any) string {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		if !ok {
			return path
		}
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if at := differs(path+"."+k, want[k], have[k]); at != "" {
				return at
			}
		}
		for _, k := range slices.Sorted(maps.Keys(have)) {
			if _, asked := want[k]; !asked && !reflect.DeepEqual(have[k], defaulted[k]) {
				return path + "." + k
			}
		}
		return ""
	case []any:
		have, ok := have.([]any)
		if !ok || len(have) != len(want) {
			return path
		}
		for i := range want {
			if at := differs(fmt.Sprintf("%s[%d]", path, i), want[i], have[i]); at != "" {
				return at
			}
		}
		return ""
	}
	if !reflect.DeepEqual(want, have) {
		return path
	}
	return ""
}

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
