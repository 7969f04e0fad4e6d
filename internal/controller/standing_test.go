// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What clients expect is made once, and is the owner's from then on.
func TestStandingObjects(t *testing.T) {
	f := newFixture(t)
	get := func(r schema.GroupVersionResource, name string) *unstructured.Unstructured {
		t.Helper()
		u, err := f.dynamic.Resource(r).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	look := func() {
		t.Helper()
		if err := f.standing(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	look()
	for name, want := range map[string]struct {
		order  int64
		action string
	}{"default": {1_000_000, "Deny"}, "kube-admin": {1_000, "Pass"}, "kube-baseline": {10_000_000, "Pass"}} {
		spec, _, _ := unstructured.NestedMap(get(tierResource, name).Object, "spec")
		if spec["order"] != want.order || spec["defaultAction"] != want.action {
			t.Errorf("Tier %s is %v", name, spec)
		}
	}
	info, _, _ := unstructured.NestedMap(get(informationResource, "default").Object, "spec")
	if info["clusterGUID"] != "0b7d0f0e3f7f4a5c9a550c3b1a2d4e5f" || info["datastoreReady"] != true || info["calicoVersion"] != nil {
		t.Errorf("ClusterInformation is %v", info)
	}
	running := func() string {
		t.Helper()
		mode, _, _ := unstructured.NestedString(get(controllersResource, "default").Object, "status", "runningConfig", "controllers", "node", "hostEndpoint", "autoCreate")
		assign, _, _ := unstructured.NestedString(get(controllersResource, "default").Object, "status", "runningConfig", "controllers", "loadBalancer", "assignIPs")
		return mode + " " + assign
	}
	if got := running(); got != "Disabled AllServices" {
		t.Errorf("running at first: %s", got)
	}
	// The owner locks the datastore and changes the configuration: neither is changed back.
	locked := get(informationResource, "default")
	if err := unstructured.SetNestedField(locked.Object, false, "spec", "datastoreReady"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.dynamic.Resource(informationResource).Update(t.Context(), locked, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	conf := get(controllersResource, "default")
	conf.Object["spec"] = map[string]any{"controllers": map[string]any{"node": map[string]any{"hostEndpoint": map[string]any{"autoCreate": "Enabled"}}}}
	if _, err := f.dynamic.Resource(controllersResource).Update(t.Context(), conf, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	look()
	if ready, _, _ := unstructured.NestedBool(get(informationResource, "default").Object, "spec", "datastoreReady"); ready {
		t.Error("the datastore was unlocked")
	}
	if got := running(); got != "Enabled " {
		t.Errorf("running after the change: %q", got)
	}
}
