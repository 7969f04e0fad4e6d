// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"sort"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/deploy"
)

// kindInfo is one kind that the CLI handles, as its CustomResourceDefinition describes it.
type kindInfo struct {
	kind       string
	gvr        schema.GroupVersionResource
	names      []string // as people type them, in lower case
	namespaced bool
	inForce    bool // Weir acts on it
}

// foreignKinds are in force where somebody else installed their definitions.
var foreignKinds = []kindInfo{
	foreignKind("AdminNetworkPolicy", "adminnetworkpolicies", "adminnetworkpolicy", "anp"),
	foreignKind("BaselineAdminNetworkPolicy", "baselineadminnetworkpolicies", "baselineadminnetworkpolicy", "banp"),
}

func foreignKind(kind, plural string, names ...string) kindInfo {
	return kindInfo{kind: kind, gvr: schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha1", Resource: plural},
		names: append([]string{plural}, names...), inForce: true}
}

// loadKinds returns all kinds, from the CustomResourceDefinitions that are installed with this
// version.
var loadKinds = sync.OnceValues(func() ([]kindInfo, error) {
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		return nil, err
	}
	policies, err := deploy.PolicyDefinitions()
	if err != nil {
		return nil, err
	}
	var out []kindInfo
	for _, u := range append(policies, objects...) {
		if u.GetKind() == "CustomResourceDefinition" {
			out = append(out, kindOf(u))
		}
	}
	return append(out, foreignKinds...), nil
})

func kindOf(crd *unstructured.Unstructured) kindInfo {
	text := func(path ...string) string {
		s, _, _ := unstructured.NestedString(crd.Object, path...)
		return s
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	version, _ := versions[0].(map[string]any)
	name, _ := version["name"].(string)
	deprecated, _ := version["deprecated"].(bool)
	k := kindInfo{
		kind:       text("spec", "names", "kind"),
		gvr:        schema.GroupVersionResource{Group: text("spec", "group"), Version: name, Resource: text("spec", "names", "plural")},
		namespaced: text("spec", "scope") == "Namespaced",
		inForce:    !deprecated,
	}
	short, _, _ := unstructured.NestedStringSlice(crd.Object, "spec", "names", "shortNames")
	k.names = append([]string{k.gvr.Resource, text("spec", "names", "singular"), strings.ToLower(k.kind)}, short...)
	return k
}

// findKind finds a kind by a name as people type it, also "ippools.projectcalico.org".
func findKind(name string) (kindInfo, error) {
	kinds, err := loadKinds()
	if err != nil {
		return kindInfo{}, err
	}
	want, group, _ := strings.Cut(strings.ToLower(name), ".")
	var all []string
	for _, k := range kinds {
		all = append(all, k.gvr.Resource)
		for _, n := range k.names {
			if n == want && (group == "" || group == k.gvr.Group || group == k.gvr.Version+"."+k.gvr.Group) {
				return k, nil
			}
		}
	}
	sort.Strings(all)
	return kindInfo{}, fmt.Errorf("%q is no kind of Weir; there are %s; for others use kubectl", name, strings.Join(all, ", "))
}

// kindOfObject finds the kind of an object of a file.
func kindOfObject(u *unstructured.Unstructured) (kindInfo, error) {
	kinds, err := loadKinds()
	if err != nil {
		return kindInfo{}, err
	}
	gvk := u.GroupVersionKind()
	for _, k := range kinds {
		if k.kind == gvk.Kind && k.gvr.GroupVersion() == gvk.GroupVersion() {
			return k, nil
		}
	}
	return kindInfo{}, fmt.Errorf("%s %q of %s is no kind of Weir (projectcalico.org/v3, weir.dev/v1, policy.networking.k8s.io); use kubectl for it", gvk.Kind, u.GetName(), u.GetAPIVersion())
}
