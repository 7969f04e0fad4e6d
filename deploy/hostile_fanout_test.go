// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/fanout/report"
)

const fanOutUser = "system:serviceaccount:kube-system:weir-fanout"

// deploymentOf makes a Deployment that nothing here carries out.
func deploymentOf(name string) *unstructured.Unstructured {
	labels := map[string]any{"app": name}
	return object("apps/v1", "Deployment", Namespace, name, map[string]any{"replicas": int64(1), "selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}})
}

// The controller says how many replicas the fan-out has, and nothing else of any workload.
func controllerScales(t *testing.T, c cluster) {
	own := c.As(controllerUser, "").Kube.AppsV1().Deployments(Namespace)
	scale := func(name string, replicas int32) error {
		_, err := own.UpdateScale(t.Context(), name, &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name},
			Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}, metav1.UpdateOptions{})
		return err
	}
	for _, name := range []string{names.Name, "coredns"} {
		c.Create(deploymentOf(name))
	}
	apitest.Eventually(t, 10*time.Second, "scaling the fan-out", func() error { return errors.Join(scale(names.Name, 20), scale(names.Name, 0)) })
	isRefused(t, "21 replicas", scale(names.Name, 21), byPolicy)
	isRefused(t, "scaling another workload", scale("coredns", 0), cannot)
	c.refused(t, c.as(controllerUser, ""), "update", deploymentOf(names.Name), cannot)
}

func isRefused(t *testing.T, what string, err error, words string) {
	t.Helper()
	if err == nil || !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v; want %q in it", what, err, words)
	}
}

// An EndpointSlice with the label of a Service is one of that Service, whoever makes it.
func controllerSlices(t *testing.T, c cluster) {
	own := c.as(controllerUser, "")
	slice := func(namespace, name string, change func(u map[string]any)) *unstructured.Unstructured {
		u := object("discovery.k8s.io/v1", "EndpointSlice", namespace, name, nil)
		u.SetLabels(map[string]string{"endpointslice.kubernetes.io/managed-by": "weir-controller"})
		u.Object["addressType"] = "IPv4"
		u.Object["endpoints"] = []any{map[string]any{"addresses": []any{"192.0.2.1"}}}
		u.Object["ports"] = []any{map[string]any{"name": "fanout", "protocol": "TCP", "port": int64(names.Port)}}
		if change != nil {
			change(u.Object)
		}
		return u
	}
	ofService := func(u map[string]any) {
		u["metadata"].(map[string]any)["labels"].(map[string]any)["kubernetes.io/service-name"] = "kube-dns"
	}
	otherPort := func(u map[string]any) { u["ports"].([]any)[0].(map[string]any)["port"] = int64(53) }
	allPorts := func(u map[string]any) { delete(u["ports"].([]any)[0].(map[string]any), "port") }
	unlabelled := func(u map[string]any) { delete(u["metadata"].(map[string]any), "labels") }
	changes := map[string]func(map[string]any){"label": ofService, "port": otherPort, "all ports": allPorts, "no label": unlabelled}
	for what, change := range changes {
		t.Log(what)
		c.refused(t, own, "create", slice(Namespace, names.Slice, change), byPolicy)
	}
	c.refused(t, own, "create", slice(Namespace, "mine", nil), byPolicy)
	c.refused(t, own, "create", slice("shop", names.Slice, nil), cannot)
	c.taken(t, own, "create", slice(Namespace, names.Slice, nil))
	c.taken(t, own, "update", slice(Namespace, names.Slice, nil))
	for what, change := range changes {
		t.Log(what)
		c.refused(t, own, "update", slice(Namespace, names.Slice, change), byPolicy)
	}
	c.Create(slice(Namespace, "kube-dns-x", ofService))
	for _, verb := range []string{"update", "delete"} {
		c.refused(t, own, verb, slice(Namespace, "kube-dns-x", nil), cannot)
	}
	c.refused(t, own, "delete", slice(Namespace, names.Slice, nil), cannot)
}

