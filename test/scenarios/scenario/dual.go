// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/sim"
)

// Dual returns a cluster of two families: everything that has an address of IPv4 in c has its
// counterpart of IPv6 (see Mirror) alongside it. Nothing of c is changed.
func Dual(c *model.Cluster) *model.Cluster {
	out := *c
	out.Pods = &model.PodTable{}
	for p := range c.Pods.All() {
		twin := dualPod(*p)
		out.Pods.Put(&twin)
	}
	out.Nodes, out.Services = twins(c.Nodes, dualNode), twins(c.Services, dualService)
	out.Policies, out.NetworkSets = twins(c.Policies, dualPolicy), twins(c.NetworkSets, dualSet)
	out.Staged = twins(c.Staged, func(p model.StagedPolicy) model.StagedPolicy {
		p.Policy = dualPolicy(p.Policy)
		return p
	})
	out.Slices, out.Pools, out.Blocks = maps.Clone(c.Slices), maps.Clone(c.Pools), maps.Clone(c.Blocks)
	for _, s := range c.Slices {
		t := *s
		t.Name.Name += "-6"
		t.Endpoints = slices.Clone(s.Endpoints)
		for i := range t.Endpoints {
			t.Endpoints[i].Addrs = sixAddrs(t.Endpoints[i].Addrs)
		}
		out.Slices[t.Name] = &t
	}
	for _, p := range c.Pools {
		t := *p
		t.Name, t.CIDR, t.BlockBits = p.Name+"-6", sixPrefix(p.CIDR), p.BlockBits+96
		out.Pools[t.Name] = &t
	}
	for _, b := range c.Blocks {
		out.Blocks[sixPrefix(b.CIDR)] = &model.Block{CIDR: sixPrefix(b.CIDR), Node: b.Node, Created: b.Created, UID: b.UID}
	}
	out.ServiceCIDRs, out.Reservations = both(c.ServiceCIDRs), both(c.Reservations)
	s := &out.Settings
	s.DSROptOut, s.ExcludeFromNAT, s.NodePorts.CIDRs = both(s.DSROptOut), both(s.ExcludeFromNAT), both(s.NodePorts.CIDRs)
	s.FailsafeIn, s.FailsafeOut = dualFailsafes(s.FailsafeIn), dualFailsafes(s.FailsafeOut)
	out.HostEndpoints = twins(c.HostEndpoints, func(h model.HostEndpoint) model.HostEndpoint {
		h.ExpectedIPs = dualAddrs(h.ExpectedIPs)
		return h
	})
	l := &out.Local
	l.HostAddrs, l.Subnets = dualAddrs(l.HostAddrs), both(l.Subnets)
	l.Endpoints = map[netip.Addr]*model.LocalEndpoint{}
	for a, ep := range c.Local.Endpoints {
		t := *ep
		t.Addrs = dualAddrs(ep.Addrs)
		l.Endpoints[a], l.Endpoints[six(a)] = &t, &t
	}
	return &out
}

func dualFailsafes(list []model.Failsafe) []model.Failsafe {
	out := slices.Clone(list)
	for _, f := range list {
		if f.Net.IsValid() {
			f.Net = sixPrefix(f.Net)
			out = append(out, f)
		}
	}
	return out
}

func twins[K comparable, V any](m map[K]*V, twin func(V) V) map[K]*V {
	out := make(map[K]*V, len(m))
	for k, v := range m {
		t := twin(*v)
		out[k] = &t
	}
	return out
}

func sixAddrs(list []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, six(a))
	}
	return out
}

func dualAddrs(list []netip.Addr) []netip.Addr { return slices.Concat(list, sixAddrs(list)) }

func both(list []netip.Prefix) []netip.Prefix { return slices.Concat(list, sixes(list)) }

func dualPod(p model.Pod) model.Pod {
	p.Addrs, p.Asked = dualAddrs(p.Addrs), dualAddrs(p.Asked)
	return p
}

func dualNode(n model.Node) model.Node {
	n.Addrs, n.Subnets = dualAddrs(n.Addrs), both(n.Subnets)
	return n
}

