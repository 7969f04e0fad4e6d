// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

func nodeRights(t *testing.T, c cluster) {
	const write = "create,update,patch,delete,deletecollection"
	c.mayNot(t, agentUser, write+" /services", write+" /services/status", write+" /pods", write+" /pods/status", write+" /nodes", write+" /nodes/status",
		write+" /events", write+" /configmaps", "get,list,watch,"+write+" /secrets", "create /serviceaccounts/token", "create /pods/exec", "create /pods/binding",
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
