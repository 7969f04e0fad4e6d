// SPDX-License-Identifier: Apache-2.0

package watch

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch/parse"
)

// groupPolicies is the group of the kinds of policy that administrators have alongside
// NetworkPolicy.
const groupPolicies = "policy.networking.k8s.io"

// addPolicies watches the kinds of policy that CRDs define, and what they refer to.
func (w *Watcher) addPolicies(d dynamic.Interface) error {
	calico := v3.SchemeGroupVersion.WithResource
	cluster := func(version, resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: groupPolicies, Version: version, Resource: resource}
	}
	return firstError(
		addDefined(w, d, cluster("v1alpha2", "clusternetworkpolicies"), policyKind(model.KindClusterNetworkPolicy, ConvertClusterNetworkPolicy)),
		addDefined(w, d, cluster("v1alpha1", "adminnetworkpolicies"), policyKind(model.KindAdminNetworkPolicy, ConvertAdminNetworkPolicy)),
		addDefined(w, d, cluster("v1alpha1", "baselineadminnetworkpolicies"), policyKind(model.KindBaselineAdminNetworkPolicy, ConvertBaselineAdminNetworkPolicy)),
		addDynamic(w, d, calico("networkpolicies"), policyKind(model.KindCalicoNetworkPolicy, ConvertCalicoPolicy)),
		addDynamic(w, d, calico("globalnetworkpolicies"), policyKind(model.KindGlobalNetworkPolicy, ConvertGlobalNetworkPolicy)),
		addDynamic(w, d, calico("stagednetworkpolicies"), stagedKind(model.KindStagedNetworkPolicy, ConvertStagedNetworkPolicy)),
		addDynamic(w, d, calico("stagedglobalnetworkpolicies"), stagedKind(model.KindStagedGlobalNetworkPolicy, ConvertStagedGlobalNetworkPolicy)),
		addDynamic(w, d, calico("stagedkubernetesnetworkpolicies"), stagedKind(model.KindStagedKubernetesNetworkPolicy, ConvertStagedKubernetesNetworkPolicy)),
		addDynamic(w, d, calico("tiers"), tierKind()),
		addDynamic(w, d, calico("hostendpoints"), hostEndpointKind()),
		addDynamic(w, d, calico("networksets"), networkSetKind("NetworkSet", ConvertNetworkSet)),
		addDynamic(w, d, calico("globalnetworksets"), networkSetKind("GlobalNetworkSet", ConvertGlobalNetworkSet)),
	)
}

func tierKind() kind[*unstructured.Unstructured, model.Tier] {
	return kind[*unstructured.Unstructured, model.Tier]{
		object: "Tier", convert: typed("Tier", ConvertTier),
		record: func(b *Batch, n model.Name, _ any, now, _ *model.Tier) { put(&b.Tiers, n.Name, now) }}
}

func hostEndpointKind() kind[*unstructured.Unstructured, model.HostEndpoint] {
	return kind[*unstructured.Unstructured, model.HostEndpoint]{
		object: "HostEndpoint", convert: typed("HostEndpoint", ConvertHostEndpoint),
		record: func(b *Batch, n model.Name, _ any, now, _ *model.HostEndpoint) { put(&b.HostEndpoints, n.Name, now) }}
}

func networkSetKind[T any](name string, convert func(*T) (*model.NetworkSet, []weirv1.Problem)) kind[*unstructured.Unstructured, model.NetworkSet] {
	return kind[*unstructured.Unstructured, model.NetworkSet]{
		object: name, convert: typed(name, convert),
		record: func(b *Batch, n model.Name, _ any, now, _ *model.NetworkSet) { put(&b.NetworkSets, n, now) }}
}

// policyKind is a kind of policy. An object that cannot be read denies everything to what it
// selects.
func policyKind[T any](name string, convert func(*T) (*model.Policy, []weirv1.Problem)) kind[*unstructured.Unstructured, model.Policy] {
	return kind[*unstructured.Unstructured, model.Policy]{object: name,
		convert: func(u *unstructured.Unstructured) (*model.Policy, []weirv1.Problem) {
			o, err := decode[T](u)
			if err == nil {
				return convert(o)
			}
			return unreadable(u, convert, err)
		},
		record: func(b *Batch, n model.Name, _ any, now, _ *model.Policy) {
			put(&b.Policies, model.PolicyID{Kind: name, Name: n}, now)
		}}
}

// stagedKind is a staged kind of policy. An object that cannot be read would deny everything to
// what it selects.
func stagedKind[T any](name string, convert func(*T) (*model.StagedPolicy, []weirv1.Problem)) kind[*unstructured.Unstructured, model.StagedPolicy] {
	return kind[*unstructured.Unstructured, model.StagedPolicy]{object: name,
		convert: func(u *unstructured.Unstructured) (*model.StagedPolicy, []weirv1.Problem) {
			o, err := decode[T](u)
			if err == nil {
				return convert(o)
			}
			var staged *model.StagedPolicy
			_, problems := unreadable(u, func(o *T) (*model.Policy, []weirv1.Problem) {
				var problems []weirv1.Problem
				if staged, problems = convert(o); staged == nil {
					return nil, problems
				}
				return &staged.Policy, problems
			}, err)
			return staged, problems
		},
		record: func(b *Batch, n model.Name, _ any, now, _ *model.StagedPolicy) {
			put(&b.Staged, model.PolicyID{Kind: name, Name: n}, now)
		}}
}

// unreadable converts a policy whose rules, or more of it, cannot be read: to one that denies
// everything. As much of the rest counts as can be read.
func unreadable[T any](u *unstructured.Unstructured, convert func(*T) (*model.Policy, []weirv1.Problem), why error) (*model.Policy, []weirv1.Problem) {
	bare := u.DeepCopy()
	directions := map[string]bool{}
	for _, dir := range []string{"ingress", "egress"} {
		_, directions[dir], _ = unstructured.NestedFieldNoCopy(u.Object, "spec", dir)
		unstructured.RemoveNestedField(bare.Object, "spec", dir)
	}
	o, err := decode[T](bare)
	if err != nil {
		unstructured.RemoveNestedField(bare.Object, "spec")
		o = new(T)
		if again, err := decode[T](bare); err == nil {
			o = again
		}
		directions = map[string]bool{"ingress": true, "egress": true}
	}
	p, problems := convert(o)
	if p == nil {
		return nil, problems
	}
	p.Name = parse.NameOf(u)
	if types, _, _ := unstructured.NestedFieldNoCopy(bare.Object, "spec", "types"); !listed(types) { // as calicoPolicy.directions
		p.AppliesIngress, p.AppliesEgress = directions["ingress"] || !directions["egress"], directions["egress"]
	}
	f := newFinding(p.Kind, u)
	f.Add("spec", "", why.Error()+"; the policy denies everything", "correct it")
	deny(p, f.summary())
	return p, append(f.List, problems...)
}

// listed reports whether a field is a list of something.
func listed(field any) bool {
	l, ok := field.([]any)
	return ok && len(l) > 0
}
