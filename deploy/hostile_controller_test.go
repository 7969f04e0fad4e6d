// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/apitest"
)

const (
	writing  = "create,update,patch,delete,deletecollection"
	cannot   = "cannot "
	byPolicy = "weir-controller-"
)

func controllerWorkloads(t *testing.T, c cluster) {
	c.mayNot(t, controllerUser, writing+" /pods", "create /pods/exec", "create /pods/attach", "create /pods/ephemeralcontainers", "create /pods/portforward",
		writing+" apps/daemonsets", writing+" apps/deployments", writing+" apps/statefulsets", writing+" batch/jobs", writing+" batch/cronjobs",
		writing+" /configmaps", "create,update,patch,delete /services", "update,patch,delete,deletecollection discovery.k8s.io/endpointslices", writing+" /endpoints",
		"update,patch apps/deployments/scale", "update,patch apps/statefulsets/scale", "update,patch apps/replicasets/scale", writing+" apps/replicasets")
	pod := object("v1", "Pod", Namespace, "mine", map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}})
	c.refused(t, c.as(controllerUser, ""), "create", pod, cannot)
}

func controllerSecrets(t *testing.T, c cluster) {
	c.mayNot(t, controllerUser, "get,list,watch,"+writing+" /secrets", "get,list,watch /configmaps", "create /serviceaccounts/token", writing+" /serviceaccounts",
		"impersonate /users", "impersonate /groups", "impersonate /serviceaccounts", "create certificates.k8s.io/certificatesigningrequests")
	secret := apitest.Object("v1", "Secret", "mine", nil)
	secret.SetNamespace(Namespace)
	c.refused(t, c.as(controllerUser, ""), "create", secret, cannot)
}

func controllerNodes(t *testing.T, c cluster) {
	c.mayNot(t, controllerUser, "create,update,delete,deletecollection /nodes", "update,patch /nodes/status", "get,create /nodes/proxy")
	// Of a Node it writes one label (internal/controller/bgp has what else it may not).
	c.refused(t, c.as(controllerUser, ""), "patch", object("v1", "Node", "", "n2", map[string]any{"unschedulable": true}), byPolicy)
	c.refused(t, c.as(controllerUser, ""), "delete", object("v1", "Node", "", "n2", nil), cannot)
}

// The controller keeps a tier by a finalizer, and changes nothing else of it.
func controllerPolicies(t *testing.T, c cluster) {
	for _, kind := range []string{"networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies", "stagedglobalnetworkpolicies", "networksets", "globalnetworksets"} {
		c.mayNot(t, controllerUser, writing+" projectcalico.org/"+kind)
	}
	c.mayNot(t, controllerUser, writing+" networking.k8s.io/networkpolicies", "delete,deletecollection,patch projectcalico.org/tiers",
		writing+" policy.networking.k8s.io/clusternetworkpolicies")
	own := c.as(controllerUser, "")
	// Of tiers it makes those that are always there, and of these objects the first alone.
	// It may be there: that is found out after admission.
	if err := c.try(own, "create", object(v3API, "Tier", "", "kube-admin", map[string]any{"order": int64(1000), "defaultAction": "Pass"})); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Error(err)
	}
	c.refused(t, own, "create", object(v3API, "Tier", "", "before-all", map[string]any{"order": int64(1)}), byPolicy)
	c.refused(t, own, "create", object(v3API, "ClusterInformation", "", "default", map[string]any{"datastoreReady": false}), byPolicy)
	c.taken(t, own, "create", object(v3API, "ClusterInformation", "", "default", map[string]any{"datastoreReady": true}))
	c.refused(t, own, "create", object(v3API, "KubeControllersConfiguration", "", "other", map[string]any{"controllers": map[string]any{}}), byPolicy)
	c.mayNot(t, controllerUser, "update,patch,delete,deletecollection projectcalico.org/clusterinformations", "update,patch,delete,deletecollection projectcalico.org/kubecontrollersconfigurations")
	c.Create(object(v3API, "Tier", "", "turned", map[string]any{"order": int64(100)}))
	for what, spec := range map[string]map[string]any{"order": {"order": int64(9)}, "defaultAction": {"order": int64(100), "defaultAction": "Pass"}, "no spec": nil} {
		t.Log(what)
		c.refused(t, own, "update", object(v3API, "Tier", "", "turned", spec), byPolicy)
	}
	labelled := object(v3API, "Tier", "", "turned", map[string]any{"order": int64(100)})
	labelled.SetLabels(map[string]string{"a": "b"})
	c.refused(t, own, "update", labelled, byPolicy)
	foreign := object(v3API, "Tier", "", "turned", map[string]any{"order": int64(100)})
	foreign.SetFinalizers([]string{"example.com/never"})
	c.refused(t, own, "update", foreign, byPolicy)
	kept := object(v3API, "Tier", "", "turned", map[string]any{"order": int64(100)})
	kept.SetFinalizers([]string{TierFinalizer})
	c.taken(t, own, "update", kept)
	kept.SetFinalizers(nil)
	c.taken(t, own, "update", kept)
	c.taken(t, c.Clients.Dynamic, "delete", kept)
}

