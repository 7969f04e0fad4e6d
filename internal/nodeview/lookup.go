// SPDX-License-Identifier: Apache-2.0

package nodeview

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

// HasNode reports whether the cluster has a Node.
func (x *Index) HasNode(name string) bool { return x.c.Nodes[name] != nil }

// PodOn returns the pod that the API places on a node and that has a UID.
func (x *Index) PodOn(node, uid string) (model.Name, bool) {
	for name := range x.on[node] {
		if x.pods[name].pod.UID == uid {
			return name, true
		}
	}
	return model.Name{}, false
}

// OwnerOf returns the pod that has an address: of several that claim it, one to whose node's block
// it belongs. The zero name says that there is none.
func (x *Index) OwnerOf(a netip.Addr) (of model.Name) {
	for name := range x.claims[a] {
		if of == (model.Name{}) || x.owners.ByBlock(x.pods[name].pod.Node, a) {
			of = name
		}
	}
	return of
}

// Placed returns the node that the API places a pod on; empty = none, or the pod is not known.
func (x *Index) Placed(name model.Name) string {
	if e := x.pods[name]; e != nil {
		return e.pod.Node
	}
	return ""
}
