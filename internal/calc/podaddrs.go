package calc

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// hostSocket is a port of one node.
type hostSocket struct {
	node string
	socket
}

// podAddrs tells which pods have an address, and which ports of nodes pods have. Pods on the host network have no address
// of their own, and have the ports that they name.
type podAddrs struct {
	known map[model.Name]*model.Pod
	at    map[netip.Addr][]model.Name
	local map[netip.Addr]model.Name // of this node's interfaces: the API shows a new pod's address late
	ports map[hostSocket]int
}

func newPodAddrs() podAddrs {
	return podAddrs{known: map[model.Name]*model.Pod{}, at: map[netip.Addr][]model.Name{}, local: map[netip.Addr]model.Name{}, ports: map[hostSocket]int{}}
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

// follow takes over what changed. It returns the addresses that came or went with pods, and the ports of nodes that did.
func (p *podAddrs) follow(c *cluster, dirty *Dirty) (moved []netip.Addr, ports []socket) {
	put := func(name model.Name) {
		before, now := p.known[name], c.Pods[name]
		if now != nil && now.Finished {
			now = nil
		}
		if before == now {
			return
		}
		p.add(before, -1, &moved, &ports)
		p.add(now, 1, &moved, &ports)
		if now == nil {
			delete(p.known, name)
		} else {
			p.known[name] = now
		}
	}
	if dirty.Has(model.KindPods) {
		for name := range p.known {
			put(name)
		}
		for name := range c.Pods {
			put(name)
		}
	}
	for name := range dirty.Pods {
		put(name)
	}
	if dirty.Has(model.KindLocal) {
		p.followLocal(c, &moved)
	}
	return moved, ports
}

func (p *podAddrs) followLocal(c *cluster, moved *[]netip.Addr) {
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

// add counts a pod in or out.
func (p *podAddrs) add(pod *model.Pod, n int, moved *[]netip.Addr, ports *[]socket) {
	if pod == nil {
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
		if p.ports[at] += n; p.ports[at] == 0 {
			delete(p.ports, at)
		}
		*ports = append(*ports, at.socket)
	}
	if pod.HostNetwork {
		return
	}
	for _, a := range pod.Addrs {
		if n > 0 {
			p.at[a] = append(p.at[a], pod.Name)
		} else if i := slices.Index(p.at[a], pod.Name); i >= 0 {
			p.at[a] = slices.Delete(p.at[a], i, i+1)
		}
		if len(p.at[a]) == 0 {
			delete(p.at, a)
		}
		*moved = append(*moved, a)
	}
}

// onNode reports whether a pod has the port of a node's address.
func (p *podAddrs) onNode(node string, f nodestate.Frontend) bool {
	return p.ports[hostSocket{node, socket{f.Port, f.Proto}}] > 0
}
