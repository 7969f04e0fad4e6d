// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
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

// A template that names interfaces makes a host endpoint for each of a node that matches, with its
// addresses and those of the node in the template's networks, as the node's agent reports them; of
// a node that reports none what is there stays.
func TestHostEndpointsOfInterfaces(t *testing.T) {
	name := func(n string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: n, Labels: map[string]string{"role": "worker"}}
	}
	addrs := corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.31.1.7"}}}
	f := newFixture(t, &corev1.Node{ObjectMeta: name("w1"), Status: addrs}, &corev1.Node{ObjectMeta: name("w1-t"), Status: addrs})
	conf := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v3.GroupVersionCurrent, "kind": "KubeControllersConfiguration", "metadata": map[string]any{"name": "default"},
		"spec": map[string]any{"controllers": map[string]any{"node": map[string]any{"hostEndpoint": map[string]any{"autoCreate": "Enabled", "createDefaultHostEndpoint": "Disabled", "templates": []any{
			map[string]any{"generateName": "t", "interfacePattern": "^eth|^br", "interfaceCIDRs": []any{"172.31.0.0/16"}, "nodeSelector": "role == 'worker'", "labels": map[string]any{"kind": "uplink"}},
			map[string]any{"generateName": "eth9", "interfaceCIDRs": []any{"172.31.0.0/16"}, "nodeSelector": "all()"},
		}}}}}}}
	if _, err := f.dynamic.Resource(controllersResource).Create(t.Context(), conf, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	report := func(node string, interfaces ...weirv1.NodeInterface) {
		t.Helper()
		if err := f.statuses.Delete(t.Context(), node, ""); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		if _, err := f.statuses.Create(t.Context(), &weirv1.NodeStatus{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: weirv1.NodeStatusStatus{Interfaces: interfaces}}); err != nil {
			t.Fatal(err)
		}
	}
	look := func() string {
		t.Helper()
		if err := f.hostEndpoints(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := f.dynamic.Resource(hostEndpointResource).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, u := range list.Items {
			spec := u.Object["spec"].(map[string]any)
			out = append(out, fmt.Sprint(u.GetName(), " ", spec["node"], " ", spec["interfaceName"], " ", spec["expectedIPs"], " ", u.GetLabels()["kind"]))
		}
		slices.Sort(out)
		return strings.Join(out, "\n")
	}
	const others = "w1-eth9-auto-hep w1 <nil> [172.31.1.7] \nw1-t-eth9-auto-hep w1-t <nil> [172.31.1.7] "
	if got := look(); got != others {
		t.Errorf("before agents report:\n%s", got)
	}
	report("w1", weirv1.NodeInterface{Name: "eth0", Addresses: []string{"172.31.1.7", "fd00::7", "x"}}, weirv1.NodeInterface{Name: "wg0", Addresses: []string{"192.0.2.1"}},
		weirv1.NodeInterface{Name: "br-a", Addresses: []string{"192.0.2.2"}})
	hashed := fmt.Sprintf("w1-%x-auto-hep", sha256.Sum256([]byte("t/br-a")))
	made := []string{hashed + " w1 br-a [172.31.1.7 192.0.2.2] uplink", "w1-t-eth0-auto-hep w1 eth0 [172.31.1.7 fd00::7] uplink"}
	want := append(strings.Split(others, "\n"), made...)
	slices.Sort(want)
	if got := look(); got != strings.Join(want, "\n") {
		t.Errorf("made\n%s, want\n%s", got, strings.Join(want, "\n"))
	}
	report("w1") // by an agent that is older
	if got := look(); got != strings.Join(want, "\n") {
		t.Errorf("without a report:\n%s", got)
	}
	// What a node calls its interface takes the place of no other node's host endpoint.
	report("w1", weirv1.NodeInterface{Name: "eth9", Addresses: []string{"192.0.2.1"}})
	if got := look(); got != others {
		t.Errorf("with the name of another one:\n%s", got)
	}
}
