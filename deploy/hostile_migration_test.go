// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weir-net/weir/internal/migrate/calico"
)

// definition is that of a kind of Calico's, of which anything is stored.
func definition(kind, plural string) *unstructured.Unstructured {
	open := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	return object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", plural+"."+calico.Group, map[string]any{
		"group": calico.Group, "scope": "Cluster", "names": map[string]any{"kind": kind, "plural": plural, "singular": strings.ToLower(kind)},
		"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": open}}}})
}

// While nodes change over from Calico, agents claim blocks with that, too. A node whose agent is
// not what it was must not take those of others, which Felix would send elsewhere then.
func migratingNode(t *testing.T, c cluster) {
	o := Defaults()
	o.From = "calico"
	all, err := Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	c.Create(definition("IPAMBlock", "ipamblocks"))
	c.Create(definition("BlockAffinity", "blockaffinities"))
	const wants = "weir-calico-blocks"
	for _, u := range all {
		switch {
		case u.GetName() == wants:
			c.Create(u)
		case u.GetKind() == "ClusterRole" && u.GetName() == "weir-node":
			role := &rbacv1.ClusterRole{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, role); err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.APIGroups, calico.Group) })
			if at < 0 {
				t.Fatal("agents have no right to Calico's blocks")
			}
			c.grant(t, agentUser, "", role.Rules[at])
		}
	}
	own, other := netip.MustParsePrefix("10.244.80.0/26"), netip.MustParsePrefix("10.244.81.0/26")
	n1 := c.as(agentUser, "n1")
	c.taken(t, n1, "create", calico.SealedBlock(own, "n1"))
	c.taken(t, n1, "create", calico.Affinity(own, "n1"))
	c.refusedSoon(t, n1, calico.SealedBlock(other, "n2"), wants)
	c.refusedSoon(t, n1, calico.Affinity(other, "n2"), wants)
	c.refused(t, c.as(agentUser, ""), "create", calico.SealedBlock(other, "n1"), wants) // a token of no node
	for _, u := range []*unstructured.Unstructured{calico.SealedBlock(other, "n2"), calico.Affinity(other, "n2")} {
		c.taken(t, c.Clients.Dynamic, "create", u)
		c.refused(t, n1, "delete", u, wants)
	}
	nobodys := calico.SealedBlock(netip.MustParsePrefix("10.244.82.0/26"), "n1")
	unstructured.RemoveNestedField(nobodys.Object, "spec", "affinity")
	c.refused(t, n1, "create", nobodys, wants)
	c.mayNot(t, agentUser, "update,patch,deletecollection "+calico.Group+"/ipamblocks", writing+" "+calico.Group+"/ippools", writing+" "+calico.Group+"/networkpolicies")
	c.taken(t, n1, "delete", calico.SealedBlock(own, "n1"))
}
