// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/weir-net/weir/internal/model"
)

// noteNodePods keeps which pods this node has, where another CNI plugin makes their interfaces.
func (c *cluster) noteNodePods(changes map[model.Name]*model.Pod) {
	if c.chain == nil {
		return
	}
	for name, now := range changes {
		_, was := c.nodePods[name]
		delete(c.nodePods, name)
		is := now != nil && now.Node == c.node && !now.HostNetwork && !now.Finished
		if is {
			c.nodePods[name] = now
		}
		if was || is {
			c.dirty.Add(model.KindLocal)
		}
	}
}

// findEndpoints looks for the interfaces of this node's pods. An address that two pods have is the
// younger one's: that of the other was given again before the API server removed that pod.
func (c *cluster) findEndpoints() {
	younger := func(a, b *model.Pod) int {
		return cmp.Or(cmp.Compare(b.Created, a.Created), strings.Compare(a.UID, b.UID))
	}
	pods := map[netip.Addr]*model.Pod{}
	for _, p := range c.nodePods {
		for _, a := range p.Addrs {
			if have := pods[a]; have == nil || younger(p, have) < 0 {
				pods[a] = p
			}
		}
	}
	names := make(map[netip.Addr]model.Name, len(pods))
	for a, p := range pods {
		names[a] = p.Name
	}
	found := c.chain.Find(c.model.Settings.InterfacePrefix, names)
	c.model.Local.Endpoints, c.model.Local.Held = found.Endpoints, found.Held
}
