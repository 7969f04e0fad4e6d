// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weir-net/weir/internal/model"
)

// A kind whose definition is not there is not asked for and holds nothing up; its policies count as
// soon as it is there, and no longer when it is gone.
func TestADefinitionComesAndGoes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	admin := schema.GroupVersionResource{Group: groupPolicies, Version: "v1alpha1", Resource: "adminnetworkpolicies"}
	name := admin.GroupResource().String()
	crds := f.dynamic.Resource(definitions)
	if err := crds.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.object(t, admin, "AdminNetworkPolicy", "a", map[string]any{"spec": map[string]any{"priority": int64(7), "subject": map[string]any{"namespaces": map[string]any{}},
		"ingress": []any{map[string]any{"action": "Deny", "from": []any{map[string]any{"namespaces": map[string]any{}}}}}}})
	open := make(chan *apiwatch.FakeWatcher, 1)
	f.dynamic.PrependWatchReactor(admin.Resource, func(clienttesting.Action) (bool, apiwatch.Interface, error) {
		fake := apiwatch.NewFake()
		open <- fake
		return true, fake, nil
	})
	f.run(t)
	b := f.next(t, "first, without the definition")
	c := model.NewCluster()
	b.Apply(c)
	if len(c.Policies) > 0 {
		t.Errorf("policies of a kind that is not defined: %v", c.Policies)
	}
	for _, a := range f.dynamic.Actions() {
		if a.GetResource() == admin && a.GetVerb() != "create" {
			t.Errorf("%s of a kind that is not defined", a.GetVerb())
		}
	}
	id := model.PolicyID{Kind: model.KindAdminNetworkPolicy, Name: model.Name{Name: "a"}}

	arrives(t, func() bool { // three watches, one for each definition
		n := 0
		for _, a := range f.dynamic.Actions() {
			if a.GetVerb() == "watch" && a.GetResource() == definitions {
				n++
			}
		}
		return n == 3
	})
	if _, err := crds.Create(t.Context(), crd(name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.next(t, "the definition came").Apply(c)
	if p := c.Policies[id]; p == nil || p.Order != 7 || p.Tier != model.TierAdminV1 {
		t.Fatalf("after the definition came: %v", c.Policies)
	}
	stream := <-open

	// The definition goes while the watch of its kind is cut: what is left are answers "not found".
	f.dynamic.PrependReactor("list", admin.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(admin.GroupResource(), "")
	})
	if err := crds.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	arrives(t, func() bool {
		i := slices.IndexFunc(f.w.sources, func(s *source) bool { return s.resource == name })
		known, present, _ := f.w.sources[i].definition.state()
		return known && !present
	})
	stream.Stop()
	f.next(t, "the definition is gone").Apply(c)
	if len(c.Policies) > 0 {
		t.Errorf("after the definition went: %v", c.Policies)
	}
}
