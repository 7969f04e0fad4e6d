// SPDX-License-Identifier: Apache-2.0

// Package kinds has the kinds of objects that Weir stores, with the names by which people call
// them, as the CustomResourceDefinitions that are installed with this version describe them, and
// those of policy.networking.k8s.io, whose definitions come from elsewhere. It says of each whether
// Weir acts on its objects. It reads manifests alone and asks no API server.
package kinds

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/deploy"
)

// Kind is one kind of objects, as its CustomResourceDefinition describes it.
type Kind struct {
	Name       string
	Resource   schema.GroupVersionResource
	Names      []string // as people type them, in lower case
	Namespaced bool
	InForce    bool // Weir acts on it
}

// foreign are in force where somebody else installed their definitions.
var foreign = []Kind{
	foreignKind("AdminNetworkPolicy", "adminnetworkpolicies", "adminnetworkpolicy", "anp"),
	foreignKind("BaselineAdminNetworkPolicy", "baselineadminnetworkpolicies", "baselineadminnetworkpolicy", "banp"),
}

func foreignKind(kind, plural string, names ...string) Kind {
	return Kind{Name: kind, Resource: schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha1", Resource: plural},
		Names: append([]string{plural}, names...), InForce: true}
}

// Foreign reports whether the definition of a kind comes from elsewhere.
func Foreign(name string) bool {
	return slices.ContainsFunc(foreign, func(k Kind) bool { return k.Name == name })
}

// All returns all kinds, from the CustomResourceDefinitions that are installed with this version.
var All = sync.OnceValues(func() ([]Kind, error) {
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		return nil, err
	}
	policies, err := deploy.PolicyDefinitions()
	if err != nil {
		return nil, err
	}
	var out []Kind
	for _, u := range append(policies, objects...) {
		if u.GetKind() == "CustomResourceDefinition" {
			out = append(out, kindOf(u))
		}
	}
	// Of two kinds with one name, Weir's own is meant: the other one is its mirror.
	slices.SortStableFunc(out, func(a, b Kind) int { return cmp.Compare(rank(a), rank(b)) })
	return append(out, foreign...), nil
})

func rank(k Kind) int {
	if k.Resource.Group == weirv1.GroupVersion.Group {
		return 0
	}
	return 1
}

func kindOf(crd *unstructured.Unstructured) Kind {
	text := func(path ...string) string {
		s, _, _ := unstructured.NestedString(crd.Object, path...)
		return s
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	version, _ := versions[0].(map[string]any)
	name, _ := version["name"].(string)
	deprecated, _ := version["deprecated"].(bool)
	k := Kind{
		Name:       text("spec", "names", "kind"),
		Resource:   schema.GroupVersionResource{Group: text("spec", "group"), Version: name, Resource: text("spec", "names", "plural")},
		Namespaced: text("spec", "scope") == "Namespaced",
		InForce:    !deprecated,
	}
	short, _, _ := unstructured.NestedStringSlice(crd.Object, "spec", "names", "shortNames")
	k.Names = append([]string{k.Resource.Resource, text("spec", "names", "singular"), strings.ToLower(k.Name)}, short...)
	return k
}

// Find finds a kind by a name as people type it, also "ippools.projectcalico.org".
func Find(name string) (Kind, error) {
	kinds, err := All()
	if err != nil {
		return Kind{}, err
	}
	want, group, _ := strings.Cut(strings.ToLower(name), ".")
	var all []string
	for _, k := range kinds {
		all = append(all, k.Resource.Resource)
		for _, n := range k.Names {
			if n == want && (group == "" || group == k.Resource.Group || group == k.Resource.Version+"."+k.Resource.Group) {
				return k, nil
			}
		}
	}
	sort.Strings(all)
	return Kind{}, fmt.Errorf("%q is no kind of Weir; there are %s; for others use kubectl", name, strings.Join(all, ", "))
}

// Of finds the kind of an object of a file.
func Of(u *unstructured.Unstructured) (Kind, error) {
	kinds, err := All()
	if err != nil {
		return Kind{}, err
	}
	gvk := u.GroupVersionKind()
	for _, k := range kinds {
		if k.Name == gvk.Kind && k.Resource.GroupVersion() == gvk.GroupVersion() {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("%s %q of %s is no kind of Weir (projectcalico.org/v3, weir.dev/v1, policy.networking.k8s.io); use kubectl for it", gvk.Kind, u.GetName(), u.GetAPIVersion())
}
