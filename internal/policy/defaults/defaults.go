// SPDX-License-Identifier: Apache-2.0

// Package defaults says what a policy counts as that leaves out its directions or its tier. Readers
// of policies (internal/watch) apply it, and the admission webhook (internal/admission) writes it
// into what is stored: a policy means the same whether the webhook was reached or not.
package defaults

import "github.com/weir-net/weir/internal/model"

// TierLabel is the label of a policy of projectcalico.org that has the name of its tier, by which
// clients list the policies of a tier.
const TierLabel = "projectcalico.org/tier"

// Directions are those of a policy of projectcalico.org that lists no types, by its numbers of
// rules: the directions of which there are rules, ingress where there are none.
func Directions(ingressRules, egressRules int) (ingress, egress bool) {
	return ingressRules > 0 || egressRules == 0, egressRules > 0
}

// KubernetesDirections are those of a NetworkPolicy of Kubernetes that lists no policyTypes, and of
// a staged one: ingress always, egress where there are egress rules.
func KubernetesDirections(egressRules int) (ingress, egress bool) { return true, egressRules > 0 }

// Tier is the tier of a policy that names this one.
func Tier(name string) string {
	if name == "" {
		return model.TierDefault
	}
	return name
}
