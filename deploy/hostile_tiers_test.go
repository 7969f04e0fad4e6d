// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const wantsTier = "tier.networkpolicies"

func policyIn(tier, name string) *unstructured.Unstructured {
	spec := map[string]any{"selector": "all()", "ingress": []any{map[string]any{"action": "Allow"}}}
	if tier != "" {
		spec["tier"] = tier
	}
	return object(v3API, "NetworkPolicy", "shop", name, spec)
}

func tierRule(kind string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{"projectcalico.org"}, Resources: []string{"tier." + kind}, ResourceNames: names, Verbs: []string{"*"}}
}

func getTier(name string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{"projectcalico.org"}, Resources: []string{"tiers"}, ResourceNames: []string{name}, Verbs: []string{"get"}}
}

func writes(kind string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{"projectcalico.org"}, Resources: []string{kind}, Verbs: []string{"*"}}
}

// Whoever may write NetworkPolicies of a namespace has the default tier by an aggregated role, and
// no other.
func tenantWrites(t *testing.T, c cluster) {
	dev := c.as("dev", "")
	c.taken(t, dev, "create", policyIn("", "plain"))
	c.taken(t, dev, "create", policyIn("default", "default.named"))
	c.taken(t, dev, "patch", policyIn("", "plain"))
	c.taken(t, dev, "delete", policyIn("", "plain"))
	for _, tier := range []string{"security", "kube-admin", "adminnetworkpolicy", "not-there-yet"} {
		c.refused(t, dev, "create", policyIn(tier, tier+".mine"), wantsTier)
	}
	c.refused(t, dev, "create", policyIn("security", "default.mine"), wantsTier)
	// Both rights are asked for.
	c.grant(t, "half", "shop", writes("networkpolicies"), tierRule("networkpolicies", "security.*"))
	c.grant(t, "other-half", "shop", writes("networkpolicies"), getTier("security"))
	c.grant(t, "lead", "shop", writes("networkpolicies"), tierRule("networkpolicies", "security.*"), getTier("security"))
	c.taken(t, c.as("lead", ""), "create", policyIn("security", "security.lead"))
	c.refused(t, c.as("lead", ""), "create", policyIn("", "lead"), wantsTier)
	for _, user := range []string{"half", "other-half"} {
		c.refused(t, c.as(user, ""), "create", policyIn("security", "security."+user), wantsTier)
	}
	// So it is with policies of the cluster.
	global := object(v3API, "GlobalNetworkPolicy", "", "security.all", map[string]any{"tier": "security", "selector": "all()"})
	c.grant(t, "net", "", writes("globalnetworkpolicies"), tierRule("networkpolicies", "security.*"), getTier("security"))
	c.taken(t, c.Clients.Dynamic, "create", object(v3API, "GlobalNetworkPolicy", "", "mine", map[string]any{"selector": "all()"}))
	c.refused(t, c.as("net", ""), "create", global, "tier.globalnetworkpolicies")
}

func tenantMovesIn(t *testing.T, c cluster) {
	dev := c.as("dev", "")
	c.taken(t, dev, "create", policyIn("", "climber"))
	for _, verb := range []string{"update", "patch"} {
		c.refused(t, dev, verb, policyIn("security", "climber"), wantsTier)
	}
}

// The tier that the policy is in now needs rights too: otherwise what guards the tenant would be
// made the tenant's own.
func tenantMovesOut(t *testing.T, c cluster) {
	dev := c.as("dev", "")
	for _, verb := range []string{"update", "patch"} {
		c.refused(t, dev, verb, policyIn("default", "guard"), wantsTier)
		c.refused(t, dev, verb, policyIn("security", "guard"), wantsTier)
	}
}

func tenantDeletes(t *testing.T, c cluster) {
	dev := c.as("dev", "")
	c.refused(t, dev, "delete", policyIn("security", "guard"), wantsTier)
	if err := c.try(dev, "deletecollection", policyIn("security", "guard")); err == nil {
		t.Error("the deletion of a collection with a policy of the tier was taken")
	}
	c.refused(t, dev, "delete", policyIn("security", "guard"), wantsTier) // it is still there
}

func tenantStages(t *testing.T, c cluster) {
	staged := object(v3API, "StagedNetworkPolicy", "shop", "mine", map[string]any{"tier": "security", "selector": "all()"})
	c.refused(t, c.as("dev", ""), "create", staged, "tier.stagednetworkpolicies")
	staged = object(v3API, "StagedNetworkPolicy", "shop", "trial", map[string]any{"selector": "all()"})
	c.taken(t, c.as("dev", ""), "create", staged)
}

// A name in the role is the tier's and the policy's, whether the policy's own has the tier in front
// or not.
func tenantNamed(t *testing.T, c cluster) {
	c.grant(t, "one", "shop", writes("networkpolicies"), tierRule("networkpolicies", "security.web"), getTier("security"))
	one := c.as("one", "")
	c.taken(t, one, "create", policyIn("security", "web"))
	c.taken(t, one, "create", policyIn("security", "security.web"))
	c.refused(t, one, "create", policyIn("security", "other"), wantsTier)
	c.refused(t, one, "create", policyIn("security", "web.other"), wantsTier)
}

var builtInSpecs = map[string]map[string]any{
	"default":                    {"order": int64(1_000_000), "defaultAction": "Deny"},
	"kube-admin":                 {"order": int64(1_000), "defaultAction": "Pass"},
	"kube-baseline":              {"order": int64(10_000_000), "defaultAction": "Pass"},
	"adminnetworkpolicy":         {"order": int64(1_000), "defaultAction": "Pass"},
	"baselineadminnetworkpolicy": {"order": int64(10_000_000), "defaultAction": "Pass"},
}

func builtInDeleted(t *testing.T, c cluster) {
	admin := c.Clients.Dynamic
	for name, spec := range builtInSpecs {
		c.Create(object(v3API, "Tier", "", name, spec))
		c.refused(t, admin, "delete", object(v3API, "Tier", "", name, nil), "built-in")
	}
	if err := c.try(admin, "deletecollection", object(v3API, "Tier", "", "default", nil)); err == nil {
		t.Error("all tiers were deleted")
	}
	c.Create(object(v3API, "Tier", "", "security", map[string]any{"order": int64(100)}))
	c.Create(object(v3API, "Tier", "", "passing", map[string]any{"order": int64(100)}))
	c.taken(t, admin, "delete", object(v3API, "Tier", "", "passing", nil))
}

func builtInChanged(t *testing.T, c cluster) {
	admin := c.Clients.Dynamic
	for name, spec := range builtInSpecs {
		c.Create(object(v3API, "Tier", "", name, spec))
		c.refused(t, admin, "patch", object(v3API, "Tier", "", name, map[string]any{"order": int64(5)}), "built-in")
		other := map[string]string{"Deny": "Pass", "Pass": "Deny"}[spec["defaultAction"].(string)]
		c.refused(t, admin, "patch", object(v3API, "Tier", "", name, map[string]any{"defaultAction": other}), "built-in")
		labelled := object(v3API, "Tier", "", name, nil)
		labelled.SetLabels(map[string]string{"a": "b"})
		c.taken(t, admin, "patch", labelled)
	}
}
