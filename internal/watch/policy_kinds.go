// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/internal/model"
)

// PolicyKind is a kind of policy, as users list its objects one by one.
type PolicyKind struct {
	Kind     string // as rules name it
	Resource schema.GroupVersionResource
	Staged   bool

	convert func(*unstructured.Unstructured) *model.Policy
}

// Policy converts an object of the kind as the watch does; nil = it is not in force.
func (k PolicyKind) Policy(u *unstructured.Unstructured) *model.Policy { return k.convert(u) }

// PolicyKinds are all kinds of policy.
func PolicyKinds() []PolicyKind {
	calico := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: resource}
	}
	cluster := func(version, resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: groupPolicies, Version: version, Resource: resource}
	}
	return []PolicyKind{
		kindInForce(policyKind(model.KindClusterNetworkPolicy, ConvertClusterNetworkPolicy), cluster("v1alpha2", "clusternetworkpolicies")),
		kindInForce(policyKind(model.KindAdminNetworkPolicy, ConvertAdminNetworkPolicy), cluster("v1alpha1", "adminnetworkpolicies")),
		kindInForce(policyKind(model.KindBaselineAdminNetworkPolicy, ConvertBaselineAdminNetworkPolicy), cluster("v1alpha1", "baselineadminnetworkpolicies")),
		kindInForce(policyKind(model.KindNetworkPolicy, ConvertNetworkPolicy), schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}),
		kindInForce(policyKind(model.KindCalicoNetworkPolicy, ConvertCalicoPolicy), calico("networkpolicies")),
		kindInForce(policyKind(model.KindGlobalNetworkPolicy, ConvertGlobalNetworkPolicy), calico("globalnetworkpolicies")),
		kindStaged(stagedKind(model.KindStagedNetworkPolicy, ConvertStagedNetworkPolicy), calico("stagednetworkpolicies")),
		kindStaged(stagedKind(model.KindStagedGlobalNetworkPolicy, ConvertStagedGlobalNetworkPolicy), calico("stagedglobalnetworkpolicies")),
		kindStaged(stagedKind(model.KindStagedKubernetesNetworkPolicy, ConvertStagedKubernetesNetworkPolicy), calico("stagedkubernetesnetworkpolicies")),
	}
}

func kindInForce(k kind[*unstructured.Unstructured, model.Policy], resource schema.GroupVersionResource) PolicyKind {
	return PolicyKind{Kind: k.object, Resource: resource, convert: func(u *unstructured.Unstructured) *model.Policy {
		p, _ := k.convert(u)
		return p
	}}
}

func kindStaged(k kind[*unstructured.Unstructured, model.StagedPolicy], resource schema.GroupVersionResource) PolicyKind {
	return PolicyKind{Kind: k.object, Resource: resource, Staged: true, convert: func(u *unstructured.Unstructured) *model.Policy {
		if s, _ := k.convert(u); s != nil {
			return &s.Policy
		}
		return nil
	}}
}
