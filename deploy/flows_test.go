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
		if got := fmt.Sprint(container["command"]); got != "[/weir-flows --age=48h --bytes=10Gi --coarse-after=12h]" {
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
		func(o *Options) { o.FlowsCoarseAfter = "old" }, func(o *Options) { o.FlowsCoarseAfter = "-1h" }, func(o *Options) { o.FlowsOTLP = "collector:4317" }, func(o *Options) { o.FlowsOTLP = `https://c", "--x` },
		func(o *Options) { o.FlowsIPFIX = "https://c" }, func(o *Options) { o.FlowsExportTLS = "certificates" }, func(o *Options) { o.FlowsOTLP, o.FlowsExportTLS = "https://c", "No Name" },
		func(o *Options) { o.Flows, o.FlowsOTLP = false, "https://c" },
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

// Collectors are named to it, with the certificates for them; it has to find Services then.
func TestFlowsCollectors(t *testing.T) {
	o := Defaults()
	o.Flows, o.FlowsOTLP, o.FlowsIPFIX, o.FlowsExportTLS, o.FlowsCoarseAfter = true, "https://otel.monitoring.svc:4317", "udp://[2001:db8::1]:4739", "collectors", "0s"
	pod, container, _ := podOf(t, o, "Deployment", names.Name)
	if got := fmt.Sprint(container["command"]); got != "[/weir-flows --age=24h --bytes=4Gi --coarse-after=0s --otlp=https://otel.monitoring.svc:4317 --ipfix=udp://[2001:db8::1]:4739 --export-tls-dir=/var/run/secrets/weir/export]" {
		t.Errorf("its command is %s", got)
	}
	if got := fmt.Sprint(pod["volumes"]); !strings.Contains(got, "name:export secret:map[defaultMode:288 secretName:collectors]") || pod["dnsPolicy"] != "ClusterFirstWithHostNet" {
		t.Errorf("it has volumes %s, DNS by %v", got, pod["dnsPolicy"])
	}
	if got := fmt.Sprint(container["volumeMounts"]); !strings.Contains(got, "mountPath:/var/run/secrets/weir/export name:export readOnly:true") {
		t.Errorf("it mounts %s", got)
	}
	o.FlowsOTLP, o.FlowsIPFIX, o.FlowsExportTLS = "", "", ""
	if pod, _, _ := podOf(t, o, "Deployment", names.Name); pod["dnsPolicy"] != "Default" || strings.Contains(fmt.Sprint(pod["volumes"]), "export") {
		t.Errorf("without collectors: %v", pod)
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
