// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/agent/chain"
	"github.com/weir-net/weir/internal/agent/chain/results"
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

// findEndpoints looks for the interfaces of this node's pods.
func (c *cluster) findEndpoints() {
	var given map[netip.Addr]results.Record
	if c.results != nil {
		given = c.results.Owners()
	}
	found := c.chain.Find(c.model.Settings.InterfacePrefix, podsByAddr(c.nodePods, given))
	c.model.Local.Endpoints, c.model.Local.Held = found.Endpoints, found.Held
}

// podsByAddr says which pod has an address: that to which a CNI plugin gave it last. Where that is
// not known the API says so, and of two pods it is the younger one's: that of the other was given
// again before the API server removed that pod.
func podsByAddr(all map[model.Name]*model.Pod, given map[netip.Addr]results.Record) map[netip.Addr]model.Name {
	younger := func(a, b *model.Pod) int {
		return cmp.Or(cmp.Compare(b.Created, a.Created), strings.Compare(a.UID, b.UID))
	}
	pods := map[netip.Addr]*model.Pod{}
	for _, p := range all {
		for _, a := range p.Addrs {
			if have := pods[a]; have == nil || younger(p, have) < 0 {
				pods[a] = p
			}
		}
	}
	for a, r := range given {
		if p := all[r.Pod]; p != nil && (r.UID == p.UID || r.UID == "" && r.When.Unix() >= p.Created) {
			pods[a] = p
		}
	}
	names := make(map[netip.Addr]model.Name, len(pods))
	for a, p := range pods {
		names[a] = p.Name
	}
	return names
}

// hold returns when policy is in force for a pod that the container runtime starts and whose
// interface another CNI plugin made. addrs may be empty: results of CNI plugins say them.
func (e *enforcer) hold(ctx context.Context, pod model.Name, uid string, addrs []netip.Addr) error {
	if p, err := e.pods.PodForAdd(ctx, pod, uid); err != nil || p.Pod.HostNetwork {
		return err
	}
	if e.cluster.chain != nil { // a plugin that has ended may have made more than one interface
		different, err := e.cluster.chain.Read()
		if err != nil {
			return err
		}
		if different {
			e.cluster.noteLocal()
		}
	}
	for {
		var gen uint64
		var eps []*model.LocalEndpoint
		if err := e.cluster.do(ctx, func() {
			e.cluster.compute()
			if len(addrs) == 0 {
				addrs = e.cluster.results.AddrsOf(pod, uid)
			}
			gen, eps = e.cluster.gen, chain.EndpointsOf(e.cluster.model.Local.Endpoints, pod, addrs)
		}); err != nil {
			return err
		}
		for _, ep := range eps {
			if err := e.loop.Wait(ctx, gen, concerning(*ep)); err != nil {
				return err
			}
			if err := e.driver.Enforced(*ep); err != nil {
				return err
			}
		}
		if len(eps) > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("its interface is not known: %w", ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}
