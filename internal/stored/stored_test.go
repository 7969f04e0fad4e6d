// SPDX-License-Identifier: Apache-2.0

package stored

import (
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/kinds"
	"github.com/weir-net/weir/internal/nettest"
)

// TestFind: objects of kinds without effect, fields that no agent reads, and definitions that
// clients read in the place of Weir's.
func TestFind(t *testing.T) {
	t.Parallel()
	resource := v3.SchemeGroupVersion.WithResource("kubecontrollersconfigurations")
	lists := map[schema.GroupVersionResource]string{resource: "KubeControllersConfigurationList"}
	all, err := kinds.All()
	nettest.Must(t, err)
	var without []kinds.Kind
	for _, k := range all {
		if !k.InForce {
			lists[k.Resource] = k.Name + "List"
			without = append(without, k)
		}
	}
	api := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	kube := fake.NewClientset()
	look := func() string {
		t.Helper()
		lines, err := Find(t.Context(), api, kube.Discovery())
		nettest.Must(t, err)
		return strings.Join(lines, "\n")
	}
	kube.Resources = []*metav1.APIResourceList{{GroupVersion: "projectcalico.org/v3"}}
	if got := look(); got != "" {
		t.Errorf("of nothing: %s", got)
	}
	wants := []string{"spec.healthChecks", "crd.projectcalico.org are left over"}
	u := apitest.Object("projectcalico.org/v3", "KubeControllersConfiguration", "default", map[string]any{"healthChecks": "Disabled"})
	_, err = api.Resource(resource).Create(t.Context(), u, metav1.CreateOptions{})
	nettest.Must(t, err)
	for _, k := range without {
		u, in, name := apitest.Object(k.Resource.GroupVersion().String(), k.Name, "some", nil), "", "some"
		if k.Namespaced {
			in, name = "shop", "shop/some"
			u.SetNamespace(in)
		}
		_, err := api.Resource(k.Resource).Namespace(in).Create(t.Context(), u, metav1.CreateOptions{})
		nettest.Must(t, err)
		wants = append(wants, k.Name+" "+name+": stored, but this kind is not supported yet")
	}
	kube.Resources = append(kube.Resources, &metav1.APIResourceList{GroupVersion: "crd.projectcalico.org/v1"})
	got := look()
	for _, want := range wants {
		if !strings.Contains(got, want) {
			t.Errorf("nothing says %q: %s", want, got)
		}
	}
}
