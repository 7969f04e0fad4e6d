// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// hostSocket is a port of one node.
type hostSocket struct {
	node string
	socket
}

// podAddrs knows which pods have an address, as far as their nodes' claims count (holdings), and
// which ports of nodes pods have. Pods on the host network have no address of their own, and have
// the ports that they name.
type podAddrs struct {
	known   map[model.Name]knownPod
	at      map[netip.Addr][]model.Name
	claimed map[netip.Addr][]model.Name // the same with those that do not count
	held    *cluster.Ownership          // by which they were counted
	local   map[netip.Addr]model.Name   // of this node's interfaces: the API shows a new pod's address late
	ports   map[hostSocket][]podPort
}

// knownPod is a pod with those of its addresses that count.
type knownPod struct {
	*model.Pod
	addrs []netip.Addr
}

// podPort is a pod that has a port of its node: at one address, or at all where there is none.
type podPort struct {
	pod     model.Name
	created int64
	uid     string
	at      netip.Addr
}

func newPodAddrs() podAddrs {
	return podAddrs{known: map[model.Name]knownPod{}, at: map[netip.Addr][]model.Name{}, claimed: map[netip.Addr][]model.Name{}, local: map[netip.Addr]model.Name{}, ports: map[hostSocket][]podPort{}}
}

// has reports whether an address is a pod's.
func (p *podAddrs) has(a netip.Addr) bool {
	_, here := p.local[a]
	return here || len(p.at[a]) > 0
}

// foreign reports whether an address is a pod's, and no pod of the namespace has it.
func (p *podAddrs) foreign(namespace string, a netip.Addr) bool {
	owner, here := p.local[a]
	mine := func(n model.Name) bool { return n.Namespace == namespace }
	return p.has(a) && !(here && mine(owner)) && !slices.ContainsFunc(p.at[a], mine)
}

// update takes over what changed. It returns the addresses that came or went with pods, and the
// ports of nodes that did.
func (p *podAddrs) update(c *cluster.View, dirty *model.Dirty) (moved []netip.Addr, ports []socket) {
	put := func(name model.Name, anew bool) {
		before, now := p.known[name], c.Pods[name]
		if now != nil && now.Finished {
			now = nil
		}
		if before.Pod == now && !anew {
			return
		}
		if !anew && claimsAlike(before.Pod, now) {
			before.Pod = now // nothing here turns on the rest, labels for one
			p.known[name] = before
			return
		}
		p.add(before, false, &moved, &ports)
		if now == nil {
			delete(p.known, name)
			return
		}
		next := knownPod{Pod: now}
		if !now.HostNetwork {
			for _, a := range now.Addrs {
				if c.Owners.OwnsAddr(c, now, a) {
					next.addrs = append(next.addrs, a)
				}
			}
		}
		p.add(next, true, &moved, &ports)
		p.known[name] = next
	}
	if dirty.Has(model.KindPods) {
		for name := range p.known {
			put(name, false)
		}
		for name := range c.Pods {
			put(name, false)
		}
	}
	for name := range dirty.Pods {
		put(name, false)
	}
	if was := p.held; was != nil && was != c.Owners {
		c.Owners.EachChange(was, func(at netip.Prefix) {
			for _, name := range p.claimantsIn(at) {
				put(name, true)
			}
		})
	}
	p.held = c.Owners
	if dirty.Has(model.KindLocal) {
		p.updateLocal(c, &moved)
	}
	return moved, ports
}

// claimsAlike reports whether two values of a pod have the same addresses, and the same ports of
// the same node.
func claimsAlike(a, b *model.Pod) bool {
	return a != nil && b != nil && a.Node == b.Node && a.HostNetwork == b.HostNetwork && a.Created == b.Created && a.UID == b.UID &&
		slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Ports, b.Ports)
}

func (p *podAddrs) updateLocal(c *cluster.View, moved *[]netip.Addr) {
	for a := range p.local {
		if c.Local.Endpoints[a] == nil {
			delete(p.local, a)
			*moved = append(*moved, a)
		}
	}
	for a, ep := range c.Local.Endpoints {
		if had, is := p.local[a]; !is || had != ep.Pod {
			p.local[a] = ep.Pod
			*moved = append(*moved, a)
		}
	}
}

// claimantsIn returns the pods that claim an address of a network.
func (p *podAddrs) claimantsIn(at netip.Prefix) (out []model.Name) {
	for a := range cluster.AddrsIn(p.claimed, at) {
		out = append(out, p.claimed[a]...)
	}
	return out
}

// enter puts a value into a list of an index, or takes one out.
func enter[K, V comparable](index map[K][]V, k K, v V, in bool) {
	if in {
		index[k] = append(index[k], v)
	} else if i := slices.Index(index[k], v); i >= 0 {
		index[k] = slices.Delete(index[k], i, i+1)
	}
	if len(index[k]) == 0 {
		delete(index, k)
	}
}

// add enters a pod, or takes it out; pod.Pod may be nil.
func (p *podAddrs) add(pod knownPod, in bool, moved *[]netip.Addr, ports *[]socket) {
	if pod.Pod == nil {
		return
	}
	for i := range pod.Ports {
		pp := &pod.Ports[i]
		at := hostSocket{pod.Node, socket{pp.HostPort, pp.Protocol}}
		if pod.HostNetwork {
			at.port = pp.Port
		}
		if at.port == 0 || pod.Node == "" || pp.HostIP.IsValid() && pp.HostIP.IsLoopback() {
			continue
		}
		enter(p.ports, at, podPort{pod.Name, pod.Created, pod.UID, pp.HostIP}, in)
		*ports = append(*ports, at.socket)
	}
	if pod.HostNetwork {
		return
	}
	for _, a := range pod.Addrs {
		enter(p.claimed, a, pod.Name, in)
	}
	for _, a := range pod.addrs {
		enter(p.at, a, pod.Name, in)
		*moved = append(*moved, a)
	}
}

// onNode reports whether a pod that is older than a Service's port has the port of a node's
// address.
func (p *podAddrs) onNode(node string, f nodestate.Frontend, than *port) bool {
	return slices.ContainsFunc(p.ports[hostSocket{node, socket{f.Port, f.Proto}}], func(x podPort) bool {
		here := !x.at.IsValid() || x.at == f.Addr || x.at.IsUnspecified() && (x.at.Is6() || f.Addr.Is4())
		return here && cmp.Or(cmp.Compare(x.created, than.created), strings.Compare(x.uid, than.uid)) < 0
	})
}
