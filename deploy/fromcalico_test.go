// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestFromCalico: agents run on nodes alone that are changed, and take these over.
func TestFromCalico(t *testing.T) {
	o := Defaults()
	o.From = "calico"
	spec, _, _ := unstructured.NestedMap(find(t, o, "DaemonSet", "weir-node").Object, "spec", "template", "spec")
	if on, _ := spec["nodeSelector"].(map[string]any); on[NetworkLabel] != NetworkWeir || on["kubernetes.io/os"] != "linux" {
		t.Errorf("agents run on nodes with %v", on)
	}
	// Its port is BIRD's on other nodes.
	for from, want := range map[string]any{"calico": NetworkWeir, "": nil} {
		with := Defaults()
		with.From = from
		on, _, _ := unstructured.NestedMap(find(t, with, "DaemonSet", "weir-bgp").Object, "spec", "template", "spec", "nodeSelector")
		if on[NetworkLabel] != want || on["weir.dev/bgp"] != "true" {
			t.Errorf("from %q: processes that speak BGP run on nodes with %v", from, on)
		}
	}
	env := map[string]any{}
	for _, e := range spec["containers"].([]any)[0].(map[string]any)["env"].([]any) {
		env[e.(map[string]any)["name"].(string)] = e.(map[string]any)["value"]
	}
	if env["WEIR_TAKE_OVER"] != "calico" || env["FELIX_ROUTESOURCE"] != "WorkloadIPs" || env["FELIX_BPFENABLED"] != "false" {
		t.Errorf("environment of the agent: %v", env)
	}
	find(t, o, "ValidatingAdmissionPolicy", "weir-calico-blocks")
	rights := func(o Options) (found bool) {
		rules, _, _ := unstructured.NestedSlice(find(t, o, "ClusterRole", "weir-node").Object, "rules")
		for _, r := range rules {
			groups, _, _ := unstructured.NestedStringSlice(r.(map[string]any), "apiGroups")
			found = found || groups[0] == "crd.projectcalico.org"
		}
		return found
	}
	if !rights(o) || rights(Defaults()) {
		t.Error("agents have rights to Calico's blocks exactly while nodes change")
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.From = "another" },
		func(o *Options) { o.On, o.InterfacePrefix = "generic", "veth" },
		func(o *Options) { o.FanOut = "always" },
	} {
		bad := o
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
