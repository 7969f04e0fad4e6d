// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	wantsOwn     = "may write only what belongs to this node"
	wantsRelease = "allocations may be taken out"
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
