// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"iter"
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

// podAddrs knows which pods have an address, as far as their nodes' claims count (Ownership), and
// which ports of nodes pods have. Pods on the host network have no address of their own, and have
// the ports that they name.
type podAddrs struct {
	c     *cluster.View             // as it was taken over last
	local map[netip.Addr]model.Name // of this node's interfaces: the API shows a new pod's address late
	ports map[hostSocket][]podPort
}

// podPort is a pod that has a port of its node: at one address, or at all where there is none.
type podPort struct {
	pod     model.Name
	created int64
	uid     string
	at      netip.Addr
}

func newPodAddrs() podAddrs {
	return podAddrs{local: map[netip.Addr]model.Name{}, ports: map[hostSocket][]podPort{}}
}

// has reports whether an address is a pod's.
func (p *podAddrs) has(a netip.Addr) bool {
	if _, here := p.local[a]; here {
		return true
	}
	for range p.holders(a) {
		return true
	}
	return false
}

// holders yields the pods whose claim of an address counts.
func (p *podAddrs) holders(a netip.Addr) iter.Seq[model.PodRef] {
	return func(yield func(model.PodRef) bool) {
		if p.c == nil {
			return
		}
		for r := range p.c.Pods.At(a) {
			if p.c.Owners.OwnsAddr(p.c, r, a) && !yield(r) {
				return
			}
		}
	}
}

// foreign reports whether an address is a pod's, and no pod of the namespace has it.
func (p *podAddrs) foreign(namespace string, a netip.Addr) bool {
	owner, somebodys := p.local[a]
	if somebodys && owner.Namespace == namespace {
		return false
	}
	for r := range p.holders(a) {
		if somebodys = true; r.Like().Name.Namespace == namespace {
			return false
		}
	}
	return somebodys
}

// update takes over what changed, and marks in dirty what is to be looked at again as a whole. It
// returns the addresses that may have come or gone with pods, and the ports of nodes that did.
func (p *podAddrs) update(c *cluster.View, dirty *model.Dirty) (moved []netip.Addr, ports []socket) {
	before := p.c
	p.c = c
	anew := dirty.Has(model.KindPods)
	if anew {
		dirty.Add(model.KindServices) // nobody says which addresses were pods'
		for at := range p.ports {
			ports = append(ports, at.socket)
		}
		clear(p.ports)
		for g := range c.Pods.Groups() {
			if len(g.Like.Ports) > 0 {
				for r := range g.Refs() {
					p.enterPorts(r.Pod(), true, &ports)
				}
			}
		}
	}
	for name, was := range dirty.Pods {
		now := c.Pods.Get(name)
		if claimsAlike(was, now) {
			continue // nothing here turns on the rest, labels for one
		}
		for i, pod := range []*model.Pod{was, now} {
			if pod == nil || pod.Finished {
				continue
			}
			if !pod.HostNetwork {
				moved = append(moved, pod.Addrs...)
			}
			if !anew {
				p.enterPorts(pod, i == 1, &ports)
			}
		}
	}
	if before != nil && before.Owners != c.Owners {
		c.Owners.EachChange(before.Owners, func(at netip.Prefix) { moved = slices.AppendSeq(moved, c.Pods.AddrsIn(at)) })
	}
	if dirty.Has(model.KindLocal) {
		p.updateLocal(c, &moved)
	}
	return moved, ports
}

// claimsAlike reports whether two values of a pod have the same addresses, and the same ports of
// the same node.
func claimsAlike(a, b *model.Pod) bool {
	return a != nil && b != nil && a.Finished == b.Finished && a.Node == b.Node && a.HostNetwork == b.HostNetwork && a.Created == b.Created && a.UID == b.UID &&
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

// enterPorts enters the ports of its node that a pod has, or takes them out.
func (p *podAddrs) enterPorts(pod *model.Pod, in bool, ports *[]socket) {
	if pod.Finished || pod.Node == "" {
		return
	}
	for i := range pod.Ports {
		pp := &pod.Ports[i]
		at := hostSocket{pod.Node, socket{pp.HostPort, pp.Protocol}}
		if pod.HostNetwork {
			at.port = pp.Port
		}
		if at.port == 0 || pp.HostIP.IsValid() && pp.HostIP.IsLoopback() {
			continue
		}
		enter(p.ports, at, podPort{pod.Name, pod.Created, pod.UID, pp.HostIP}, in)
		*ports = append(*ports, at.socket)
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
