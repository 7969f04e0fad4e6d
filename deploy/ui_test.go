// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const uiName = "weir-ui"

// The page in the browser is there where it is asked for, with a certificate of Weir's authority or
// one of the cluster's owner.
func TestUIOption(t *testing.T) {
	all, err := Objects(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool { return strings.HasPrefix(u.GetName(), uiName) }); i >= 0 {
		t.Errorf("%s %s is there unasked", all[i].GetKind(), all[i].GetName())
	}
	for own, secret := range map[string]string{"": "weir-ui-tls", "page-tls": "page-tls"} {
		o := Defaults()
		o.UI, o.UITLS, o.UIOrigins = true, own, "https://weir.example.com,https://10.0.0.1:8443"
		pod, container, _ := podOf(t, o, "Deployment", uiName)
		if got := fmt.Sprint(pod["volumes"]); !strings.Contains(got, "secretName:"+secret+"]") {
			t.Errorf("its volumes are %s", got)
		}
		if got := fmt.Sprint(container["command"]); got != "[/weir ui serve --origin=https://weir.example.com,https://10.0.0.1:8443]" {
			t.Errorf("its command is %s", got)
		}
		all, err := Objects(o)
		if err != nil {
			t.Fatal(err)
		}
		if made := slices.ContainsFunc(all, func(u *unstructured.Unstructured) bool {
			return u.GetKind() == "Secret" && u.GetName() == "weir-ui-tls"
		}); made == (own != "") {
			t.Errorf("with %q: Secret weir-ui-tls %t", own, made)
		}
	}
	o := Defaults()
	o.UI, o.UIAPIs, o.Flows = true, true, true
	_, container, _ := podOf(t, o, "Deployment", uiName)
	ports, _, _ := unstructured.NestedSlice(find(t, o, "Service", uiName).Object, "spec", "ports")
	if got := fmt.Sprint(container["command"]); got != "[/weir ui serve --apis=:4245]" || len(ports) != 2 {
		t.Errorf("with the APIs its command is %s, its ports %v", got, ports)
	}
	o.UIClientCA = "clients"
	pod, container, _ := podOf(t, o, "Deployment", uiName)
	if got := fmt.Sprint(container["command"]); got != "[/weir ui serve --apis=:4245 --client-ca=/etc/weir/clients/ca.crt]" || !strings.Contains(fmt.Sprint(pod["volumes"]), "map[configMap:map[name:clients] name:clients]") {
		t.Errorf("with an authority of clients its command is %s, its volumes %v", got, pod["volumes"])
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.UIOrigins = "http://weir.example.com" }, func(o *Options) { o.UIOrigins = "https://weir.example.com/" }, func(o *Options) { o.UIOrigins = "https://a,,https://b" },
		func(o *Options) { o.UIAPIs = true }, func(o *Options) { o.UIClientCA = "a" }, func(o *Options) { o.UIAPIs, o.Flows, o.UIClientCA = true, true, "No Name" }, func(o *Options) { o.UIOrigins = `https://a"` }, func(o *Options) { o.UITLS = "No Name" }, func(o *Options) { o.UI, o.UIOrigins = false, "https://a" }, func(o *Options) { o.UI, o.UITLS = false, "a" },
	} {
		o := Defaults()
		o.UI = true
		change(&o)
		if o.Validate() == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// What users reach has no privileges and few rights: not to the authority's key, and to no objects
// of tenants.
func TestUIRights(t *testing.T) {
	o := Defaults()
	o.UI = true
	var rights []string
	for _, r := range rulesOf(t, o, "ClusterRole", uiName) {
		rule := r.(map[string]any)
		rights = append(rights, fmt.Sprintf("%v %v", rule["resources"], rule["verbs"]))
	}
	if want := []string{"[tokenreviews] [create]", "[subjectaccessreviews] [create]", "[namespaces nodes] [list]", "[agents/flows] [get]"}; !slices.Equal(rights, want) {
		t.Errorf("its rights are %q", rights)
	}
	binding := find(t, o, "RoleBinding", "weir-ui-tls")
	if subjects, _, _ := unstructured.NestedSlice(binding.Object, "subjects"); len(subjects) != 1 || subjects[0].(map[string]any)["name"] != "weir-controller" {
		t.Errorf("the certificate is written by %v", subjects)
	}
	if got := fmt.Sprint(rulesOf(t, o, "Role", "weir-ui-tls")); got != "[map[apiGroups:[] resourceNames:[weir-ui-tls] resources:[secrets] verbs:[get update]]]" {
		t.Errorf("the controller's right is %s", got)
	}
	pod, container, _ := podOf(t, o, "Deployment", uiName)
	c := container["securityContext"].(map[string]any)
	if pod["hostNetwork"] != nil || c["runAsNonRoot"] != true || c["readOnlyRootFilesystem"] != true || c["allowPrivilegeEscalation"] != false || fmt.Sprint(c["capabilities"]) != "map[drop:[ALL]]" {
		t.Errorf("its container may %v", c)
	}
}
