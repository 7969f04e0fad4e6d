// SPDX-License-Identifier: Apache-2.0

package route

import (
	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// InputsQoS are the kinds that QoS is made from, apart from single pods.
const InputsQoS = model.KindPods | model.KindLocal

// ChangesQoS reports whether one of some pods, which are given as they were, is limited now or was.
func ChangesQoS(c *cluster.View, pods map[model.Name]*model.Pod) bool {
	for name, was := range pods {
		if was != nil && was.QoS != nil {
			return true
		}
		if now := c.Pods.QoS(name); now != nil {
			return true
		}
	}
	return false
}

// QoS returns how much the pods of the node may send and get, by their interfaces.
func QoS(c *cluster.View) map[string]nodestate.QoS {
	out := map[string]nodestate.QoS{}
	for _, ep := range c.Local.Endpoints {
		if ep.Interface == "" {
			continue
		}
		if q := c.Pods.QoS(ep.Pod); q != nil {
			out[ep.Interface] = nodestate.QoS{IfIndex: ep.IfIndex, Owner: ep.Pod, QoS: *q}
		}
	}
	return out
}
