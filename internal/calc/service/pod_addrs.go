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

// podAddrs knows which pods have an address, as far as their nodes' claims count (holdings), and
// which ports of nodes pods have. Pods on the host network have no address of their own, and have
// the ports that they name.
type podAddrs struct {
	known   map[model.Name]*knownPod
	claimed map[netip.Addr]*knownPod   // one of the pods that claim an address, whether that counts or not
	others  map[netip.Addr][]*knownPod // the rest of them, where there are several
	held    *cluster.Ownership         // by which they were counted
	local   map[netip.Addr]model.Name  // of this node's interfaces: the API shows a new pod's address late
	ports   map[hostSocket][]podPort
}

// knownPod is a pod with those of its addresses that count: pod.Addrs itself where all do.
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
	return podAddrs{known: map[model.Name]*knownPod{}, claimed: map[netip.Addr]*knownPod{}, others: map[netip.Addr][]*knownPod{},
		local: map[netip.Addr]model.Name{}, ports: map[hostSocket][]podPort{}}
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
func (p *podAddrs) holders(a netip.Addr) iter.Seq[*knownPod] {
	return func(yield func(*knownPod) bool) {
		for k := range p.claimants(a) {
			if slices.Contains(k.addrs, a) && !yield(k) {
				return
			}
		}
	}
}

// claimants yields the pods that claim an address.
func (p *podAddrs) claimants(a netip.Addr) iter.Seq[*knownPod] {
	return func(yield func(*knownPod) bool) {
		if k := p.claimed[a]; k == nil || !yield(k) {
			return
		}
		for _, k := range p.others[a] {
			if !yield(k) {
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
	for k := range p.holders(a) {
		if somebodys = true; k.Name.Namespace == namespace {
			return false
		}
	}
	return somebodys
}

// update takes over what changed. It returns the addresses that came or went with pods, and the
// ports of nodes that did.
func (p *podAddrs) update(c *cluster.View, dirty *model.Dirty) (moved []netip.Addr, ports []socket) {
	put := func(name model.Name, anew bool) {
		before, now := p.known[name], c.Pods[name]
		if now != nil && now.Finished {
			now = nil
		}
		switch {
		case before == nil && now == nil, before != nil && before.Pod == now && !anew:
			return
		case before != nil && !anew && claimsAlike(before.Pod, now):
			before.Pod = now // nothing here turns on the rest, labels for one
			return
		case before != nil:
			p.add(before, false, &moved, &ports)
		}
		if now == nil {
			delete(p.known, name)
			return
		}
		next := &knownPod{Pod: now}
		if !now.HostNetwork {
			anothers := func(a netip.Addr) bool { return !c.Owners.OwnsAddr(c, now, a) }
			if next.addrs = now.Addrs; slices.ContainsFunc(now.Addrs, anothers) {
				next.addrs = slices.DeleteFunc(slices.Clone(now.Addrs), anothers)
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
		for k := range p.claimants(a) {
			out = append(out, k.Name)
		}
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

// claim enters a pod among the claimants of an address, or takes it out.
func (p *podAddrs) claim(a netip.Addr, pod *knownPod, in bool) {
	first := p.claimed[a]
	switch {
	case in && first == nil:
		p.claimed[a] = pod
	case in || first != pod:
		enter(p.others, a, pod, in)
	case len(p.others[a]) == 0:
		delete(p.claimed, a)
	default:
		next := p.others[a][0]
		p.claimed[a] = next
		enter(p.others, a, next, false)
	}
}

// add enters a pod, or takes it out.
func (p *podAddrs) add(pod *knownPod, in bool, moved *[]netip.Addr, ports *[]socket) {
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
		p.claim(a, pod, in)
	}
	*moved = append(*moved, pod.addrs...)
}

// onNode reports whether a pod that is older than a Service's port has the port of a node's
// address.
func (p *podAddrs) onNode(node string, f nodestate.Frontend, than *port) bool {
	return slices.ContainsFunc(p.ports[hostSocket{node, socket{f.Port, f.Proto}}], func(x podPort) bool {
		here := !x.at.IsValid() || x.at == f.Addr || x.at.IsUnspecified() && (x.at.Is6() || f.Addr.Is4())
		return here && cmp.Or(cmp.Compare(x.created, than.created), strings.Compare(x.uid, than.uid)) < 0
	})
}
