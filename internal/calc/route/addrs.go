// SPDX-License-Identifier: Apache-2.0

package route

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Addrs returns what the node knows of single addresses. One address has one meaning: the node's
// own comes before its endpoints, those before other nodes, those before pods elsewhere.
func Addrs(c *cluster.View, ingress, egress map[netip.Addr]nodestate.Isolation) map[netip.Addr]nodestate.Addr {
	out := make(map[netip.Addr]nodestate.Addr, len(c.Local.HostAddrs)+len(c.Local.Endpoints)+len(c.Nodes)+len(c.Owners.Pods))
	pools := cluster.PoolIndex(c)
	addPodsOutside(c, pools, out)
	addMachines(c, pools, out)
	addFloating(c, pools, out)
	addNodes(c, out)
	for a, ep := range c.Local.Endpoints {
		if !c.Carried(a) {
			continue
		}
		pool, _ := pools.Lookup(a)
		out[a] = nodestate.Addr{
			Kind: nodestate.AddrEndpoint, MAC: ep.MAC, Interface: ep.Interface, IfIndex: ep.IfIndex,
			NATOutgoing: pool != nil && pool.NATOutgoing, Gateways: mustLeaveByGateway(c, ep.Pod), Owner: ep.Pod,
			Ingress: ingress[a], Egress: egress[a],
		}
	}
	own := c.Nodes[c.Local.Node]
	for _, a := range c.Local.HostAddrs {
		if c.Carried(a) {
			primary := own != nil && a == own.AddrLike(a)
			out[a] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: primary, NodePorts: nodePortsAt(c, a, primary)}
		}
	}
	return out
}

func addNodes(c *cluster.View, out map[netip.Addr]nodestate.Addr) {
	for _, n := range c.Nodes {
		if n.Name == c.Local.Node {
			continue
		}
		for _, a := range n.Addrs {
			if !c.Carried(a) {
				continue
			}
			primary := n.AddrLike(a)
			link, _ := linkTo(c, n, primary)
			put(out, a, nodestate.Addr{Kind: nodestate.AddrNode, Node: primary, MAC: n.LinkAddress,
				SameLink: link, Tunnel: a == primary && encryptsHosts(c, n, a.Is6()), NoIPIP: n.NoIPIP && a.Is4(), KeepSource: c.Settings.NATExcludeHostIPs, Owner: model.Name{Name: n.Name},
				NodePorts: nodePortsAt(c, a, a == primary)})
		}
	}
}

// nodePortsAt reports whether node ports answer on an address of a node.
func nodePortsAt(c *cluster.View, a netip.Addr, primary bool) bool {
	return c.Settings.NodePorts.Has(a, primary) && !model.Within(c.Settings.ExcludeFromNAT, a)
}

// Isolate returns the same addresses with the isolation that policy gives to endpoints.
func Isolate(have map[netip.Addr]nodestate.Addr, ingress, egress map[netip.Addr]nodestate.Isolation) map[netip.Addr]nodestate.Addr {
	out := have
	for a, v := range have {
		if v.Kind != nodestate.AddrEndpoint || v.Ingress == ingress[a] && v.Egress == egress[a] {
			continue
		}
		if nodestate.SameMap(out, have) {
			out = maps.Clone(have)
		}
		v.Ingress, v.Egress = ingress[a], egress[a]
		out[a] = v
	}
	return out
}

// addPodsOutside adds the pods of other nodes that have addresses outside the blocks of their node.
func addPodsOutside(c *cluster.View, pools *cluster.Prefixes[*model.Pool], out map[netip.Addr]nodestate.Addr) {
	for a, name := range c.Owners.Pods {
		p := c.Pods.Get(name)
		if p == nil || p.Node == c.Local.Node || !c.Carried(a) {
			continue
		}
		if node, held := c.Owners.ByAddr.Lookup(a); held && node == p.Node {
			continue // its block says as much
		}
		n := c.Nodes[p.Node]
		if n == nil || !n.AddrLike(a).IsValid() {
			continue
		}
		out[a] = podElsewhere(c, pools, n, a, name)
	}
}

// addMachines adds the addresses of virtual machines on other nodes.
func addMachines(c *cluster.View, pools *cluster.Prefixes[*model.Pool], out map[netip.Addr]nodestate.Addr) {
	for a, b := range c.Owners.Machines() {
		if n := c.Nodes[b.Node]; n != nil && b.Node != c.Local.Node && c.Carried(a) && n.AddrLike(a).IsValid() {
			out[a] = podElsewhere(c, pools, n, a, b.VM.Name)
		}
	}
}

// addFloating adds the floating addresses of other nodes' pods: packets to them go to the pod's
// node, which has no such address itself.
func addFloating(c *cluster.View, pools *cluster.Prefixes[*model.Pool], out map[netip.Addr]nodestate.Addr) {
	for a, f := range c.EachFloating() {
		if n := c.Nodes[f.Node]; n != nil && f.Node != c.Local.Node && n.AddrLike(a).IsValid() {
			out[a] = podElsewhere(c, pools, n, a, f.Pod)
		}
	}
}

// podElsewhere is an address by which a pod of another node is reached.
func podElsewhere(c *cluster.View, pools *cluster.Prefixes[*model.Pool], n *model.Node, a netip.Addr, name model.Name) nodestate.Addr {
	node := n.AddrLike(a)
	pool, _ := pools.Lookup(a)
	link, encrypted := linkTo(c, n, node)
	through := encrypted || tunnelled(c, pool, link)
	return nodestate.Addr{Kind: nodestate.AddrPod, Node: node, SameLink: link, Tunnel: through, IPIP: toByIPIP(c, pool, n, link), Learned: learned(c, link, through) || c.Settings.Chained && !through, Owner: name}
}

// Floating returns the pods' own addresses that floating ones lead to.
func Floating(c *cluster.View) map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for a, f := range c.EachFloating() {
		out[a] = f.To
	}
	return out
}

// put stores v unless an address of the same kind with a smaller owner is there.
func put(out map[netip.Addr]nodestate.Addr, a netip.Addr, v nodestate.Addr) {
	if have, ok := out[a]; ok && have.Kind == v.Kind && table.CompareNames(have.Owner, v.Owner) <= 0 {
		return
	}
	out[a] = v
}

// Clients returns the addresses behind the network namespaces of this node's pods: of several in
// one family the smallest.
func Clients(c *cluster.View) map[uint64]nodestate.Client {
	out := make(map[uint64]nodestate.Client, len(c.Local.Endpoints))
	for a, ep := range c.Local.Endpoints {
		if !c.Carried(a) || ep.NetnsCookie == 0 {
			continue
		}
		client := out[ep.NetnsCookie]
		if have := client.Of(a); !have.IsValid() || a.Less(have) {
			out[ep.NetnsCookie] = client.With(a)
		}
	}
	return out
}

// Held returns the interfaces of pods of which nothing is known yet, of those that stand by, and of
// those whose addresses are all of a family that the node does not carry, by index: their names.
func Held(c *cluster.View) map[int]string {
	out := make(map[int]string, len(c.Local.Held)+len(c.StandBy))
	maps.Copy(out, c.StandBy)
	if !c.Settings.Chained {
		return out
	}
	maps.Copy(out, c.Local.Held)
	for _, ep := range c.Local.Endpoints {
		if !slices.ContainsFunc(ep.Addrs, c.Carried) {
			out[ep.IfIndex] = ep.Interface
		}
	}
	return out
}
