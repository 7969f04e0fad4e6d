// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/apitest"
)

// All that has no effect, and all that is not in force, is listed; of what there may be much of,
// and nobody has to repair, the first lines are.
func TestStatusListsAll(t *testing.T) {
	t.Parallel()
	r, now := &report{}, time.Now()
	losing := &weirv1.NodeStatus{Status: weirv1.NodeStatusStatus{FlowRecords: &weirv1.FlowRecordsStatus{Lost: []weirv1.LostFlowRecords{{Why: "ring", Records: 5, LastTime: metav1.NewTime(now)}}}}}
	for i := range 40 {
		r.problems = append(r.problems, fmt.Sprintf("problem-%d.", i))
		r.unsupported = append(r.unsupported, fmt.Sprintf("unsupported-%d.", i))
		r.drops = append(r.drops, fmt.Sprintf("drop-%d.", i))
		r.readNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}, losing, now, time.Minute)
	}
	var out bytes.Buffer
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		for _, want := range []string{"problem", "unsupported"} {
			if text := fmt.Sprintf("%s-%d.", want, i); !strings.Contains(out.String(), text) {
				t.Errorf("%s is not listed", text)
			}
		}
	}
	if strings.Contains(out.String(), "drop-15.") || !strings.Contains(out.String(), "and 25 more") {
		t.Errorf("drops:\n%s", out.String())
	}
	if _, lost, _ := strings.Cut(out.String(), "Flow records lost in the last hour"); !strings.Contains(lost, "node-14: 5 (ring)") || strings.Contains(lost, "node-15") {
		t.Errorf("lost flow records:\n%s", out.String())
	}
}

// Objects that no agent reads, and definitions that clients read in the place of Weir's, are looked
// at here.
func TestStatusOfWhatNoAgentReads(t *testing.T) {
	t.Parallel()
	resource := v3.SchemeGroupVersion.WithResource("kubecontrollersconfigurations")
	api := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: "KubeControllersConfigurationList"})
	kube := fake.NewClientset()
	c, r := &clientset.Clients{Clients: &client.Clients{Dynamic: api}, Kube: kube}, &report{}
	look := func() string {
		t.Helper()
		r.unsupported = nil
		if err := r.readControllersConfiguration(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if err := r.readLeftovers(c); err != nil {
			t.Fatal(err)
		}
		return strings.Join(r.unsupported, "\n")
	}
	kube.Resources = []*metav1.APIResourceList{{GroupVersion: "projectcalico.org/v3"}}
	if got := look(); got != "" {
		t.Errorf("of nothing: %s", got)
	}
	u := apitest.Object("projectcalico.org/v3", "KubeControllersConfiguration", "default", map[string]any{"healthChecks": "Disabled"})
	if _, err := api.Resource(resource).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kube.Resources = append(kube.Resources, &metav1.APIResourceList{GroupVersion: "crd.projectcalico.org/v1"})
	got := look()
	for _, want := range []string{"spec.healthChecks", "crd.projectcalico.org are left over"} {
		if !strings.Contains(got, want) {
			t.Errorf("nothing says %q: %s", want, got)
		}
	}
}
