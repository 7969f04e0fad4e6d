// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/internal/apitest"
)

func blockOf(node, cidr, name string) *unstructured.Unstructured {
	return object(weirAPI, "IPAMBlock", "", name, map[string]any{"cidr": cidr, "node": node, "pool": "default"})
}

func statusOf(node string) *unstructured.Unstructured {
	return object(weirAPI, "NodeStatus", "", node, nil)
}

const wantsNode = "weir-node-own-objects"

// pool makes the pool that blocks are of.
func (c cluster) pool(t *testing.T) {
	t.Helper()
	c.Create(object(v3API, "IPPool", "", "default", map[string]any{"cidr": "10.244.0.0/16", "natOutgoing": true, "nodeSelector": "all()"}))
}

// A token without a node's name may be of any node: it is of none.
func tokenWithoutNode(t *testing.T, c cluster) {
	c.pool(t)
	c.Create(blockOf("n2", "10.244.60.0/26", "10-244-60-0-26"))
	c.Create(statusOf("n2"))
	nobody := c.as(agentUser, "")
	c.refused(t, nobody, "create", blockOf("n2", "10.244.61.0/26", "10-244-61-0-26"), wantsNode)
	c.refused(t, nobody, "delete", blockOf("n2", "10.244.60.0/26", "10-244-60-0-26"), wantsNode)
	c.refused(t, nobody, "patch", statusOf("n2"), wantsNode)
	c.refused(t, nobody, "create", statusOf("n3"), wantsNode)
}

func otherNodesObjects(t *testing.T, c cluster) {
	c.pool(t)
	of2 := blockOf("n2", "10.244.62.0/26", "10-244-62-0-26")
	c.Create(of2)
	c.Create(statusOf("n2"))
	n1 := c.as(agentUser, "n1")
	own := blockOf("n1", "10.244.63.0/26", "10-244-63-0-26")
	c.taken(t, n1, "create", own)
	c.Create(statusOf("n1"))
	c.taken(t, n1, "patch", statusOf("n1"))
	c.refused(t, n1, "create", blockOf("n2", "10.244.64.0/26", "10-244-64-0-26"), wantsNode)
	c.refused(t, n1, "create", blockOf("virtual:load-balancer", "10.244.64.0/26", "10-244-64-0-26"), wantsNode)
	for _, verb := range []string{"update", "delete"} {
		c.refused(t, n1, verb, of2, wantsNode)
	}
	for _, verb := range []string{"update", "patch"} {
		c.refused(t, n1, verb, statusOf("n2"), wantsNode)
	}
	c.refused(t, n1, "delete", statusOf("n2"), "cannot delete")
	// Neither by writing its own name into another's, nor the other way round.
	c.refused(t, n1, "update", blockOf("n1", "10.244.62.0/26", "10-244-62-0-26"), "")
	c.refused(t, n1, "update", blockOf("n2", "10.244.63.0/26", "10-244-63-0-26"), "")
	c.refused(t, n1, "deletecollection", of2, "cannot deletecollection")
	c.refused(t, n1, "deletecollection", statusOf("n2"), "cannot deletecollection")
	c.taken(t, n1, "delete", own)
}

// A node fills the statuses that are about it, and changes nothing that was asked for.
func otherNodesRouting(t *testing.T, c cluster) {
	statuses := c.Clients.Dynamic.Resource(schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "caliconodestatuses"})
	of := func(node string) *unstructured.Unstructured {
		u := object(v3API, "CalicoNodeStatus", "", node+"-routing", map[string]any{"node": node, "classes": []any{"BGP"}, "updatePeriodSeconds": int64(10)})
		c.Create(u)
		return u
	}
	own, other := of("n1"), of("n2")
	c.Create(object(v3API, "CalicoNodeStatus", "", "of-none", map[string]any{"classes": []any{"BGP"}}))
	write := func(as dynamic.Interface, name, patch string) error {
		_, err := as.Resource(schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "caliconodestatuses"}).
			Patch(t.Context(), name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	}
	const status = `[{"op":"add","path":"/status","value":{"bgp":{"numberEstablishedV4":7,"numberEstablishedV6":0,"numberNotEstablishedV4":0,"numberNotEstablishedV6":0}}}]`
	n1 := c.as(agentUser, "n1")
	apitest.Eventually(t, time.Minute, "the policy of admission", func() error { // counts some moments after it was written
		if err := write(n1, other.GetName(), status); err == nil || !strings.Contains(err.Error(), wantsNode) {
			return fmt.Errorf("the status of another node: %v", err)
		}
		return nil
	})
	for name, as := range map[string]dynamic.Interface{"of-none": n1, own.GetName(): c.as(agentUser, "")} {
		if err := write(as, name, status); err == nil {
			t.Errorf("a node writes %s", name)
		}
	}
	if err := write(n1, own.GetName(), `[{"op":"replace","path":"/spec/node","value":"n2"},{"op":"add","path":"/metadata/labels","value":{"a":"b"}},`+status[1:]); err != nil {
		t.Error(err)
	}
	got, err := statuses.Get(t.Context(), own.GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node, _, _ := unstructured.NestedString(got.Object, "spec", "node")
	if up, _, _ := unstructured.NestedInt64(got.Object, "status", "bgp", "numberEstablishedV4"); node != "n1" || up != 7 || len(got.GetLabels()) > 0 {
		t.Errorf("a node wrote %v", got.Object)
	}
	for _, verb := range []string{"update", "patch", "delete", "create"} {
		c.refused(t, n1, verb, own, "cannot")
	}
	for field, value := range map[string]any{"updatePeriodSeconds": int64(86401), "classes": []any{"Everything"}} {
		u := object(v3API, "CalicoNodeStatus", "", "bad", map[string]any{"node": "n1", field: value})
		if err := c.try(c.Clients.Dynamic, "create", u); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s %v: %v", field, value, err)
		}
	}
}

