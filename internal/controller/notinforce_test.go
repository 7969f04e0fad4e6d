// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/apitest"
)

func (f *fixture) notInForceEvents() map[string]corev1.Event {
	f.t.Helper()
	list, err := f.kube.CoreV1().Events(metav1.NamespaceAll).List(f.t.Context(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	out := map[string]corev1.Event{}
	for _, e := range list.Items {
		if e.Reason != weirv1.ReasonNotInForce {
			continue
		}
		key := e.InvolvedObject.Kind + " " + e.InvolvedObject.Name
		if _, twice := out[key]; twice {
			f.t.Errorf("%s has two events", key)
		}
		out[key] = e
	}
	return out
}

// An object of which something has no effect has an event that names the field, once, whoever
// leads, and another one when something else is wrong.
func TestObjectsNotInForceHaveAnEvent(t *testing.T) {
	f := newFixture(t, node("n1"))
	put := func(resource, kind, namespace, name string, spec map[string]any) {
		u := apitest.Object("projectcalico.org/v3", kind, name, spec)
		u.SetUID(types.UID(kind + name))
		u.SetNamespace(namespace)
		if _, err := f.dynamic.Resource(v3.SchemeGroupVersion.WithResource(resource)).Namespace(namespace).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	put("felixconfigurations", "FelixConfiguration", "", "default", map[string]any{"bpfEnabled": true, "iptablesBackend": "NFT"})
	put("felixconfigurations", "FelixConfiguration", "", "other", map[string]any{"bpfEnabled": true})
	put("felixconfigurations", "FelixConfiguration", "", "node.n1", map[string]any{"healthPort": int64(70000)})
	put("kubecontrollersconfigurations", "KubeControllersConfiguration", "", "default", map[string]any{"controllers": map[string]any{"node": map[string]any{"syncLabels": "Disabled"}}})
	put("ippools", "IPPool", "", "tunnels", map[string]any{"cidr": "10.9.0.0/16", "allowedUses": []any{"Tunnel"}})
	put("ippools", "IPPool", "", "good", map[string]any{"cidr": "10.8.0.0/16", "allowedUses": []any{"Workload", "Tunnel"}})
	put("networkpolicies", "NetworkPolicy", "shop", "web", map[string]any{"selector": "a ==", "types": []any{"Ingress"}})
	want := map[string]string{
		"FelixConfiguration default": "spec.iptablesBackend = NFT: not applicable", "FelixConfiguration other": "only the FelixConfigurations",
		"FelixConfiguration node.n1": "spec.healthPort 70000", "KubeControllersConfiguration default": "spec.controllers.node.syncLabels Disabled: has no effect",
		"IPPool tunnels": "spec.allowedUses Tunnel: has no effect", "NetworkPolicy web": "spec.selector",
	}
	for range 3 {
		if err := f.reportNotInForce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	f.notInForce = notInForce{said: map[types.UID]string{}} // another leader
	if err := f.reportNotInForce(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := f.notInForceEvents()
	for key, text := range want {
		if e, ok := got[key]; !ok || !strings.Contains(e.Message, text) || e.Type != corev1.EventTypeWarning {
			t.Errorf("%s: %q, want %q", key, e.Message, text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d events, want %d: %v", len(got), len(want), got)
	}
	if e := got["NetworkPolicy web"]; e.Namespace != "shop" {
		t.Errorf("the event about a policy is in namespace %q", e.Namespace)
	}
}
