// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/flowstore/names"
)

// The store of flow records is there where it is asked for, with a folder of its node or a volume.
func TestFlowsOption(t *testing.T) {
	all, err := Objects(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool { return u.GetName() == names.Name }); i >= 0 {
		t.Errorf("%s %s is there unasked", all[i].GetKind(), names.Name)
	}
	for claim, want := range map[string]string{"": "map[emptyDir:map[] name:records]", "records-1": "map[name:records persistentVolumeClaim:map[claimName:records-1]]"} {
		o := Defaults()
		o.Flows, o.FlowsAge, o.FlowsSize, o.FlowsClaim = true, "48h", "10Gi", claim
		pod, container, _ := podOf(t, o, "Deployment", names.Name)
		if got := fmt.Sprint(pod["volumes"].([]any)[0]); got != want {
			t.Errorf("its volume is %s", got)
		}
		if got := fmt.Sprint(container["command"]); got != "[/weir-flows --age=48h --bytes=10Gi]" {
			t.Errorf("its command is %s", got)
		}
	}
	o := Defaults()
	o.Flows = true
	if port, _, _ := unstructured.NestedSlice(find(t, o, "Service", names.Name).Object, "spec", "ports"); !strings.Contains(fmt.Sprint(port), fmt.Sprint("port:", names.Port, " ")) {
		t.Errorf("its Service has %v", port)
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.FlowsAge = "a day" }, func(o *Options) { o.FlowsAge = "5s" }, func(o *Options) { o.FlowsSize = "much" }, func(o *Options) { o.FlowsSize = "1k" },
		func(o *Options) { o.FlowsClaim = "No Name" }, func(o *Options) { o.Flows, o.FlowsClaim = false, "records-1" },
	} {
		o := Defaults()
		o.Flows = true
		change(&o)
		if o.Validate() == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// It may do what it needs, and has no privileges.
func TestFlowsRights(t *testing.T) {
	o := Defaults()
	o.Flows = true
	var rights []string
	for _, kind := range []string{"ClusterRole", "Role"} {
		for _, r := range rulesOf(t, o, kind, names.Name) {
			rule := r.(map[string]any)
			rights = append(rights, fmt.Sprintf("%s %v %v %v", kind, rule["resources"], rule["resourceNames"], rule["verbs"]))
		}
	}
	want := []string{"ClusterRole [tokenreviews] <nil> [create]", "ClusterRole [nodes] <nil> [list]", "Role [secrets] [weir-peer-ca] [get]", "Role [endpointslices] <nil> [list]"}
	if !slices.Equal(rights, want) {
		t.Errorf("its rights are %q", rights)
	}
	_, container, _ := podOf(t, o, "Deployment", names.Name)
	c := container["securityContext"].(map[string]any)
	if c["runAsNonRoot"] != true || c["readOnlyRootFilesystem"] != true || c["allowPrivilegeEscalation"] != false || fmt.Sprint(c["capabilities"]) != "map[drop:[ALL]]" {
		t.Errorf("its container may %v", c)
	}
}
