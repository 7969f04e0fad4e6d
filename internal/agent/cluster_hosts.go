package agent

import (
	"cmp"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// hostEndpointsOf returns a node's host endpoints, by name.
func hostEndpointsOf(c *model.Cluster, node string) []*model.HostEndpoint {
	var out []*model.HostEndpoint
	for _, h := range c.HostEndpoints {
		if h.Node == node {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b *model.HostEndpoint) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
