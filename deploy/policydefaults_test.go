// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/admission"
)

// The webhook is there where it is asked for, with the one right that the controller needs; it
// holds nobody up.
func TestPolicyDefaultsOption(t *testing.T) {
	all, err := Objects(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool {
		return u.GetKind() == "MutatingWebhookConfiguration" || strings.HasPrefix(u.GetName(), admission.Configuration)
	}); i >= 0 {
		t.Errorf("%s %s is there unasked", all[i].GetKind(), all[i].GetName())
	}
	if _, container, _ := podOf(t, Defaults(), "Deployment", "weir-controller"); len(container["command"].([]any)) != 1 {
		t.Errorf("the controller answers unasked: %v", container["command"])
	}
	o := Defaults()
	o.PolicyDefaults = true
	if _, container, _ := podOf(t, o, "Deployment", "weir-controller"); fmt.Sprint(container["command"]) != "[/weir-controller --policy-defaults]" {
		t.Errorf("the controller is started by %v", container["command"])
	}
	want := "[map[apiGroups:[admissionregistration.k8s.io] resourceNames:[weir-policy-defaults] resources:[mutatingwebhookconfigurations] verbs:[get patch]]]"
	if got := fmt.Sprint(rulesOf(t, o, "ClusterRole", admission.Configuration)); got != want {
		t.Errorf("the controller's rights are %s", got)
	}
	hooks, _, _ := unstructured.NestedSlice(find(t, o, "MutatingWebhookConfiguration", admission.Configuration).Object, "webhooks")
	if len(hooks) != 1 {
		t.Fatalf("there are %d webhooks", len(hooks))
	}
	hook := hooks[0].(map[string]any)
	path, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "path")
	if hook["name"] != admission.Webhook || hook["failurePolicy"] != "Ignore" || path != admission.Path {
		t.Errorf("the webhook is %v", hook)
	}
}
