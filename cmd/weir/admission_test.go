// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/objects"
)

// TestAdmissionOnOther: with another CNI plugin the policies of admission are others, and are the
// right ones.
func TestAdmissionOnOther(t *testing.T) {
	for on, prefix := range deploy.Networks {
		o := deploy.Defaults()
		o.On, o.InterfacePrefix = on, prefix
		all, err := deploy.Objects(o)
		if err != nil {
			t.Fatal(err)
		}
		dynamic := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
		daemons := &appsv1.DaemonSet{}
		for _, u := range all {
			if strings.HasPrefix(u.GetKind(), "ValidatingAdmissionPolicy") {
				if _, err := objects.Resource(dynamic, u).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if u.GetKind() == "DaemonSet" && u.GetName() == nodeDaemon {
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, daemons); err != nil {
					t.Fatal(err)
				}
			}
		}
		if is, err := onOther(t.Context(), fake.NewClientset(daemons)); err != nil || is != on {
			t.Errorf("agents on %s work with %q: %v", on, is, err)
		}
		for _, now := range []string{on, ""} {
			r := &report{on: now}
			if err := r.readAdmission(t.Context(), &clientset.Clients{Clients: &client.Clients{Dynamic: dynamic}}); err != nil {
				t.Fatal(err)
			}
			if r.healthy() != (now == on) {
				t.Errorf("on %s, looked at as on %q: %q", on, now, r.faults)
			}
		}
	}
}
