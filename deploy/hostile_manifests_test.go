// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/hostile"
)

// A container whose environment refers to an object of the API is not started again while the API
// server is away.
func TestHostileOutageHoldsNoContainer(t *testing.T) {
	hostile.Record(t, "a container that ends while the API server is away stays away", hostile.Operator, hostile.ControlPlane, hostile.Both)
	o := Defaults()
	o.APIServerHost, o.APIServerPort, o.Flows = "192.0.2.10", "6443", true
	for _, what := range [][2]string{{"DaemonSet", "weir-node"}, {"Deployment", "weir-controller"}, {"Deployment", "weir-fanout"}, {"Deployment", "weir-flows"}, {"DaemonSet", "weir-bgp"}} {
		pod, _, _ := unstructured.NestedMap(find(t, o, what[0], what[1]).Object, "spec", "template", "spec")
		for _, key := range []string{"initContainers", "containers"} {
			list, _, _ := unstructured.NestedSlice(pod, key)
			for _, c := range list {
				c := c.(map[string]any)
				if _, refers := c["envFrom"]; refers {
					t.Errorf("%s: %s takes its environment from an object", what[1], c["name"])
				}
				env, _, _ := unstructured.NestedSlice(c, "env")
				for _, e := range env {
					from, _, _ := unstructured.NestedMap(e.(map[string]any), "valueFrom")
					for source := range from {
						if source != "fieldRef" && source != "resourceFieldRef" {
							t.Errorf("%s: %s of %s comes from %s", what[1], e.(map[string]any)["name"], c["name"], source)
						}
					}
				}
			}
		}
		volumes, _, _ := unstructured.NestedSlice(pod, "volumes")
		found := false
		for _, v := range volumes {
			name, is, _ := unstructured.NestedString(v.(map[string]any), "configMap", "name")
			optional, _, _ := unstructured.NestedBool(v.(map[string]any), "configMap", "optional")
			found = found || is && name == "weir-config" && optional
		}
		if !found {
			t.Errorf("%s does not read ConfigMap weir-config, or does not start without it", what[1])
		}
	}
}

// The loss or the drain of a node leaves a controller.
func TestHostileDrainLeavesAController(t *testing.T) {
	hostile.Record(t, "a drain of nodes leaves no controller", hostile.Operator, hostile.ControlPlane, hostile.Both)
	deployment := find(t, Defaults(), "Deployment", "weir-controller").Object
	if n, _, _ := unstructured.NestedFieldNoCopy(deployment, "spec", "replicas"); n != int64(2) && n != float64(2) {
		t.Errorf("%v replicas", n)
	}
	// Preferred: a cluster of one node has both on it.
	affinity, _, _ := unstructured.NestedMap(deployment, "spec", "template", "spec", "affinity", "podAntiAffinity")
	if affinity["preferredDuringSchedulingIgnoredDuringExecution"] == nil || affinity["requiredDuringSchedulingIgnoredDuringExecution"] != nil {
		t.Errorf("anti-affinity %v", affinity)
	}
	budget := find(t, Defaults(), "PodDisruptionBudget", "weir-controller").Object
	want, _, _ := unstructured.NestedStringMap(deployment, "spec", "selector", "matchLabels")
	got, _, _ := unstructured.NestedStringMap(budget, "spec", "selector", "matchLabels")
	most, _, _ := unstructured.NestedFieldNoCopy(budget, "spec", "maxUnavailable")
	if len(got) != 1 || got["k8s-app"] != want["k8s-app"] || most != int64(1) && most != float64(1) {
		t.Errorf("the budget is %v for %v, of pods %v", most, got, want)
	}
}
