// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Host endpoints of all nodes come when they are asked for, follow the nodes' labels and addresses,
// and go when they are not asked for any more. Those that somebody made stay as they are.
func TestAutoHostEndpoints(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{"role": "worker"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "w1"}, {Type: corev1.NodeInternalIP, Address: "172.31.1.207"}}}}
	f := newFixture(t, node)
	api := f.dynamic.Resource(hostEndpointResource)
	object := func(kind, name string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v3.GroupVersionCurrent, "kind": kind,
			"metadata": map[string]any{"name": name}, "spec": spec}}
	}
	if _, err := api.Create(t.Context(), object("HostEndpoint", "mine", map[string]any{"node": "w1", "interfaceName": "eth0"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	look := func(want int) []unstructured.Unstructured {
		t.Helper()
		if err := f.hostEndpoints(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := api.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != want {
			t.Fatalf("%d host endpoints (%v), want %d", len(list.Items), err, want)
		}
		return list.Items
	}
	look(1)
	conf := object("KubeControllersConfiguration", "default", map[string]any{"controllers": map[string]any{"node": map[string]any{
		"hostEndpoint": map[string]any{"autoCreate": "Enabled"}}}})
	if _, err := f.dynamic.Resource(controllersResource).Create(t.Context(), conf, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	look(2)
	auto := func() *unstructured.Unstructured {
		t.Helper()
		u, err := api.Get(t.Context(), "w1-auto-hep", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	spec := auto().Object["spec"].(map[string]any)
	if spec["node"] != "w1" || spec["interfaceName"] != "*" || spec["profiles"].([]any)[0] != "projectcalico-default-allow" || spec["expectedIPs"].([]any)[0] != "172.31.1.207" {
		t.Errorf("made %v", spec)
	}
	node.Labels["role"] = "edge"
	if _, err := f.kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	look(2)
	if got := auto().GetLabels(); got["role"] != "edge" || got[createdBy] != creator {
		t.Errorf("labels %v", got)
	}
	// One that somebody made under this name stays, and stops nothing.
	theirs := auto()
	theirs.SetLabels(map[string]string{"by": "them"})
	if _, err := api.Update(t.Context(), theirs, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	look(2)
	if got := auto().GetLabels(); got["by"] != "them" || len(got) != 1 {
		t.Errorf("labels of theirs: %v", got)
	}
	if err := api.Delete(t.Context(), "w1-auto-hep", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	look(2)
	for _, mode := range []struct {
		value string
		want  int
	}{{"Disabled", 1}, {"Enabled", 2}} {
		if err := unstructured.SetNestedField(conf.Object, mode.value, "spec", "controllers", "node", "hostEndpoint", "createDefaultHostEndpoint"); err != nil {
			t.Fatal(err)
		}
		if _, err := f.dynamic.Resource(controllersResource).Update(t.Context(), conf, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		look(mode.want)
	}
	// Templates make one for each of their nodes that has an address in their networks.
	templates := []any{
		map[string]any{"generateName": "front", "interfaceCIDRs": []any{"172.31.0.0/16"}, "nodeSelector": "role == 'edge'", "labels": map[string]any{"side": "front", "role": "uplink"}},
		map[string]any{"generateName": "others", "interfaceCIDRs": []any{"172.31.0.0/16"}, "nodeSelector": "role == 'worker'"},
		map[string]any{"generateName": "elsewhere", "interfaceCIDRs": []any{"10.0.0.0/8"}},
		map[string]any{"generateName": "byname", "interfaceSelector": "eth.*"},
		map[string]any{"generateName": "wrong", "interfaceCIDRs": []any{"172.31.0.0/16"}, "nodeSelector": "role =="},
	}
	if err := unstructured.SetNestedSlice(conf.Object, templates, "spec", "controllers", "node", "hostEndpoint", "templates"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.dynamic.Resource(controllersResource).Update(t.Context(), conf, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	look(3)
	front, err := api.Get(t.Context(), "w1-front-auto-hep", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec = front.Object["spec"].(map[string]any)
	if _, named := spec["interfaceName"]; named || spec["node"] != "w1" || spec["expectedIPs"].([]any)[0] != "172.31.1.207" || front.GetLabels()["side"] != "front" ||
		front.GetLabels()["role"] != "uplink" || front.GetLabels()[createdBy] != creator {
		t.Errorf("made %v with labels %v", spec, front.GetLabels())
	}
	// A slip in a template takes nothing away that it made.
	set := func(selector string) {
		t.Helper()
		templates[0].(map[string]any)["nodeSelector"] = selector
		if err := unstructured.SetNestedSlice(conf.Object, templates, "spec", "controllers", "node", "hostEndpoint", "templates"); err != nil {
			t.Fatal(err)
		}
		if _, err := f.dynamic.Resource(controllersResource).Update(t.Context(), conf, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	set("role ==")
	look(3)
	templates = templates[:1]
	set("role == 'none'")
	look(2)
	if err := f.dynamic.Resource(controllersResource).Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if left := look(1); left[0].GetName() != "mine" {
		t.Errorf("left %s", left[0].GetName())
	}
}
