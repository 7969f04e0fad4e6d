// SPDX-License-Identifier: Apache-2.0

package watch

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch/parse"
)

// ConvertStagedNetworkPolicy converts a StagedNetworkPolicy. It returns nil for one that is to be
// ignored.
func ConvertStagedNetworkPolicy(np *v3.StagedNetworkPolicy) (*model.StagedPolicy, []weirv1.Problem) {
	s := &np.Spec
	p := &calicoPolicy{finding: *newFinding(model.KindStagedNetworkPolicy, np), kind: model.KindStagedNetworkPolicy, tier: s.Tier, order: s.Order,
		selector: s.Selector, serviceAccountSelector: s.ServiceAccountSelector, types: s.Types, ingress: s.Ingress, egress: s.Egress,
		namespace: np.Namespace}
	return p.staged(s.StagedAction, parse.NameOf(np), p.convert), p.List
}

// ConvertStagedGlobalNetworkPolicy converts a StagedGlobalNetworkPolicy. It returns nil for one
// that is to be ignored, and for one without tracking: of what has no flow there are no events.
func ConvertStagedGlobalNetworkPolicy(np *v3.StagedGlobalNetworkPolicy) (*model.StagedPolicy, []weirv1.Problem) {
	s := &np.Spec
	p := &calicoPolicy{finding: *newFinding(model.KindStagedGlobalNetworkPolicy, np), kind: model.KindStagedGlobalNetworkPolicy, tier: s.Tier, order: s.Order,
		selector: s.Selector, namespaceSelector: s.NamespaceSelector, serviceAccountSelector: s.ServiceAccountSelector, types: s.Types,
		ingress: s.Ingress, egress: s.Egress}
	if s.StagedAction != v3.StagedActionDelete && s.DoNotTrack {
		p.Add("spec.doNotTrack", "true", "is about packets without flows, which are not reported; the policy is ignored", "remove the policy")
		return nil, p.List
	}
	return p.staged(s.StagedAction, parse.NameOf(np), func(name model.Name) *model.Policy {
		out := p.convert(name)
		out.ApplyOnForward, out.PreDNAT = s.ApplyOnForward, s.PreDNAT
		p.forHosts(out, s.ApplyOnForward)
		return out
	}), p.List
}

// ConvertStagedKubernetesNetworkPolicy converts a StagedKubernetesNetworkPolicy. It returns nil for
// one that is to be ignored.
func ConvertStagedKubernetesNetworkPolicy(np *v3.StagedKubernetesNetworkPolicy) (*model.StagedPolicy, []weirv1.Problem) {
	f := newFinding(model.KindStagedKubernetesNetworkPolicy, np)
	s := &np.Spec
	out := f.staged(s.StagedAction, parse.NameOf(np), func(model.Name) *model.Policy {
		return f.networkPolicy(model.KindStagedKubernetesNetworkPolicy, &networkingv1.NetworkPolicy{ObjectMeta: np.ObjectMeta,
			Spec: networkingv1.NetworkPolicySpec{PodSelector: s.PodSelector, Ingress: s.Ingress, Egress: s.Egress, PolicyTypes: s.PolicyTypes}})
	})
	return out, f.List
}

// staged converts by the action. Learn is for those who write the rules; until they have, it is as
// Set. An action that is none stages the policy: it decides nothing either way.
func (f *finding) staged(action v3.StagedAction, name model.Name, convert func(model.Name) *model.Policy) *model.StagedPolicy {
	switch action {
	case v3.StagedActionIgnore:
		return nil
	case v3.StagedActionDelete, v3.StagedActionSet, v3.StagedActionLearn, "":
	default:
		f.Add("spec.stagedAction", string(action), "is none of Set, Delete, Learn, Ignore; the policy is staged", "correct it")
	}
	p := convert(name)
	if action != v3.StagedActionDelete {
		return &model.StagedPolicy{Policy: *p}
	}
	p.Ingress, p.Egress, p.Invalid, f.List = nil, nil, "", nil // its rules mean nothing
	return &model.StagedPolicy{Policy: *p, Delete: true}
}