// A finalizer or an owner on a node's objects would keep blocks for ever, or have them removed
// under pods of other nodes.
func nodeKeepsObjects(t *testing.T, c cluster) {
	c.pool(t)
	n1 := c.as(agentUser, "n1")
	for i, change := range []func(*unstructured.Unstructured){
		func(u *unstructured.Unstructured) { u.SetFinalizers([]string{"example.com/never"}) },
		func(u *unstructured.Unstructured) {
			u.Object["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": "1"}}
		},
	} {
		name := []string{"10-244-65-0-26", "10-244-66-0-26"}[i]
		u := blockOf("n1", []string{"10.244.65.0/26", "10.244.66.0/26"}[i], name)
		change(u)
		c.refused(t, n1, "create", u, wantsNode)
		status := statusOf("n1")
		c.Create(status)
		change(status)
		c.refused(t, n1, "patch", status, wantsNode)
	}
}

// Events lead people and programs that read them: those of an agent say whose they are.
func nodeEvents(t *testing.T, c cluster) {
	const wantsOwn = "weir-node-own-events"
	event := func(name, component, host, kind string) *unstructured.Unstructured {
		u := object("v1", "Event", "shop", name, nil)
		u.Object["involvedObject"] = map[string]any{"kind": kind, "namespace": "shop", "name": "web"}
		u.Object["source"] = map[string]any{"component": component, "host": host}
		u.Object["reason"], u.Object["type"] = "WaitsForFanOut", "Warning"
		return u
	}
	n1 := c.as(agentUser, "n1")
	// Policies of admission count some moments after they were written.
	apitest.Eventually(t, time.Minute, "the policy of admission "+wantsOwn, func() error {
		probe := event("probe", "weir-agent", "n2", "Pod")
		if err := c.try(n1, "create", probe); err == nil {
			return errors.Join(errors.New("it does not count yet"), c.try(c.Clients.Dynamic, "delete", probe))
		}
		return nil
	})
	for _, u := range []*unstructured.Unstructured{event("a", "weir-agent", "n2", "Pod"), event("b", "kubelet", "n1", "Pod"), event("c", "weir-agent", "n1", "Service"), event("d", "", "", "Pod")} {
		c.refused(t, n1, "create", u, wantsOwn)
	}
	c.refused(t, c.as(agentUser, ""), "create", event("e", "weir-agent", "", "Pod"), wantsOwn)
	owned := event("f", "weir-agent", "n1", "Pod")
	owned.SetFinalizers([]string{"example.com/never"})
	c.refused(t, n1, "create", owned, wantsOwn)
	c.taken(t, n1, "create", event("g", "weir-agent", "n1", "Pod"))
	c.Create(event("h", "kubelet", "n2", "Pod"))
	c.refused(t, n1, "patch", event("h", "weir-agent", "n1", "Pod"), wantsOwn)
	c.refused(t, n1, "patch", event("g", "weir-agent", "n2", "Pod"), wantsOwn)
	c.taken(t, n1, "patch", event("g", "weir-agent", "n1", "Pod"))
}

func nodeRights(t *testing.T, c cluster) {
	const write = "create,update,patch,delete,deletecollection"
	c.mayNot(t, agentUser, write+" /services", write+" /services/status", write+" /pods", write+" /pods/status", write+" /nodes", write+" /nodes/status",
		"update,delete,deletecollection /events", write+" /configmaps", "get,list,watch,"+write+" /secrets", "create /serviceaccounts/token", "create /pods/exec", "create /pods/binding",
		write+" discovery.k8s.io/endpointslices", write+" networking.k8s.io/networkpolicies", write+" coordination.k8s.io/leases",
		write+" apiextensions.k8s.io/customresourcedefinitions", write+" admissionregistration.k8s.io/validatingadmissionpolicies",
		write+" rbac.authorization.k8s.io/clusterroles", "impersonate /users")
	for _, kind := range []string{"networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies", "tiers", "networksets", "globalnetworksets", "hostendpoints",
		"ippools", "ipreservations", "ipamconfigurations", "felixconfigurations"} {
		c.mayNot(t, agentUser, write+" projectcalico.org/"+kind)
	}
	n1 := c.as(agentUser, "n1")
	c.refused(t, n1, "create", object("v1", "Service", "shop", "taken", map[string]any{"ports": []any{map[string]any{"port": int64(80)}}}), "cannot create")
	c.refused(t, n1, "create", policyIn("", "open"), "cannot create")
	c.refused(t, n1, "patch", object("v1", "Node", "", "n2", nil), "cannot patch")
	c.refused(t, n1, "patch", object(v3API, "FelixConfiguration", "", "default", map[string]any{"bpfEnabled": false}), "cannot patch")
}