func dualService(s model.Service) model.Service {
	s.ClusterIPs, s.ExternalIPs, s.LBIPs = dualAddrs(s.ClusterIPs), dualAddrs(s.ExternalIPs), dualAddrs(s.LBIPs)
	s.SourceRanges = both(s.SourceRanges)
	return s
}

func dualPolicy(p model.Policy) model.Policy {
	rules := func(list []model.Rule) []model.Rule {
		list = slices.Clone(list)
		for i := range list {
			var peers []model.Peer
			for _, p := range list[i].Peers {
				peers = append(peers, p)
				if p.Pods == nil && p.Nodes == nil {
					peers = append(peers, model.Peer{CIDR: sixPrefix(p.CIDR), Except: sixes(p.Except)})
				}
			}
			list[i].Peers, list[i].Other, list[i].Own = peers, dualEntity(list[i].Other), dualEntity(list[i].Own)
			list[i].Ports, list[i].NotPorts = dualMessages(list[i].Ports), dualMessages(list[i].NotPorts)
		}
		return list
	}
	p.Ingress, p.Egress = rules(p.Ingress), rules(p.Egress)
	return p
}

// dualMessages adds to what is said of ICMP the same of ICMPv6. A range is of messages of one type,
// or of all.
func dualMessages(list []model.PortRange) []model.PortRange {
	var out []model.PortRange
	for _, p := range list {
		out = append(out, p)
		if p.Protocol != model.ProtocolICMP {
			continue
		}
		p.Protocol = model.ProtocolICMPv6
		if p.First != 0 || p.Last != 65535 {
			first := SixMessage(p.First)
			p.First, p.Last = first, first+p.Last-p.First
		}
		out = append(out, p)
	}
	return out
}

// SixMessage returns the type * 256 + the code of the counterpart of an ICMP message that is no
// error.
func SixMessage(message uint16) uint16 {
	switch kind := uint8(message >> 8); kind {
	case 0, 8, 128, 129:
		return uint16(echoType(kind))<<8 | message&0xff
	}
	return message
}

func dualEntity(e *model.Entity) *model.Entity {
	if e == nil {
		return nil
	}
	t := *e
	t.Nets, t.NotNets = both(e.Nets), both(e.NotNets)
	return &t
}

func dualSet(s model.NetworkSet) model.NetworkSet {
	s.Nets = both(s.Nets)
	return s
}

// Six returns the counterpart of an IPv4 address, and of a state.
func Six(a netip.Addr) netip.Addr { return six(a) }

// SixState is Six for what a state says.
func SixState(s *nodestate.State) *nodestate.State { return sixState(s) }

// Both makes data planes that are given states of two families (Dual), and packets now of the one
// and now of the other: those of the world, and their counterparts of IPv6. What is spoken changes
// after some packets, each time alike.
func Both(make NewCarrier) NewCarrier {
	return func(m *Machine) (Carrier, error) {
		t := *m
		t.Name += "/46"
		t.Addr6, t.Subnets, t.Own, t.Aside = six(m.Addr), both(m.Subnets), dualAddrs(m.Own), both(m.Aside)
		c, err := make(&t)
		return &bilingual{mirror: mirror{machine: &t, carrier: c, world: m}, random: rand.New(rand.NewPCG(4, 6))}, err
	}
}

type bilingual struct {
	mirror
	random *rand.Rand
	six    bool // what is spoken
	left   int  // packets until that may change
}

// Apply implements Carrier.
func (c *bilingual) Apply(s *nodestate.State) error {
	c.machine.State, c.machine.Own = s, dualAddrs(c.world.Own)
	return c.carrier.Apply(s)
}

// Receive implements Carrier.
func (c *bilingual) Receive(in sim.In) (sim.Result, error) {
	if c.left--; c.left < 0 && !in.Again {
		c.six, c.left = c.random.IntN(2) == 0, c.random.IntN(25)
	}
	if c.six {
		return c.mirror.Receive(in)
	}
	return c.carrier.Receive(in)
}
