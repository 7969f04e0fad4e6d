// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// indexPods keeps pods by address.
func (c *cluster) indexPods(changes map[model.Name]*model.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, now := range changes {
		if before := c.model.Pods[name]; before != nil {
			for _, a := range before.Addrs {
				if c.podsByAddr[a] = slices.DeleteFunc(c.podsByAddr[a], func(p *model.Pod) bool { return p.Name == name }); len(c.podsByAddr[a]) == 0 {
					delete(c.podsByAddr, a)
				}
			}
		}
		if c.isKubeProxy(now) {
			c.proxies[name.String()] = true
		} else {
			delete(c.proxies, name.String())
		}
		if now == nil || now.HostNetwork || now.Finished {
			continue
		}
		for _, a := range now.Addrs {
			c.podsByAddr[a] = append(c.podsByAddr[a], now)
		}
	}
}

// owner returns which pod has an address, and on which node; what other nodes say counts as far as
// it does in the state.
func (c *cluster) owner(a netip.Addr) (model.Name, string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.podsByAddr[a] {
		if !slices.ContainsFunc(c.snap.refused, func(r calc.Refusal) bool { return r.Object == "Pod "+p.Name.String() && r.Value == a.String() }) {
			return p.Name, p.Node, true
		}
	}
	return model.Name{}, "", false
}

// attach adds an endpoint, with its pod where the watch has not brought that yet.
func (c *cluster) attach(ctx context.Context, ep model.LocalEndpoint, pod *watch.AddPod) (uint64, error) {
	return c.change(ctx, func() {
		if pod != nil && !reflect.DeepEqual(c.model.Pods[ep.Pod], pod.Pod) {
			c.indexPods(map[model.Name]*model.Pod{ep.Pod: pod.Pod})
			c.model.Pods[ep.Pod], c.earlyPods[ep.Pod] = pod.Pod, pod.Pod
			c.dirty.AddPod(ep.Pod)
		}
		if pod != nil && pod.Namespace != nil && c.model.Namespaces[ep.Pod.Namespace] == nil {
			c.model.Namespaces[ep.Pod.Namespace] = pod.Namespace
			c.dirty.Add(model.KindNamespaces)
		}
		for _, a := range ep.Addrs {
			c.model.Local.Endpoints[a] = &ep
		}
		c.dirty.Add(model.KindLocal)
	})
}

// detach forgets an endpoint, unless its addresses are another one's by now.
func (c *cluster) detach(ctx context.Context, ep model.LocalEndpoint) (uint64, error) {
	return c.change(ctx, func() {
		for a, have := range maps.Clone(c.model.Local.Endpoints) {
			if have.ContainerID == ep.ContainerID && have.Interface == ep.Interface {
				delete(c.model.Local.Endpoints, a)
				c.dirty.Add(model.KindLocal)
			}
		}
		// A pod that only the ADD knew and that was gone before the watch saw it.
		if guest := c.earlyPods[ep.Pod]; guest != nil && c.model.Pods[ep.Pod] == guest {
			c.indexPods(map[model.Name]*model.Pod{ep.Pod: nil})
			delete(c.model.Pods, ep.Pod)
			delete(c.earlyPods, ep.Pod)
			c.dirty.AddPod(ep.Pod)
		}
	})
}

// has reports whether an endpoint is part of the model as it is given.
func (c *cluster) has(ctx context.Context, ep model.LocalEndpoint) (bool, error) {
	found := len(ep.Addrs) > 0
	err := c.do(ctx, func() {
		for _, a := range ep.Addrs {
			have := c.model.Local.Endpoints[a]
			found = found && have != nil && have.ContainerID == ep.ContainerID && have.IfIndex == ep.IfIndex
		}
	})
	return found, err
}

// cniSettings are the values for new interfaces.
func (c *cluster) cniSettings() cni.Settings {
	s := c.snapshot()
	out := cni.Settings{InterfacePrefix: s.config.Settings.InterfacePrefix, RouteProtocol: podRouteProtocol}
	if s.state != nil {
		out.MTU, out.IPv6 = s.state.Settings.PodMTU, s.state.Settings.IPv6
	}
	return out
}

// podRouteProtocol is deviceRouteProtocol's default: boot.
const podRouteProtocol = 3
