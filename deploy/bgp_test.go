// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The BGP process talks to routers outside: it has no right in the API, no other capability than it
// needs, and of the node's files its own folders.
func TestBGPProcessHasLittle(t *testing.T) {
	objects, err := Objects(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		subjects, _, _ := unstructured.NestedSlice(u.Object, "subjects")
		for _, s := range subjects {
			if s.(map[string]any)["name"] == "weir-bgp" {
				t.Errorf("%s %s is for weir-bgp", u.GetKind(), u.GetName())
			}
		}
	}
	pod, _, _ := unstructured.NestedMap(find(t, Defaults(), "DaemonSet", "weir-bgp").Object, "spec", "template", "spec")
	if fmt.Sprint(pod["nodeSelector"]) != "map[kubernetes.io/os:linux weir.dev/bgp:true]" {
		t.Errorf("it runs on nodes with %v", pod["nodeSelector"])
	}
	containers, _, _ := unstructured.NestedSlice(pod, "containers")
	if len(containers) != 1 || pod["initContainers"] != nil || pod["hostPID"] != nil {
		t.Fatalf("the pod is %v", pod)
	}
	security, _, _ := unstructured.NestedMap(containers[0].(map[string]any), "securityContext")
	if security["privileged"] != nil || security["allowPrivilegeEscalation"] != false || security["readOnlyRootFilesystem"] != true ||
		fmt.Sprint(security["capabilities"]) != "map[add:[NET_ADMIN NET_BIND_SERVICE] drop:[ALL]]" {
		t.Errorf("the container has %v", security)
	}
	volumes, _, _ := unstructured.NestedSlice(pod, "volumes")
	for _, v := range volumes {
		path, is, _ := unstructured.NestedString(v.(map[string]any), "hostPath", "path")
		if is && path != "/run/weir/bgp" && path != "/var/lib/weir/bgp" {
			t.Errorf("it has %s of the node", path)
		}
	}
}
