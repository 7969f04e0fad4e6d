// SPDX-License-Identifier: Apache-2.0

package route

import (
	"net/netip"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
)

// InputsSources are the kinds that Sources is made from, apart from single pods.
const InputsSources = model.KindPods | model.KindLocal | model.KindSettings | model.KindNamespaces

// ChangesSources reports whether one of some pods, which are given as they were, asks for prefixes
// now or did.
func ChangesSources(c *cluster.View, pods map[model.Name]*model.Pod) bool {
	if !c.Settings.SourceSpoofing {
		return false
	}
	for name, was := range pods {
		if was != nil && len(was.Sources) > 0 || len(c.Pods.Sources(name)) > 0 {
			return true
		}
	}
	return false
}

// Sources returns the prefixes that pods of the node may send from beside their own addresses:
// those that they ask for and their namespaces grant. A pod that leaves the cluster by egress
// gateways has none: what it sends has a gateway's address outside, or does not leave.
func Sources(c *cluster.View) map[netip.Addr][]netip.Prefix {
	out := map[netip.Addr][]netip.Prefix{}
	if !c.Settings.SourceSpoofing || c.Settings.Chained {
		return out
	}
	for a, ep := range c.Local.Endpoints {
		if !c.Carried(a) || mustLeaveByGateway(c, ep.Pod) {
			continue
		}
		namespace := c.Namespaces[ep.Pod.Namespace]
		for _, p := range c.Pods.Sources(ep.Pod) {
			if p.Addr().Is4() == a.Is4() && namespace.Grants(p) {
				out[a] = append(out[a], p)
			}
		}
	}
	return out
}
