// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
)

// podClaims are the addresses of pods that more than the block of their node decides on: those that
// no block of their node holds, and the special ones (holdings.special).
type podClaims struct {
	of map[model.Name]podClaim
	at map[netip.Addr][]model.Name
}

// podClaim is a pod with those of its addresses that are to be decided.
type podClaim struct {
	pod   *model.Pod
	addrs []netip.Addr
}

// specialOf returns which addresses are decided by more than blocks.
func specialOf(c *model.Cluster) func(netip.Addr) bool {
	nodes := map[netip.Addr]bool{}
	for _, n := range c.Nodes {
		for _, a := range n.Addrs {
			nodes[a] = true
		}
	}
	reserved := NewPrefixes[struct{}]()
	for _, p := range c.Reservations {
		if p.IsValid() {
			reserved.Set(p, struct{}{})
		}
	}
	return func(a netip.Addr) bool {
		_, is := reserved.Lookup(a)
		return is || nodes[a]
	}
}

// rebuild looks at every pod.
func (x *podClaims) rebuild(c *model.Cluster, h *Ownership) {
	x.of, x.at = map[model.Name]podClaim{}, map[netip.Addr][]model.Name{}
	for r := range c.Pods.Refs() {
		x.enter(r, h)
	}
}

// update looks at pods that changed, and reports whether anything is to be decided again.
func (x *podClaims) update(c *model.Cluster, h *Ownership, names map[model.Name]*model.Pod) bool {
	changed := false
	for name := range names {
		was, had := x.of[name]
		for _, a := range was.addrs {
			if x.at[a] = slices.DeleteFunc(x.at[a], func(n model.Name) bool { return n == name }); len(x.at[a]) == 0 {
				delete(x.at, a)
			}
		}
		delete(x.of, name)
		changed = changed || had
		if r, ok := c.Pods.Ref(name); ok {
			changed = x.enter(r, h) || changed
		}
	}
	return changed
}

// enter notes what is to be decided of a pod, and reports whether there is anything.
func (x *podClaims) enter(r model.PodRef, h *Ownership) bool {
	like, at := r.Like(), r.Node()
	if like.HostNetwork || like.Finished || at == "" {
		return false
	}
	undecided := func(a netip.Addr) bool {
		node, held := h.ByAddr.Lookup(a)
		return !held || node != at || h.special(a)
	}
	some := false
	for a := range r.Addrs() {
		some = some || undecided(a)
	}
	if !some {
		return false
	}
	p := r.Pod()
	var addrs []netip.Addr
	for i, a := range p.Addrs {
		if b := h.MachineAt(a); b != nil && b.VM.IsFor(p.UID) {
			continue // it stands by
		}
		if undecided(a) && !slices.Contains(p.Addrs[:i], a) {
			addrs = append(addrs, a)
			x.at[a] = append(x.at[a], p.Name)
		}
	}
	if len(addrs) == 0 {
		return false
	}
	x.of[p.Name] = podClaim{p, addrs}
	return true
}

// resolve returns which pods have the addresses that are to be decided: of those with a title the
// one whose node's block holds it, else the oldest.
func (x *podClaims) resolve(c *model.Cluster, h *Ownership) (map[netip.Addr]model.Name, []Refusal) {
	out := make(map[netip.Addr]model.Name, len(x.at))
	if len(x.at) == 0 {
		return out, nil
	}
	pools := PoolIndex(&View{Cluster: c})
	var first map[netip.Addr]*model.Node
	if c.Settings.WorkloadRoutes {
		first = firstNodes(c)
	}
	var refused []Refusal
	for a, names := range x.at {
		var owner *model.Pod
		why := make([]string, len(names))
		for i, name := range names {
			p := x.of[name].pod
			if why[i] = rejectPodAddr(c, h, pools, first, p, a); why[i] == "" && (owner == nil || firstPod(h, a, p, owner) < 0) {
				owner = p
			}
		}
		if owner != nil {
			out[a] = owner.Name
		}
		for i, name := range names {
			if why[i] == "" && owner.Name != name {
				why[i] = fmt.Sprintf("is the address of pod %s on node %s, whose claim comes first", owner.Name, owner.Node)
			}
			if p := x.of[name].pod; why[i] != "" && p.Node != c.Local.Node {
				refused = append(refused, Refusal{Object: "Pod " + name.String(), Field: "status.podIPs", Value: a.String(), Why: why[i], Node: p.Node})
			}
		}
	}
	return out, refused
}

