// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// noteProxies keeps which pods of a kube-proxy this node has.
func (c *cluster) noteProxies(changes map[model.Name]*model.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, now := range changes {
		if c.isKubeProxy(now) {
			c.proxies[name.String()] = true
		} else {
			delete(c.proxies, name.String())
		}
	}
}

// noteUnfitPods has events written about pods of this node of which something else than before is
// not in force as it is written.
func (c *cluster) noteUnfitPods(before, now []weirv1.Problem) {
	was := problemsOfPods(before)
	for name, found := range problemsOfPods(now) {
		if p := c.model.Pods.Get(name); p != nil && p.Node == c.node && !slices.Equal(was[name], found) {
			c.unfitPod(name, p.UID, found)
		}
	}
}

// problemsOfPods returns those of each pod.
func problemsOfPods(all []weirv1.Problem) map[model.Name][]weirv1.Problem {
	out := map[model.Name][]weirv1.Problem{}
	for _, p := range all {
		rest, is := strings.CutPrefix(p.Object, "Pod ")
		namespace, pod, ok := strings.Cut(rest, "/")
		if is && ok {
			name := model.Name{Namespace: namespace, Name: pod}
			out[name] = append(out[name], p)
		}
	}
	return out
}

// putPod stores what a pod is, nil when it is gone, before the watch says so.
func (c *cluster) putPod(name model.Name, now *model.Pod) {
	c.mu.Lock()
	ch := model.Changes{Pods: map[model.Name]*model.Pod{name: now}}
	c.dirty.Merge(ch.Apply(c.model))
	c.mu.Unlock()
	c.noteProxies(ch.Pods)
}

// owner returns which pod has an address, and on which node; what other nodes say counts as far as
// it does in the state.
func (c *cluster) owner(a netip.Addr) (model.Name, string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.model.Pods.At(a) {
		name := r.Name()
		if !slices.ContainsFunc(c.snap.refused, func(r calc.Refusal) bool { return r.Object == "Pod "+name.String() && r.Value == a.String() }) {
			return name, r.Node(), true
		}
	}
	return model.Name{}, "", false
}

// attach adds an endpoint, with its pod where the watch has not brought that yet.
func (c *cluster) attach(ctx context.Context, ep model.LocalEndpoint, pod *watch.AddPod) (uint64, error) {
	return c.change(ctx, func() {
		if pod != nil {
			if have := c.model.Pods.Get(ep.Pod); have == nil || !have.Equal(pod.Pod) {
				c.putPod(ep.Pod, pod.Pod)
				c.earlyPods[ep.Pod] = pod.Pod
			}
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
		if c.earlyPods[ep.Pod] != nil { // the watch takes it from there
			c.putPod(ep.Pod, nil)
			delete(c.earlyPods, ep.Pod)
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

// settings are those in force.
func (c *cluster) settings() *model.Settings {
	s := c.snapshot()
	return &s.config.Settings
}

// hasIPv4 reports whether the node has an address of IPv4, as far as that is known.
func (c *cluster) hasIPv4() bool {
	s := c.snapshot()
	return s.state == nil || s.state.Settings.Node.IsValid()
}

// podRouteProtocol is deviceRouteProtocol's default: boot.
const podRouteProtocol = 3
