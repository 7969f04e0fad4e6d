package calc

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Pods come and go all over the cluster, and most that happens to a pod elsewhere changes at most the
// class of its address. members keeps what is needed to change just that.
type members struct {
	addrs  map[model.Name][]netip.Addr // by which others see a pod
	byAddr map[netip.Addr][]model.Name
	local  map[model.Name]bool // pods that have endpoints here
}

func newMembers(c *cluster, all []*peerPod) *members {
	m := &members{addrs: make(map[model.Name][]netip.Addr, len(all)), byAddr: make(map[netip.Addr][]model.Name, len(all)),
		local: make(map[model.Name]bool, len(c.Local.Endpoints))}
	for _, p := range all {
		m.move(p.pod.Name, p.addrs)
	}
	for _, ep := range c.Local.Endpoints {
		m.local[ep.Pod] = true
	}
	return m
}

// move gives a pod other addresses and returns those that it has or had.
func (m *members) move(name model.Name, addrs []netip.Addr) []netip.Addr {
	affected := slices.Clone(addrs)
	for _, a := range m.addrs[name] {
		affected = append(affected, a)
		of := slices.DeleteFunc(slices.Clone(m.byAddr[a]), func(n model.Name) bool { return n == name })
		if len(of) == 0 {
			delete(m.byAddr, a)
		} else {
			m.byAddr[a] = of
		}
	}
	delete(m.addrs, name)
	if len(addrs) > 0 {
		m.addrs[name] = addrs
	}
	for _, a := range addrs {
		m.byAddr[a] = append(m.byAddr[a], name)
	}
	return affected
}

// follow changes the classes of the addresses of pods elsewhere. It reports false when that is not all
// there is to do: policy must be computed anew, and p is of no use any more.
func (p *policyTables) follow(c *cluster, names map[model.Name]struct{}) bool {
	k := p.classes
	if k == nil { // nothing here is isolated; that may change by pods of ours only
		return !slices.ContainsFunc(slices.Collect(maps.Values(c.Local.Endpoints)), func(ep *model.LocalEndpoint) bool {
			_, ours := names[ep.Pod]
			return ours
		})
	}
	peers := p.peers.Edit()
	for name := range names {
		if k.members.local[name] {
			return false
		}
		var addrs []netip.Addr
		if pod := c.Pods[name]; pod != nil {
			addrs = peerAddrs(c, pod, nil)
		}
		for _, a := range k.members.move(name, addrs) {
			class, ok := k.classOf(c, a)
			if !ok {
				return false
			}
			was := k.peers[a]
			if class == was {
				continue
			}
			if !k.change(&peers, a, was, class) {
				return false
			}
		}
	}
	p.peers = peers.Map()
	return true
}

// change moves an address from a class to another; nil is none. It reports false when a class is left
// without users: it has no place in the tables then.
func (k *classes) change(peers *nodestate.Editor[netip.Addr, nodestate.Class], a netip.Addr, was, now *class) bool {
	if now == nil {
		delete(k.peers, a)
		peers.Delete(a)
	} else {
		k.peers[a] = now
		peers.Set(a, now.id)
		now.users++
	}
	if was != nil {
		was.users--
	}
	return was == nil || was.users > 0
}

// classOf returns the class of an address by the pods that have it now, nil when no selector picks any.
// It reports false when there is no such class yet.
func (k *classes) classOf(c *cluster, a netip.Addr) (*class, bool) {
	var of []int32
	for _, name := range k.members.byAddr[a] {
		pod := c.Pods[name]
		if pod == nil {
			return nil, false // gone too, and not looked at yet
		}
		for n := range k.named {
			for _, number := range ownPorts(pod, n) {
				if _, known := k.intern.byText[namedText(n, number)]; !known {
					return nil, false
				}
			}
		}
		for _, atom := range k.atoms {
			if atom.trueOf(c, pod) && !slices.Contains(of, atom.index) {
				of = append(of, atom.index)
			}
		}
	}
	if len(of) == 0 {
		return nil, true
	}
	class, ok := k.byKey[classKey(k.fold(a, of))]
	return class, ok
}

// trueOf reports whether an atom about pods is true of a pod.
func (a *atom) trueOf(c *cluster, pod *model.Pod) bool {
	switch {
	case a.pods != nil:
		return selects(c, a.pods, pod)
	case a.expr != nil:
		return a.expr.MatchesFunc(podLabels(c, pod))
	case a.named != nil:
		return slices.Contains(ownPorts(pod, *a.named), a.number)
	}
	return false
}

// addrsConcern reports whether the table of addresses may change by these pods: those with an address
// outside the blocks of their node, now or before.
func addrsConcern(c *cluster, have map[netip.Addr]nodestate.Addr, names map[model.Name]struct{}) bool {
	for _, v := range have {
		if _, dirty := names[v.Owner]; dirty && v.Kind == nodestate.AddrPod {
			return true
		}
	}
	blocks := blockIndex(c)
	for name := range names {
		pod := c.Pods[name]
		if pod == nil || pod.Node == c.Local.Node {
			continue
		}
		for _, a := range pod.Addrs {
			if c.carried(a) && outsideBlocks(blocks, pod, a) {
				return true
			}
		}
	}
	return false
}