// rejectPodAddr says why an address cannot be a pod's, "" when it can be. first are the nodes that
// claimed addresses first, with routeSource WorkloadIPs.
func rejectPodAddr(c *model.Cluster, h *Ownership, pools *Prefixes[*model.Pool], first map[netip.Addr]*model.Node, p *model.Pod, a netip.Addr) string {
	node, held := h.ByAddr.Lookup(a)
	if held && node == p.Node {
		return ""
	}
	_, inPool := pools.Lookup(a)
	switch {
	case !inPool:
		return "lies in no IPPool"
	case ofMachine(c, a):
		return "is an address of node " + c.Local.Node
	case ofService(c, a):
		return "is in a range of cluster IPs"
	case slices.Contains(p.Asked, a) && model.Within(c.Reservations, a):
		return ""
	case !held && c.Settings.WorkloadRoutes:
		return ofNetwork(c, first[a], p, a)
	case held:
		return "lies in a block of " + node + ", and no IPReservation grants it"
	}
	return "lies in no block of the pod's node"
}

// firstPod compares two pods that claim an address. A block is the better title than a reservation:
// what a pod asks for, and what its status says, its node may have written long after it was made.
func firstPod(h *Ownership, at netip.Addr, a, b *model.Pod) int {
	if node, held := h.ByAddr.Lookup(at); held && (a.Node == node) != (b.Node == node) {
		if a.Node == node {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.UID, b.UID), table.CompareNames(a.Name, b.Name))
}

// ofMachine reports whether an address is this machine's own.
func ofMachine(c *model.Cluster, a netip.Addr) bool { return slices.Contains(c.Local.HostAddrs, a) }

// ofNetwork says whose an address is that a pod has by its status alone, "" when it may be the
// pod's. A pool of another CNI plugin's may be the network that nodes and API servers are in: what
// these have is nobody's pod, unless a Node that was there before came to claim it when the pod
// had it. n is the node that claimed it first, nil = none.
func ofNetwork(c *model.Cluster, n *model.Node, p *model.Pod, a netip.Addr) string {
	switch {
	case n != nil && (n.Since[a] == 0 || n.ClaimedAt(a) <= p.Created):
		return "is the address of node " + n.Name
	case slices.Contains(c.Local.Gateways, a):
		return "is a gateway of node " + c.Local.Node
	case ofServer(c, a):
		return "is the address of an API server"
	}
	return ""
}

// ofServer reports whether an API server has an address, by the cluster or as this node reaches it.
func ofServer(c *model.Cluster, a netip.Addr) bool {
	if slices.ContainsFunc(c.Local.APIServers, func(at netip.AddrPort) bool { return at.Addr().Unmap() == a }) {
		return true
	}
	sl := APIServersOf(c)
	return sl != nil && slices.ContainsFunc(sl.Endpoints, func(e model.ServiceEndpoint) bool { return slices.Contains(e.Addrs, a) })
}

// ofService reports whether an address is in a range of cluster IPs.
func ofService(c *model.Cluster, a netip.Addr) bool { return model.Within(c.ServiceCIDRs, a) }

// holder returns the pod that has an address by a block of its node, among those whose addresses
// were to be decided.
func (x *podClaims) holder(h *Ownership, a netip.Addr) *model.Pod {
	node, held := h.ByAddr.Lookup(a)
	if name, ok := h.Pods[a]; ok && held {
		if p := x.of[name].pod; p != nil && p.Node == node {
			return p
		}
	}
	return nil
}
