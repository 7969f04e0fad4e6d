// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/migrate/calico"
)

// cluster is an API server with the objects of a recorded cluster.
func cluster(t *testing.T) *clientset.Clients {
	t.Helper()
	raw, err := os.ReadFile("calico/testdata/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := deploy.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	lists := map[schema.GroupVersionResource]string{
		{Group: "operator.tigera.io", Version: "v1", Resource: "installations"}:      "InstallationList",
		{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}:    "APIServiceList",
		{Group: calico.Group, Version: "v1", Resource: "globalnetworkpolicies"}:      "GlobalNetworkPolicyList",
		{Group: calico.Group, Version: "v1", Resource: "blockaffinities"}:            "BlockAffinityList",
		{Group: calico.Group, Version: "v1", Resource: "felixconfigurations/status"}: "FelixConfigurationList",
	}
	served := map[string]metav1.APIResource{}
	var stored []runtime.Object
	for _, u := range objects {
		gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
		lists[gvr] = u.GetKind() + "List"
		if gvr.Group == calico.Group {
			served[gvr.Resource] = metav1.APIResource{Name: gvr.Resource, Kind: u.GetKind()}
		}
		stored = append(stored, u)
	}
	served["felixconfigurations/status"] = metav1.APIResource{Name: "felixconfigurations/status", Kind: "FelixConfiguration"}
	kube := kubefake.NewClientset()
	list := &metav1.APIResourceList{GroupVersion: calico.Group + "/v1"}
	for _, r := range served {
		list.APIResources = append(list.APIResources, r)
	}
	kube.Resources = []*metav1.APIResourceList{list}
	return &clientset.Clients{Kube: kube, Clients: &client.Clients{
		Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, stored...)}}
}

// TestRead: a plan of what the API server has is that of the same objects recorded.
func TestRead(t *testing.T) {
	c, err := Read(t.Context(), cluster(t))
	if err != nil {
		t.Fatal(err)
	}
	p := calico.New(c)
	if p.Stopped() || p.Version != "v3.28.5" || len(p.Copies) != 5 || len(p.Nodes) != 2 || p.Nodes[0].Addresses() != 2 {
		t.Errorf("%+v", p)
	}
	if c.Daemon == nil || c.Config == nil || c.Operated || c.Served {
		t.Errorf("%+v", c)
	}
}

// TestReadWithoutCalico: a cluster without Calico's objects is no cluster to migrate.
func TestReadWithoutCalico(t *testing.T) {
	c := cluster(t)
	c.Kube = kubefake.NewClientset()
	if _, err := Read(t.Context(), c); err == nil || !strings.Contains(err.Error(), "Calico does not run here") {
		t.Error(err)
	}
}