func fanOutRights(t *testing.T, c cluster) {
	c.mayNot(t, fanOutUser, writing+" /pods", writing+" /nodes", writing+" /services", writing+" /configmaps", "get,list,watch,"+writing+" /secrets", "get,list,watch /configmaps",
		"create /serviceaccounts/token", "create /pods/exec", writing+" apps/deployments", writing+" discovery.k8s.io/endpointslices",
		writing+" networking.k8s.io/networkpolicies", writing+" projectcalico.org/globalnetworkpolicies", writing+" weir.dev/ipamblocks", writing+" weir.dev/nodestatuses",
		writing+" rbac.authorization.k8s.io/clusterroles", writing+" admissionregistration.k8s.io/validatingadmissionpolicies", "impersonate /users",
		"create authorization.k8s.io/subjectaccessreviews", writing+" coordination.k8s.io/leases")
	c.refused(t, c.as(fanOutUser, ""), "create", blockOf("n1", "10.244.80.0/26", "10-244-80-0-26"), cannot)
	// What it reports of itself, and no other ConfigMap.
	own := c.As(fanOutUser, "").Kube.CoreV1().ConfigMaps(Namespace)
	entry := func(name string) error {
		_, err := own.Patch(t.Context(), name, types.MergePatchType, []byte(`{"data":{"x":"{}"}}`), metav1.PatchOptions{})
		return err
	}
	c.Create(find(t, Defaults(), "ConfigMap", report.ConfigMap))
	if err := entry(report.ConfigMap); err != nil {
		t.Errorf("its own report: %v", err)
	}
	isRefused(t, "an entry of another ConfigMap", entry("weir-peer-ca"), cannot)
	isRefused(t, "removing its report", own.Delete(t.Context(), report.ConfigMap, metav1.DeleteOptions{}), cannot)
	if got := fmt.Sprint(rulesOf(t, Defaults(), "ClusterRole", "weir-viewer")); !strings.Contains(got, report.ConfigMap) {
		t.Errorf("weir-viewer may not read the reports: %s", got)
	}
}

// With --fanout always an agent asks the API server for single objects, and for nothing that
// nobody has named to it.
func fedNodeReads(t *testing.T, c cluster) {
	roles := c.Clients.Dynamic.Resource(schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"})
	give := func(fanOut string) {
		o := Defaults()
		o.FanOut = fanOut
		role := find(t, o, "ClusterRole", "weir-node")
		if _, err := roles.Apply(t.Context(), "weir-node", role, metav1.ApplyOptions{FieldManager: "weir", Force: true}); err != nil {
			t.Fatal(err)
		}
		apitest.Eventually(t, time.Minute, "rights with --fanout "+fanOut, func() error {
			if got := c.may(t, agentUser, schema.GroupVersionResource{Version: "*", Resource: "pods"}, "", "", "list"); got != (fanOut != "always") {
				return fmt.Errorf("may list pods: %v", got)
			}
			return nil
		})
	}
	give("always")
	defer give("auto")
	const read = "list,watch"
	c.mayNot(t, agentUser, read+" /namespaces", read+" /pods", read+" /nodes", "get,"+read+" /services", "get,"+read+" /serviceaccounts", read+" discovery.k8s.io/endpointslices",
		"get discovery.k8s.io/endpointslices", "get,"+read+" networking.k8s.io/networkpolicies", "get,"+read+" networking.k8s.io/servicecidrs", "watch weir.dev/ipamblocks", read+" projectcalico.org/ipamblocks", read+" projectcalico.org/ipamhandles",
		"get,list,watch weir.dev/nodestatuses", "get,"+read+" /secrets")
	for _, kind := range []string{"ippools", "ipreservations", "ipamconfigurations", "felixconfigurations", "networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies",
		"stagedglobalnetworkpolicies", "stagedkubernetesnetworkpolicies", "tiers", "networksets", "globalnetworksets", "hostendpoints"} {
		c.mayNot(t, agentUser, "get,"+read+" projectcalico.org/"+kind)
	}
	for _, kind := range []string{"clusternetworkpolicies", "adminnetworkpolicies", "baselineadminnetworkpolicies"} {
		c.mayNot(t, agentUser, "get,"+read+" policy.networking.k8s.io/"+kind)
	}
	// What it needs is there: its pod, its blocks and its status, and where to connect to.
	n1 := c.as(agentUser, "n1")
	c.taken(t, n1, "create", blockOf("n1", "10.244.81.0/26", "10-244-81-0-26"))
	if _, err := n1.Resource(schema.GroupVersionResource{Group: "weir.dev", Version: "v1", Resource: "ipamblocks"}).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	c.taken(t, n1, "delete", blockOf("n1", "10.244.81.0/26", "10-244-81-0-26"))
	status := schema.GroupVersionResource{Group: "weir.dev", Version: "v1", Resource: "nodestatuses"}
	if _, err := n1.Resource(status).Apply(t.Context(), "n1", statusOf("n1"), metav1.ApplyOptions{FieldManager: "weir-agent", Force: true}); err != nil {
		t.Error(err)
	}
	if _, err := c.As(agentUser, "n1").Kube.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	for _, kind := range []string{"pods", "namespaces", "nodes"} {
		if !c.may(t, agentUser, schema.GroupVersionResource{Version: "*", Resource: kind}, "", "shop", "get") {
			t.Errorf("the agent may not get %s", kind)
		}
	}
}
