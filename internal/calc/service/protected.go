// SPDX-License-Identifier: Apache-2.0

package service

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Whoever may write Services of a namespace names addresses and ports of anybody. What nodes need
// to stay in the cluster, and what is somebody else's, is refused here, before it becomes a
// frontend or a backend.

// socket is a port of a protocol.
type socket struct {
	port  uint16
	proto model.Protocol
}

// protected are what Services and host ports may not take.
type protected struct {
	node     string                          // this one
	ports    map[socket]string               // reservedFor on each node's addresses, and for what
	apiPorts map[hostSocket]struct{}         // at which an API server is on a node; of node "" those of any
	servers  map[nodestate.Frontend]struct{} // API servers, wherever they are
	nodes    map[netip.Addr]string           // the addresses of nodes, and whose
	own      []netip.Addr                    // this node's
	gateways []netip.Addr                    // of this node
	pools    []netip.Prefix                  // all
	podPools []netip.Prefix                  // of them those that are not for load balancers
	services []netip.Prefix                  // the ranges of cluster IPs
	external []netip.Prefix                  // serviceExternalIPs; nil = every address
	trusted  map[string]struct{}             // namespaces whose EndpointSlices may name nodes' ports and others' pods
}

// Ports of the kubelet: its API, and what its own liveness is asked by.
const (
	kubeletPort        = 10250
	kubeletHealthzPort = 10248
)

// systemNamespace holds what runs the cluster: whoever may write there has the cluster.
const systemNamespace = "kube-system"

// LabelBackends on a Namespace, which tenants cannot write, says what its EndpointSlices may name:
// BackendsAny lifts the limits to the pods of the namespace and to ports that nodes do not need.
const (
	LabelBackends = "weir.dev/service-backends"
	BackendsAny   = "any"
)