func controllerRights(t *testing.T, c cluster) {
	for _, kind := range []string{"clusterroles", "clusterrolebindings", "roles", "rolebindings"} {
		c.mayNot(t, controllerUser, writing+",bind,escalate rbac.authorization.k8s.io/"+kind)
	}
	for _, kind := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings", "validatingwebhookconfigurations", "mutatingwebhookconfigurations",
		"mutatingadmissionpolicies"} {
		c.mayNot(t, controllerUser, writing+" admissionregistration.k8s.io/"+kind)
	}
	c.mayNot(t, controllerUser, writing+" apiextensions.k8s.io/customresourcedefinitions", writing+" apiregistration.k8s.io/apiservices", writing+" /namespaces")
	role := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": "weir-controller"},
		"rules": []any{map[string]any{"apiGroups": []any{"*"}, "resources": []any{"*"}, "verbs": []any{"*"}}}}}
	c.refused(t, c.as(controllerUser, ""), "update", role, cannot)
	hook := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": map[string]any{"name": "mine"}}}
	c.refused(t, c.as(controllerUser, ""), "create", hook, cannot)
}

// What a node has is given back when the node is gone, and not before.
func controllerBlocks(t *testing.T, c cluster) {
	c.pool(t)
	own := c.as(controllerUser, "")
	of1, gone := blockOf("n1", "10.244.70.0/26", "10-244-70-0-26"), blockOf("gone", "10.244.71.0/26", "10-244-71-0-26")
	for _, u := range []*unstructured.Unstructured{of1, gone, statusOf("n1"), statusOf("gone")} {
		c.Create(u)
	}
	c.refused(t, own, "delete", of1, byPolicy)
	c.refused(t, own, "delete", statusOf("n1"), byPolicy)
	c.refused(t, own, "create", blockOf("n1", "10.244.72.0/26", "10-244-72-0-26"), byPolicy)
	c.refused(t, own, "update", of1, byPolicy)
	c.taken(t, own, "delete", gone)
	c.taken(t, own, "delete", statusOf("gone"))
	balancer := blockOf("virtual:load-balancer", "10.244.73.0/26", "10-244-73-0-26")
	c.taken(t, own, "create", balancer)
	c.taken(t, own, "update", balancer)
	c.taken(t, own, "delete", balancer)
	c.mayNot(t, controllerUser, "deletecollection weir.dev/ipamblocks", "deletecollection,create,update,patch weir.dev/nodestatuses")
}

func controllerLeases(t *testing.T, c cluster) {
	own := c.as(controllerUser, "")
	lease := func(name string) *unstructured.Unstructured {
		return object("coordination.k8s.io/v1", "Lease", Namespace, name, map[string]any{"holderIdentity": "me"})
	}
	c.Create(lease("kube-scheduler"))
	c.refused(t, own, "update", lease("kube-scheduler"), cannot)
	c.refused(t, own, "delete", lease("kube-scheduler"), cannot)
	c.refused(t, own, "create", lease("kube-controller-manager"), byPolicy)
	c.taken(t, own, "create", lease("weir-controller"))
	c.taken(t, own, "update", lease("weir-controller"))
}

