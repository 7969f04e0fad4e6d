// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestFromFlannel: agents run on nodes alone that are changed, and have no rights to Calico's
// objects.
func TestFromFlannel(t *testing.T) {
	o := Defaults()
	o.From = "flannel"
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	spec, _, _ := unstructured.NestedMap(find(t, o, "DaemonSet", "weir-node").Object, "spec", "template", "spec")
	if on, _ := spec["nodeSelector"].(map[string]any); on[NetworkLabel] != NetworkWeir {
		t.Errorf("agents run on nodes with %v", on)
	}
	env := map[string]any{}
	for _, e := range spec["containers"].([]any)[0].(map[string]any)["env"].([]any) {
		env[e.(map[string]any)["name"].(string)] = e.(map[string]any)["value"]
	}
	if env["WEIR_TAKE_OVER"] != "flannel" || env["FELIX_ROUTESOURCE"] != "WorkloadIPs" || env["FELIX_BPFENABLED"] != "false" {
		t.Errorf("environment of the agent: %v", env)
	}
	all, err := Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range all {
		if raw, err := u.MarshalJSON(); err != nil || strings.Contains(string(raw), "crd.projectcalico.org") {
			t.Errorf("%s %s is about Calico (%v)", u.GetKind(), u.GetName(), err)
		}
	}
}
