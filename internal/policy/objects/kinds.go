// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	policyv3 "github.com/weir-net/weir/api/policy/v3"
)

// kind is a kind of policy, or of what policies refer to, that may be tried.
type kind struct {
	name       string
	resource   schema.GroupVersionResource
	namespaced bool
	short      []string
	// typed is the published type, by which fields that do not exist are found; nil where the
	// conversion finds them.
	typed func() any
}

var (
	calico   = v3.SchemeGroupVersion
	policies = schema.GroupVersion{Group: "policy.networking.k8s.io", Version: "v1alpha1"}
)

// kinds that may be tried. Of two of one name the first is meant by the name alone.
var kinds = []kind{
	{"NetworkPolicy", networkingv1.SchemeGroupVersion.WithResource("networkpolicies"), true, []string{"netpol"}, func() any { return &networkingv1.NetworkPolicy{} }},
	{"NetworkPolicy", calico.WithResource("networkpolicies"), true, nil, func() any { return &policyv3.NetworkPolicy{} }},
	{"GlobalNetworkPolicy", calico.WithResource("globalnetworkpolicies"), false, []string{"gnp"}, func() any { return &policyv3.GlobalNetworkPolicy{} }},
	{"StagedNetworkPolicy", calico.WithResource("stagednetworkpolicies"), true, []string{"snp"}, func() any { return &policyv3.StagedNetworkPolicy{} }},
	{"StagedGlobalNetworkPolicy", calico.WithResource("stagedglobalnetworkpolicies"), false, []string{"sgnp"}, func() any { return &policyv3.StagedGlobalNetworkPolicy{} }},
	{"StagedKubernetesNetworkPolicy", calico.WithResource("stagedkubernetesnetworkpolicies"), true, []string{"sknp"}, func() any { return &v3.StagedKubernetesNetworkPolicy{} }},
	{"Tier", calico.WithResource("tiers"), false, nil, func() any { return &v3.Tier{} }},
	{"NetworkSet", calico.WithResource("networksets"), true, []string{"netsets"}, func() any { return &policyv3.NetworkSet{} }},
	{"GlobalNetworkSet", calico.WithResource("globalnetworksets"), false, nil, func() any { return &policyv3.GlobalNetworkSet{} }},
	{"ClusterNetworkPolicy", schema.GroupVersionResource{Group: policies.Group, Version: "v1alpha2", Resource: "clusternetworkpolicies"}, false, []string{"cnp"}, nil},
	{"AdminNetworkPolicy", policies.WithResource("adminnetworkpolicies"), false, []string{"anp"}, nil},
	{"BaselineAdminNetworkPolicy", policies.WithResource("baselineadminnetworkpolicies"), false, []string{"banp"}, nil},
}

// names lists the kinds for people.
func names() string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.name+" ("+k.resource.GroupVersion().String()+")")
	}
	return strings.Join(out, ", ")
}

// kindOf finds the kind of an object; the version has to be the one that is served.
func kindOf(u *unstructured.Unstructured) (*kind, error) {
	for i := range kinds {
		k := &kinds[i]
		if k.name == u.GetKind() && k.resource.Group == u.GroupVersionKind().Group {
			if k.resource.Version != u.GroupVersionKind().Version {
				return nil, fmt.Errorf("%s %q has apiVersion %s: want %s", k.name, u.GetName(), u.GetAPIVersion(), k.resource.GroupVersion())
			}
			return k, nil
		}
	}
	return nil, fmt.Errorf("%s %q of %s cannot be tried; only these can: %s", u.GetKind(), u.GetName(), u.GetAPIVersion(), names())
}

// findKinds finds kinds by a name as people type it: "networkpolicy", "gnp",
// "networkpolicies.projectcalico.org".
func findKinds(name string) (found []*kind) {
	want, group, _ := strings.Cut(strings.ToLower(name), ".")
	for i := range kinds {
		k := &kinds[i]
		called := append([]string{strings.ToLower(k.name), k.resource.Resource}, k.short...)
		if slices.Contains(called, want) && (group == "" || group == k.resource.Group || group == k.resource.Version+"."+k.resource.Group) {
			found = append(found, k)
		}
	}
	return found
}

// strict says what of an object is not known to its kind.
func (k *kind) strict(u *unstructured.Unstructured) error {
	if k.typed == nil {
		return nil
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, k.typed(), true)
}

// id is the key of an object.
type id struct {
	kind            *kind
	namespace, name string
}

func (i id) String() string {
	if i.namespace == "" {
		return i.kind.name + " " + i.name
	}
	return i.kind.name + " " + i.namespace + "/" + i.name
}