// Automatic host endpoints allow what no policy denies. Those of operators are not the
// controller's.
func controllerHostEndpoints(t *testing.T, c cluster) {
	own := c.as(controllerUser, "")
	hep := func(name string, auto bool, profiles ...any) *unstructured.Unstructured {
		u := object(v3API, "HostEndpoint", "", name, map[string]any{"node": "n1", "interfaceName": "*", "profiles": profiles})
		if auto {
			u.SetLabels(map[string]string{"projectcalico.org/created-by": "calico-kube-controllers"})
		}
		return u
	}
	const allow = "projectcalico-default-allow"
	c.Create(hep("operators", false))
	c.refused(t, own, "update", hep("operators", true, allow), byPolicy)
	c.refused(t, own, "delete", hep("operators", false), byPolicy)
	c.refused(t, own, "create", hep("mine", false, allow), byPolicy)
	c.refused(t, own, "create", hep("mine", true), byPolicy)
	c.taken(t, own, "create", hep("n1-auto-hep", true, allow))
	c.refused(t, own, "update", hep("n1-auto-hep", false, allow), byPolicy)
	c.taken(t, own, "delete", hep("n1-auto-hep", true, allow))
}

// The first pools and the first settings are made once, with nothing else in them than what makes a
// new installation work.
func controllerPools(t *testing.T, c cluster) {
	own := c.as(controllerUser, "")
	c.mayNot(t, controllerUser, "patch,delete,deletecollection projectcalico.org/ippools", "update,patch,delete,deletecollection projectcalico.org/felixconfigurations",
		"update,patch,delete,deletecollection projectcalico.org/ipamconfigurations", writing+" projectcalico.org/ipreservations")
	c.refused(t, own, "create", object(v3API, "IPPool", "", "mine", map[string]any{"cidr": "192.0.2.0/24"}), byPolicy)
	c.refused(t, own, "create", object(v3API, "FelixConfiguration", "", "node.n9", map[string]any{"bpfEnabled": true}), byPolicy)
	first, felix, err := DefaultObjects("10.98.0.0/16,fd00:98::/56", "Never")
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range append(first, felix) {
		_ = c.try(c.Clients.Dynamic, "delete", u) // of another attack
	}
	c.refused(t, own, "create", object(v3API, "FelixConfiguration", "", "default",
		map[string]any{"bpfEnabled": true, "failsafeInboundHostPorts": []any{map[string]any{"protocol": "tcp", "port": int64(22)}}}), byPolicy)
	for _, u := range append(first, felix) {
		c.taken(t, own, "create", u)
		c.taken(t, c.Clients.Dynamic, "delete", u)
	}
}

