// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/agent/flowapi"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/peerauth"
)

// Hubble's API at agents is by TLS where it is asked for, with a certificate of its own for each
// agent, which the controller signs: it alone may write what that takes, and reads no other
// Secrets; agents start without.
func TestHubbleOption(t *testing.T) {
	all, err := Objects(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool { return strings.HasPrefix(u.GetName(), "weir-hubble") }); i >= 0 {
		t.Errorf("%s %s is there unasked", all[i].GetKind(), all[i].GetName())
	}
	o := Defaults()
	o.Hubble = true
	for _, of := range [][2]string{{"Secret", peerauth.HubbleName}, {"ConfigMap", peerauth.HubbleName}, {"Secret", "weir-hubble-client"}, {"Service", "weir-hubble"}} {
		find(t, o, of[0], of[1])
	}
	want := "[map[apiGroups:[] resourceNames:[weir-hubble-ca weir-hubble-client] resources:[secrets] verbs:[get update]] map[apiGroups:[] resourceNames:[weir-hubble-ca] resources:[configmaps] verbs:[get update]]]"
	if got := fmt.Sprint(rulesOf(t, o, "Role", "weir-hubble")); got != want {
		t.Errorf("the controller's rights are %s", got)
	}
	if subjects, _, _ := unstructured.NestedSlice(find(t, o, "RoleBinding", "weir-hubble").Object, "subjects"); len(subjects) != 1 || subjects[0].(map[string]any)["name"] != "weir-controller" {
		t.Errorf("the rights are of %v", subjects)
	}
	pod, container, _ := podOf(t, o, "DaemonSet", "weir-node")
	var environ []string
	for _, e := range container["env"].([]any) {
		if e := e.(map[string]any); strings.HasPrefix(e["name"].(string), "FELIX_HUBBLE") {
			environ = append(environ, fmt.Sprintf("%s=%s", e["name"], e["value"]))
		}
	}
	at := config.New("n1", environ, nil).AtStart().Hubble
	if want := (config.Hubble{Port: 4244, CAFile: "/var/run/secrets/weir/hubble/ca.crt", ClientGroup: peerauth.ReadersGroup}); at != want {
		t.Errorf("agents serve by %+v", at)
	}
	for _, v := range pod["volumes"].([]any) {
		if v := v.(map[string]any); v["name"] == "hubble" {
			if v["configMap"].(map[string]any)["optional"] != true {
				t.Error("agents do not start without the authority")
			}
			if name := flowapi.CertifiedAs("n1", at); name != "n1.default.hubble-grpc.cilium.io" {
				t.Errorf("agents ask for a certificate of %q", name)
			}
			return
		}
	}
	t.Error("agents mount no authority")
}
