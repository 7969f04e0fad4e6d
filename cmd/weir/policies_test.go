// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/model"
)

const clusterPolicy = `{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "gate"}, "spec": {
"tier": "Admin", "priority": 3, "subject": {"namespaces": {}},
"egress": [{"action": "Deny", "to": [{"nodes": {}}, {"networks": ["192.0.2.0/24"]}], "protocols": [{"tcp": {"destinationPort": {"range": {"start": 1, "end": 9}}}}]}]}}`

// The definition of ClusterNetworkPolicy comes with the installation, its policies are in force,
// and are no longer when it goes; one that somebody else brought stays as it is.
func testClusterPolicies(t *testing.T, s *apitest.Server, f *follower, kubeconfig string) {
	const definition = "clusternetworkpolicies.policy.networking.k8s.io"
	id := model.PolicyID{Kind: model.KindClusterNetworkPolicy, Name: model.Name{Name: "gate"}}
	there := func(want bool) func() error {
		return func() error {
			p := f.cluster.Policies[id]
			if (p != nil) != want || p != nil && (p.Tier != model.TierAdmin || p.Order != 3 || len(p.Egress) != 1 || len(p.Egress[0].Peers) != 2 || p.Egress[0].Ports[0].Last != 9) {
				return fmt.Errorf("%+v", p)
			}
			return nil
		}
	}
	if out, err := weir(t, kubeconfig, clusterPolicy, "create", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f.eventually(t, 20*time.Second, "the policy", there(true))
	if out, err := weir(t, kubeconfig, "", "get", "cnp"); err != nil || !strings.Contains(out, "gate") {
		t.Errorf("%v\n%s", err, out)
	}
	crds := s.Clients.Dynamic.Resource(crdResource)
	if err := crds.Delete(t.Context(), definition, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually(t, 20*time.Second, "the policy is gone with its definition", there(false))
	apitest.Eventually(t, 20*time.Second, "the definition to come back", func() error {
		if out, err := weir(t, kubeconfig, "", "install", "--wait=false"); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		out, err := weir(t, kubeconfig, clusterPolicy, "apply", "-f", "-")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	f.eventually(t, 20*time.Second, "the policy of the definition that came back", there(true))

	if _, err := crds.Patch(t.Context(), definition, types.MergePatchType, []byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"somebody"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	out, err := weir(t, kubeconfig, "", "install", "--wait=false")
	if err != nil || !strings.Contains(out, "left CustomResourceDefinition "+definition) {
		t.Errorf("%v\n%s", err, out)
	}
	if u, err := crds.Get(t.Context(), definition, metav1.GetOptions{}); err != nil || u.GetLabels()["app.kubernetes.io/managed-by"] != "somebody" {
		t.Errorf("somebody else's definition was written: %v", err)
	}
}

var clusterPolicyResource = schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha2", Resource: "clusternetworkpolicies"}

// createNamed makes a policy with something that is not in force.
func createNamed(t *testing.T, admin *clientset.Clients) {
	t.Helper()
	_, err := admin.Dynamic.Resource(clusterPolicyResource).Create(t.Context(), apitest.Object("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", "named", map[string]any{
		"tier": "Admin", "priority": int64(4), "subject": map[string]any{"namespaces": map[string]any{}},
		"egress": []any{map[string]any{"action": "Deny", "to": []any{map[string]any{"domainNames": []any{"example.com"}}}}}}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitConditions waits until the policies "gate" and "named" say what of them is in force.
func awaitConditions(t *testing.T, admin *clientset.Clients) {
	t.Helper()
	for name, want := range map[string]string{"gate": "True every field is enforced", "named": "False spec.egress[0].to"} {
		apitest.Eventually(t, 20*time.Second, "the condition of "+name, func() error {
			u, err := admin.Dynamic.Resource(clusterPolicyResource).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
			for _, c := range conditions {
				if m, ok := c.(map[string]any); ok && m["type"] == "Accepted" && strings.HasPrefix(fmt.Sprint(m["status"], " ", m["message"]), want) &&
					m["observedGeneration"] == u.GetGeneration() {
					return nil
				}
			}
			return fmt.Errorf("%v", conditions)
		})
	}
}