// The API server trusts the controller for the group live.weir.dev, and for nothing else.
func controllerAPIServices(t *testing.T, c cluster) {
	own := c.as(controllerUser, "")
	service := func(name string, spec map[string]any) *unstructured.Unstructured {
		return object("apiregistration.k8s.io/v1", "APIService", "", name, spec)
	}
	c.taken(t, own, "patch", service("v1alpha1.live.weir.dev", map[string]any{"caBundle": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="}))
	c.refused(t, own, "patch", service("v1alpha1.live.weir.dev", map[string]any{"service": map[string]any{"name": "mine"}}), byPolicy)
	c.refused(t, own, "patch", service("v1alpha1.live.weir.dev", map[string]any{"groupPriorityMinimum": int64(20000)}), byPolicy)
	c.refused(t, own, "patch", service("v1alpha1.live.weir.dev", map[string]any{"insecureSkipTLSVerify": true, "caBundle": nil}), byPolicy)
	c.refused(t, own, "patch", service("v1.apps", map[string]any{"versionPriority": int64(1)}), cannot)
	c.refused(t, own, "create", service("v1.mine.example", map[string]any{"group": "mine.example", "version": "v1"}), cannot)
	c.refused(t, own, "delete", service("v1alpha1.live.weir.dev", nil), cannot)
}

// The controller keeps a pool by a finalizer, and changes nothing else of it.
func controllerChangesPool(t *testing.T, c cluster) {
	own := c.as(controllerUser, "")
	pool := func(spec map[string]any) *unstructured.Unstructured {
		return object(v3API, "IPPool", "", "operators", spec)
	}
	c.Create(pool(map[string]any{"cidr": "10.99.0.0/16"}))
	for what, spec := range map[string]map[string]any{"disabled": {"cidr": "10.99.0.0/16", "disabled": true}, "source NAT": {"cidr": "10.99.0.0/16", "natOutgoing": true}} {
		t.Log(what)
		c.refused(t, own, "update", pool(spec), byPolicy)
	}
	foreign := pool(map[string]any{"cidr": "10.99.0.0/16"})
	foreign.SetFinalizers([]string{TierFinalizer})
	c.refused(t, own, "update", foreign, byPolicy)
	kept := pool(map[string]any{"cidr": "10.99.0.0/16"})
	kept.SetFinalizers([]string{PoolFinalizer})
	c.taken(t, own, "update", kept)
	kept.SetFinalizers(nil)
	c.taken(t, own, "update", kept)
	c.taken(t, c.Clients.Dynamic, "delete", kept)
}

// The controller gives Services addresses, by their status, and keeps those that have some by a
// finalizer. An update of the status could change what else is in the metadata: labels that load
// balancers' classes and policies go by, annotations that are settings, owners that have the
// Service collected.
func controllerServices(t *testing.T, c cluster) {
	own := c.as(controllerUser, "")
	c.mayNot(t, controllerUser, "patch /services/status")
	service := func(change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		u := object("v1", "Service", "shop", "web", map[string]any{"type": "LoadBalancer", "ports": []any{map[string]any{"port": int64(80)}}})
		u.SetLabels(map[string]string{"app": "web"})
		u.SetFinalizers([]string{"example.com/kept"})
		change(u)
		return u
	}
	made := service(func(*unstructured.Unstructured) {})
	c.Create(made)
	for what, change := range map[string]func(*unstructured.Unstructured){
		"labels":       func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"app": "other"}) },
		"no labels":    func(u *unstructured.Unstructured) { u.SetLabels(nil) },
		"annotations":  func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{"a": "b"}) },
		"a finalizer":  func(u *unstructured.Unstructured) { u.SetFinalizers([]string{"example.com/kept", "example.com/never"}) },
		"no finalizer": func(u *unstructured.Unstructured) { u.SetFinalizers(nil) },
		"owners, of its": func(u *unstructured.Unstructured) {
			u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "gone", UID: "1"}})
		},
	} {
		t.Log(what)
		c.refused(t, own, "status", service(change), byPolicy)
	}
	given := service(func(u *unstructured.Unstructured) {
		u.SetFinalizers([]string{"example.com/kept", "service.kubernetes.io/load-balancer-cleanup"})
		u.Object["status"] = map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "192.0.2.7"}}}}
	})
	c.taken(t, own, "status", given)
	c.taken(t, own, "status", made)
}

// An automatic host endpoint has a name that says of which node it is: none is named so that it
// comes before another one.
func controllerHostEndpointNames(t *testing.T, c cluster) {
	own := c.as(controllerUser, "")
	hep := func(name, node string) *unstructured.Unstructured {
		u := object(v3API, "HostEndpoint", "", name, map[string]any{"node": node, "interfaceName": "*", "profiles": []any{"projectcalico-default-allow"}})
		u.SetLabels(map[string]string{"projectcalico.org/created-by": "calico-kube-controllers"})
		return u
	}
	c.refused(t, own, "create", hep("a", "n1"), byPolicy)
	c.refused(t, own, "create", hep("a-auto-hep", "n1"), byPolicy)
	c.refused(t, own, "create", hep("n1-auto", "n1"), byPolicy)
	c.refused(t, own, "create", hep("n1-auto-hep", "n2"), byPolicy)
	c.taken(t, own, "create", hep("n1-front-auto-hep", "n1"))
	c.refused(t, own, "update", hep("n1-front-auto-hep", "n2"), byPolicy)
	c.taken(t, own, "delete", hep("n1-front-auto-hep", "n1"))
}

// A cluster whose pools have other names needs no first one.
func controllerFirstPools(t *testing.T, c cluster) {
	own := c.as(controllerUser, "")
	first, _, err := DefaultObjects("10.98.0.0/16,fd00:98::/56", "Never")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.try(c.Clients.Dynamic, "delete", first[0]) // of another attack
	others := poolOf("corporate", "10.97.0.0/16", 26)
	c.Create(others)
	for _, u := range first {
		c.refusedSoon(t, own, u, byPolicy)
	}
	c.taken(t, c.Clients.Dynamic, "delete", others)
	for _, u := range first {
		c.taken(t, own, "create", u)
		c.taken(t, c.Clients.Dynamic, "delete", u)
	}
}
