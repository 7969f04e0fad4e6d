// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	wantsOwn     = "may write only what belongs to this node"
	wantsRelease = "allocations may be taken out"

	wantsBalancers = "only what is about addresses of load balancers"
)

func mirroredBlock(node, name, cidr string, allocations []any, unallocated ...any) *unstructured.Unstructured {
	return object(v3API, "IPAMBlock", "", name, map[string]any{"cidr": cidr, "affinity": "host:" + node, "allocations": allocations, "unallocated": append([]any{}, unallocated...),
		"attributes": []any{map[string]any{"handle_id": "weir-node." + node}}})
}

// An agent writes what its node has; others take allocations out of a block, and change nothing
// else.
func mirrors(t *testing.T, c cluster) {
	n1, user := c.as(agentUser, "n1"), c.Clients.Dynamic
	block := mirroredBlock("n1", "10-244-80-0-30", "10.244.80.0/30", []any{int64(0), int64(0), nil, nil}, int64(2), int64(3))
	c.taken(t, n1, "create", block)
	c.taken(t, n1, "update", block)
	affinity := func(node string) *unstructured.Unstructured {
		return object(v3API, "BlockAffinity", "", node+"-10-244-80-0-30", map[string]any{"state": "confirmed", "node": node, "cidr": "10.244.80.0/30"})
	}
	handle := func(node string) *unstructured.Unstructured {
		return object(v3API, "IPAMHandle", "", "weir-node."+node, map[string]any{"handleID": "weir-node." + node, "block": map[string]any{"10.244.80.0/30": int64(2)}})
	}
	c.taken(t, n1, "create", affinity("n1"))
	c.taken(t, n1, "create", handle("n1"))
	for _, u := range []*unstructured.Unstructured{mirroredBlock("n2", "10-244-81-0-30", "10.244.81.0/30", []any{nil, nil, nil, nil}), affinity("n2"), handle("n2")} {
		c.refused(t, n1, "create", u, wantsOwn)
		c.refused(t, user, "create", u, wantsRelease)
	}
	other := c.as(agentUser, "n2")
	c.refused(t, other, "update", block, wantsOwn)
	c.refused(t, other, "update", mirroredBlock("n2", "10-244-80-0-30", "10.244.80.0/30", []any{nil, nil, nil, nil}), wantsOwn)
	c.refused(t, c.as(agentUser, ""), "update", block, wantsOwn)
	kept := block.DeepCopy()
	kept.SetFinalizers([]string{"example.com/never"})
	c.refused(t, n1, "update", kept, "no finalizers")
	// More allocations, another node's block, and deletion are no requests.
	c.refused(t, user, "update", mirroredBlock("n1", "10-244-80-0-30", "10.244.80.0/30", []any{int64(0), int64(0), int64(0), nil}, int64(3)), wantsRelease)
	c.refused(t, user, "update", mirroredBlock("n2", "10-244-80-0-30", "10.244.80.0/30", []any{int64(0), nil, nil, nil}, int64(2), int64(3), int64(1)), wantsRelease)
	c.refused(t, user, "delete", block, wantsRelease)
	c.refused(t, user, "update", handle("n1"), wantsRelease)
	c.taken(t, user, "update", mirroredBlock("n1", "10-244-80-0-30", "10.244.80.0/30", []any{int64(0), nil, nil, nil}, int64(2), int64(3), int64(1)))
	c.refused(t, user, "create", object(v3API, "IPAMConfiguration", "", "default", map[string]any{"strictAffinity": false}), "strictAffinity")
	c.taken(t, user, "create", object(v3API, "IPAMConfiguration", "", "default", map[string]any{"strictAffinity": true, "maxBlocksPerHost": int64(4)}))
}

// The controller shows addresses of load balancers, and writes nothing that is a node's. Nobody
// takes anything out of these.
func controllerMirrors(t *testing.T, c cluster) {
	own, n1, user := c.as(controllerUser, ""), c.as(agentUser, "n1"), c.Clients.Dynamic
	balancers := func() []*unstructured.Unstructured {
		b := mirroredBlock("", "10-244-82-0-30", "10.244.82.0/30", []any{int64(0), nil, nil, nil}, int64(1), int64(2), int64(3))
		b.Object["spec"].(map[string]any)["affinity"] = "virtual:load-balancer"
		return []*unstructured.Unstructured{b, object(v3API, "IPAMHandle", "", "lb-abc", map[string]any{"handleID": "lb-aBc", "block": map[string]any{"10.244.82.0/30": int64(1)}}),
			object(v3API, "BlockAffinity", "", "load-balancer-10-244-82-0-30", map[string]any{"state": "confirmed", "node": "load-balancer", "type": "virtual", "cidr": "10.244.82.0/30"})}
	}
	for _, u := range balancers() {
		c.refused(t, n1, "create", u, wantsOwn)
		c.refused(t, user, "create", u, wantsRelease)
		c.taken(t, own, "create", u)
		c.taken(t, own, "update", u)
	}
	released := balancers()[0]
	released.Object["spec"].(map[string]any)["allocations"], released.Object["spec"].(map[string]any)["unallocated"] = []any{nil, nil, nil, nil}, []any{int64(1), int64(2), int64(3), int64(0)}
	c.refused(t, user, "update", released, wantsRelease)
	for _, u := range balancers() {
		c.refused(t, user, "delete", u, wantsRelease)
		c.taken(t, own, "delete", u)
	}
	block := mirroredBlock("n1", "10-244-84-0-30", "10.244.84.0/30", []any{nil, nil, nil, nil}, int64(0), int64(1), int64(2), int64(3))
	handle := object(v3API, "IPAMHandle", "", "weir-node.n2", map[string]any{"handleID": "weir-node.n2", "block": map[string]any{}})
	c.refused(t, own, "create", block, wantsBalancers)
	c.refused(t, own, "create", handle, wantsBalancers)
	c.taken(t, n1, "create", block)
	c.refused(t, own, "update", block, wantsBalancers)
	c.refused(t, own, "delete", block, wantsBalancers)
	c.mayNot(t, controllerUser, "patch,deletecollection projectcalico.org/ipamblocks", "patch,deletecollection projectcalico.org/ipamhandles", "patch,deletecollection projectcalico.org/blockaffinities")
}
