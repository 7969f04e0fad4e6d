// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestOnOther: with another CNI plugin nothing of Weir's is in that one's way, and Weir gives no
// address.
func TestOnOther(t *testing.T) {
	o := Defaults()
	o.On, o.InterfacePrefix = "generic", "veth"
	spec, _, _ := unstructured.NestedMap(find(t, o, "DaemonSet", "weir-node").Object, "spec", "template", "spec")
	if spec["initContainers"] != nil {
		t.Error("Weir's CNI plugin is installed")
	}
	for _, v := range spec["volumes"].([]any) {
		if path, ok, _ := unstructured.NestedString(v.(map[string]any), "hostPath", "path"); ok && strings.Contains(path, "cni") && path != "/var/lib/cni/results" {
			t.Errorf("the agent has %s", path)
		}
	}
	agent := spec["containers"].([]any)[0].(map[string]any)
	env := map[string]any{}
	for _, e := range agent["env"].([]any) {
		env[e.(map[string]any)["name"].(string)] = e.(map[string]any)["value"]
	}
	for _, m := range agent["volumeMounts"].([]any) {
		mount := m.(map[string]any)
		if strings.Contains(mount["name"].(string), "cni") && (mount["mountPath"] != "/var/lib/cni/results" || mount["readOnly"] != true) {
			t.Errorf("the agent mounts %v", m)
		}
	}
	if env["FELIX_CNICHAINING"] != "generic" || env["FELIX_INTERFACEPREFIX"] != "veth" || env["FELIX_ROUTESOURCE"] != "WorkloadIPs" {
		t.Errorf("environment of the agent: %v", env)
	}
	data, _, _ := unstructured.NestedStringMap(find(t, o, "ConfigMap", "weir-config").Object, "data")
	if v, ok := data["pod_cidr"]; v != "" || !ok {
		t.Errorf("the controller makes an IPPool of %q", v)
	}
	pools, _, err := DefaultObjects("10.1.0.0/16,fd00:1::/56", o.VXLANMode)
	if err != nil {
		t.Fatal(err)
	}
	OfOther(pools)
	for i, cidr := range []string{"10.1.0.0/16", "fd00:1::/56"} {
		s := pools[i].Object["spec"].(map[string]any)
		if s["cidr"] != cidr || s["disabled"] != true || s["natOutgoing"] != false || s["vxlanMode"] != "Never" {
			t.Errorf("IPPool of %s: %v", cidr, s)
		}
	}
	o.On, o.InterfacePrefix = "aws-vpc-cni", Networks["aws-vpc-cni"]
	agent = find(t, o, "DaemonSet", "weir-node").Object
	text, err := yaml.Marshal(agent)
	if err != nil || !strings.Contains(string(text), "aws-vpc-cni") || !strings.Contains(string(text), "value: eni") {
		t.Errorf("with Amazon VPC CNI, %v:\n%s", err, text)
	}
	// A pool of that plugin's addresses may be the nodes' network, as in a VPC; Weir's own may not.
	const unless = "!(has(object.spec.disabled) && object.spec.disabled)"
	for _, on := range []string{"", "aws-vpc-cni"} {
		o := Defaults()
		o.On, o.InterfacePrefix = on, Networks[on]
		conditions, _, _ := unstructured.NestedSlice(find(t, o, "ValidatingAdmissionPolicy", "weir-pools-of-nodes").Object, "spec", "matchConditions")
		text := conditions[0].(map[string]any)["expression"].(string)
		if len(conditions) != 1 || strings.Contains(text, unless) != (on != "") || !strings.Contains(text, "object.spec.cidr != oldObject.spec.cidr") {
			t.Errorf("on %q: pools are compared with nodes where %v", on, conditions)
		}
	}
	for what, change := range map[string]func(*Options){
		"unknown plugin":        func(o *Options) { o.On = "flannel" },
		"prefix without plugin": func(o *Options) { o.On = "" },
		"prefix, long":          func(o *Options) { o.InterfacePrefix = "vethx" },
		"prefix, none":          func(o *Options) { o.InterfacePrefix = "" },
	} {
		wrong := o
		change(&wrong)
		if wrong.Validate() == nil {
			t.Errorf("%s: %+v is valid", what, wrong)
		}
	}
}