// metadata are addresses at which clouds give out credentials or configuration, beyond the
// link-local ones: AWS and Google by IPv6, Azure, Alibaba, Oracle.
var metadata = map[netip.Addr]struct{}{
	netip.MustParseAddr("fd00:ec2::254"): {}, netip.MustParseAddr("fd20:ce::254"): {}, netip.MustParseAddr("168.63.129.16"): {},
	netip.MustParseAddr("100.100.100.200"): {}, netip.MustParseAddr("192.0.0.192"): {},
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// protectedOf reads them from a cluster. Of API servers that are on nodes the port is needed on all
// addresses of these nodes; of others, as those of a cloud, the address and port alone: there the
// port is 443, which much else is behind on nodes.
func protectedOf(c *cluster.View) *protected {
	g := &protected{node: c.Local.Node, ports: map[socket]string{}, apiPorts: map[hostSocket]struct{}{}, servers: map[nodestate.Frontend]struct{}{}, nodes: map[netip.Addr]string{},
		own: slices.Clone(c.Local.HostAddrs), gateways: slices.Clone(c.Local.Gateways), services: slices.Clone(c.ServiceCIDRs),
		external: c.Settings.ServiceExternalIPs, trusted: map[string]struct{}{systemNamespace: {}}}
	for _, n := range c.Nodes {
		for _, a := range n.Addrs {
			if have, is := g.nodes[a]; !is || n.Name < have {
				g.nodes[a] = n.Name
			}
			if n.Name == c.Local.Node {
				g.own = append(g.own, a)
			}
		}
	}
	for _, a := range c.Local.HostAddrs {
		g.nodes[a] = c.Local.Node
	}
	slices.SortFunc(g.own, netip.Addr.Compare)
	for _, p := range c.Pools {
		if p.CIDR.IsValid() {
			g.pools = append(g.pools, p.CIDR.Masked())
			if !p.LoadBalancer {
				g.podPools = append(g.podPools, p.CIDR.Masked())
			}
		}
	}
	slices.SortFunc(g.pools, netip.Prefix.Compare)
	slices.SortFunc(g.podPools, netip.Prefix.Compare)
	for name, ns := range c.Namespaces {
		if ns.Labels[LabelBackends] == BackendsAny {
			g.trusted[name] = struct{}{}
		}
	}
	g.addPorts(c)
	g.addServers(c)
	return g
}

// addPorts adds what listens on nodes.
func (g *protected) addPorts(c *cluster.View) {
	for _, p := range c.Settings.AgentPorts {
		g.ports[socket{p, model.ProtocolTCP}] = "Weir listens there"
	}
	g.ports[socket{c.Settings.VXLANPort, model.ProtocolUDP}] = "it is VXLAN's"
	for _, f := range c.Settings.FailsafeIn {
		g.ports[socket{f.Port, f.Protocol}] = "it is of failsafeInboundHostPorts"
	}
	for _, p := range []uint16{kubeletPort, kubeletHealthzPort} {
		g.ports[socket{p, model.ProtocolTCP}] = "the kubelet listens there"
	}
}

// addServers adds the API servers: those that the cluster names and those that this node reached.
// An address that a node came to claim later makes no port of that node needed, or a node could
// take the port from everybody's host ports.
func (g *protected) addServers(c *cluster.View) {
	add := func(a netip.Addr, port uint16) {
		if port == 0 {
			return
		}
		g.servers[nodestate.Frontend{Addr: a, Port: port, Proto: model.ProtocolTCP}] = struct{}{}
		if name, is := g.nodes[a]; is && (name == c.Local.Node || c.Nodes[name].Since[a] == 0) {
			for _, at := range []string{name, ""} {
				g.apiPorts[hostSocket{at, socket{port, model.ProtocolTCP}}] = struct{}{}
			}
		}
	}
	if sl := cluster.APIServersOf(c.Cluster); sl != nil {
		for _, p := range sl.Ports {
			for i := range sl.Endpoints {
				for _, a := range sl.Endpoints[i].Addrs {
					if p.Protocol == model.ProtocolTCP {
						add(a, p.Port)
					}
				}
			}
		}
	}
	for _, at := range c.Local.APIServers {
		add(at.Addr().Unmap(), at.Port())
	}
}

// machine is what guards are made from of model.Local.
type machine struct {
	node            string
	addrs, gateways []netip.Addr
	servers         []netip.AddrPort
}

func machineOf(c *cluster.View) machine {
	return machine{c.Local.Node, c.Local.HostAddrs, c.Local.Gateways, c.Local.APIServers}
}

func (m machine) equal(o machine) bool {
	return m.node == o.node && slices.Equal(m.addrs, o.addrs) && slices.Equal(m.gateways, o.gateways) && slices.Equal(m.servers, o.servers)
}

// equalExceptNodes reports whether the guards differ in the addresses of nodes at most.
func (g *protected) equalExceptNodes(o *protected) bool {
	external := (g.external == nil) == (o.external == nil) && slices.Equal(g.external, o.external)
	return external && g.node == o.node && maps.Equal(g.ports, o.ports) && maps.Equal(g.apiPorts, o.apiPorts) && maps.Equal(g.servers, o.servers) && slices.Equal(g.own, o.own) &&
		slices.Equal(g.gateways, o.gateways) && slices.Equal(g.pools, o.pools) && slices.Equal(g.podPools, o.podPools) &&
		slices.Equal(g.services, o.services) && maps.Equal(g.trusted, o.trusted)
}

// movedNodes returns the addresses that are of nodes by one and not by the other.
func (g *protected) movedNodes(o *protected) []netip.Addr {
	var out []netip.Addr
	for a, name := range g.nodes {
		if other, is := o.nodes[a]; !is || other != name {
			out = append(out, a)
		}
	}
	for a := range o.nodes {
		if _, is := g.nodes[a]; !is {
			out = append(out, a)
		}
	}
	return out
}

func (g *protected) isNode(a netip.Addr) bool {
	_, is := g.nodes[a]
	return is
}

// rejectAlways says why an address is no Service's and no endpoint's, whatever else there is; "" =
// it may be.
func rejectAlways(a netip.Addr) string {
	_, cloud := metadata[a]
	switch {
	case a.Is4In6():
		return "is an IPv4-mapped address"
	case a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a == broadcast:
		return "is a loopback, link-local, multicast or unspecified address"
	case cloud:
		return "is the address of a cloud's metadata"
	}
	return ""
}

// reservedFor says what needs an address and port, so that no frontend may take it; "" = nothing
// does. The unspecified address means all of a node's, and so do those of its loopback device:
// of the node of that name, or of any where it is "".
func (g *protected) reservedFor(f nodestate.Frontend, node string) string {
	if _, is := g.servers[f]; is {
		return "an API server listens there"
	}
	if f.Addr.IsUnspecified() || f.Addr.IsLoopback() || g.isNode(f.Addr) {
		if why := g.ports[socket{f.Port, f.Proto}]; why != "" {
			return why
		}
		if name, is := g.nodes[f.Addr]; is {
			node = name
		}
		if _, is := g.apiPorts[hostSocket{node, socket{f.Port, f.Proto}}]; is {
			return "API servers listen there"
		}
	}
	return ""
}

// loopbackPorts are what the node and its kubelet ask at loopback addresses: probes of static pods
// (etcd, the controller managers, the scheduler), the kubelet, proxies before API servers (k3s and
// RKE2, Talos), kube-proxy's ports.
var loopbackPorts = []uint16{2379, 2380, 2381, 6443, 6444, 7445, kubeletHealthzPort, 10249, kubeletPort, 10255, 10256, 10257, 10258, 10259}

// rejectLoopback says why a host port may not be at a loopback address, "" where it may or is
// elsewhere. Processes of the node are all that asks there: a resolver at 127.0.0.53 is theirs.
func rejectLoopback(f nodestate.Frontend) string {
	switch a := f.Addr; {
	case !a.IsLoopback():
		return ""
	case a != netip.AddrFrom4([4]byte{127, 0, 0, 1}) && a != netip.IPv6Loopback():
		return "is a loopback address for the node's own services"
	case f.Port < 1024 || slices.Contains(loopbackPorts, f.Port):
		return "is a port at which the node asks itself"
	}
	return ""
}

// mayForward reports whether an address outside may lead to API servers that are on nodes: kubelets
// often use one that the cluster does not know, as that of a load balancer or one that moves
// between these nodes, with the port that the servers have.
func (g *protected) mayForward(f nodestate.Frontend) bool {
	_, is := g.apiPorts[hostSocket{"", socket{f.Port, f.Proto}}]
	return is && g.external == nil
}

// rejectAddress says whose an address is that a Service asks to have from outside; "" = it may have
// it. ofStatus says that it is in the status of its load balancer, which tenants do not write: it
// may be of a pool of load balancers, and is not limited by serviceExternalIPs.
func (s *Services) rejectAddress(svc *model.Service, a netip.Addr, ofStatus bool) string {
	g := s.protected
	pools := g.pools
	if ofStatus {
		pools = g.podPools
	}
	switch {
	case slices.Contains(svc.ClusterIPs, a):
		return "" // its own
	case rejectAlways(a) != "":
		return rejectAlways(a)
	case slices.Contains(g.gateways, a):
		return "is a gateway of the node"
	case s.pods.has(a):
		return "is the address of a pod"
	case g.isNode(a) && (ofStatus || g.external == nil):
		return "" // its ports are another question
	case !g.isNode(a) && model.Within(pools, a):
		return "is in an IPPool"
	case model.Within(g.services, a):
		return "is in the range of cluster IPs"
	case !ofStatus && g.external != nil && !model.Within(g.external, a):
		return "is not in serviceExternalIPs"
	case !ofStatus && !g.isNode(a):
		if first := s.oldest(a); first.Namespace != svc.Name.Namespace && first != (model.Name{}) {
			return "is an address of Service " + first.String() + ", which is older"
		}
	}
	return ""
}

// rejectEndpoint says why the Services of a namespace may not have an endpoint of an EndpointSlice;
// "" = they may.
func (s *Services) rejectEndpoint(sl *model.EndpointSlice, a netip.Addr, port uint16, proto model.Protocol) string {
	if why := rejectAlways(a); why != "" {
		return why
	}
	if _, trusted := s.protected.trusted[sl.Service.Namespace]; trusted || sl.Service == cluster.APIService && sl.Name == cluster.APIServerSlice {
		return ""
	}
	if what := s.protected.reservedFor(nodestate.Frontend{Addr: a, Port: port, Proto: proto}, ""); what != "" {
		return "is a port that nodes need: " + what
	}
	if s.pods.foreign(sl.Service.Namespace, a) {
		return "is the address of another namespace's pod"
	}
	return ""
}
