// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
)

// Carrier is the data plane of one node: the oracle, or loaded programs.
type Carrier interface {
	// Apply replaces the node's state.
	Apply(s *nodestate.State) error
	// Receive hands over a packet at a hook.
	Receive(in sim.In) (sim.Result, error)
	// Connect is a socket of the node that asks for dst: where it is really sent. The error is
	// sim.ErrRefused when no backend is there, ErrNoSockets when this carrier has no sockets.
	Connect(s sim.Socket, dst netip.AddrPort) (netip.AddrPort, error)
	// Send is the same for a socket that is not connected and sends a datagram to dst.
	Send(s sim.Socket, dst netip.AddrPort) (netip.AddrPort, error)
	// Advance moves the clock on.
	Advance(seconds int) error
}

// NewCarrier makes the data plane of a node.
type NewCarrier func(n *Machine) (Carrier, error)

// Machine is a node of a world.
type Machine struct {
	Name    string
	Addr    netip.Addr
	Addr6   netip.Addr // of IPv6, in a cluster of two families
	MAC     packet.MAC
	Subnets []netip.Prefix // on-link; the first address of the first one of a family is the default gateway
	State   *nodestate.State
	MTUs    map[int]int // of interfaces, by index; others have DefaultMTU
	// Own are addresses that the node's kernel has and no table knows; Aside the networks on the
	// link of a second uplink.
	Own     []netip.Addr
	Aside   []netip.Prefix
	carrier Carrier
	world   *World
}

// World is machines on switches, with a router that joins their subnets and leads to everywhere
// else.
type World struct {
	objects  *Objects
	machines map[string]*Machine
	make     NewCarrier
	again    []arrival // fragments that come in again
}

// arrival is a packet at a hook of a node.
type arrival struct {
	m  *Machine
	in sim.In
}

// DefaultMTU is that of interfaces, in bytes.
const DefaultMTU = 1500

// MTU is that of an interface. Pods' interfaces share one.
func (m *Machine) MTU(ifindex int) int {
	if ifindex != Uplink {
		ifindex = 0
	}
	if mtu := m.MTUs[ifindex]; mtu > 0 {
		return mtu
	}
	return DefaultMTU
}

// maxHops ends a packet that goes round in circles.
const maxHops = 16

// newWorld makes the machines.
func newWorld(o *Objects, make NewCarrier) (*World, error) {
	w := &World{objects: o, machines: map[string]*Machine{}, make: make}
	return w, w.refresh()
}

// refresh gives every node its state.
func (w *World) refresh() error {
	for _, name := range slices.Sorted(maps.Keys(w.objects.cluster.Nodes)) {
		c, err := w.objects.Cluster(name)
		if err != nil {
			return err
		}
		own := c.Nodes[name]
		m := w.machines[name]
		if m == nil {
			m = &Machine{Name: name, world: w, MTUs: map[int]int{}}
		}
		m.Addr, m.Addr6, m.MAC, m.Subnets, m.State = own.NodeAddr(), own.NodeAddr6(), macOf(own.NodeAddr()), c.Local.Subnets, calc.Calc(c)
		if own.LinkAddress != [6]byte{} {
			m.MAC = own.LinkAddress
		}
		if len(m.Subnets) == 0 {
			return fmt.Errorf("node %s has no subnet: give it a NodeStatus", name)
		}
		if m.carrier == nil {
			if m.carrier, err = w.make(m); err != nil {
				return fmt.Errorf("data plane of node %s: %w", name, err)
			}
			w.machines[name] = m
		}
		if err := m.carrier.Apply(m.State); err != nil {
			return fmt.Errorf("apply to node %s: %w", name, err)
		}
	}
	return nil
}

// Gateway is the router's address in a subnet.
func Gateway(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }

// Like is the machine's address in the family of another one.
func (m *Machine) Like(a netip.Addr) netip.Addr {
	if m.Addr.Is4() == a.Is4() {
		return m.Addr
	}
	return m.Addr6
}

// Gateway is the machine's default gateway for an address; invalid where it has no subnet of that
// family.
func (m *Machine) Gateway(dst netip.Addr) netip.Addr {
	for _, p := range m.Subnets {
		if p.Addr().Is4() == dst.Is4() {
			return Gateway(p)
		}
	}
	return netip.Addr{}
}

// broadcast is the last address of an IPv4 subnet: nobody's, and not a place to forward to.
func broadcast(p netip.Prefix) netip.Addr {
	if p.Addr().Is6() {
		return netip.Addr{}
	}
	b := p.Masked().Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|(uint32(1)<<(32-p.Bits())-1))
	return netip.AddrFrom4(b)
}

// Uplinks are the MAC addresses of the machine's uplinks, by interface.
func (m *Machine) Uplinks() map[int]packet.MAC {
	out := map[int]packet.MAC{Uplink: m.MAC}
	if len(m.Aside) > 0 {
		out[Uplink2] = m.MAC
	}
	return out
}

// Route is what the node's kernel answers to a look-up in its tables: nothing for its own
// addresses; the uplinks' subnets, a route by the host device for each of the state's ranges, and
// the default route by the gateway.
func (m *Machine) Route(dst netip.Addr) (sim.Hop, bool) {
	if slices.Contains(m.Own, dst) || m.Like(dst) == dst || slices.ContainsFunc(m.Subnets, func(p netip.Prefix) bool { return dst == broadcast(p) }) {
		return sim.Hop{}, false
	}
	for _, p := range m.Aside {
		if p.Contains(dst) {
			return sim.Hop{IfIndex: Uplink2, MTU: m.MTU(Uplink2)}, true // without an address there it has no broadcast address
		}
	}
	for _, ranges := range []map[netip.Prefix]int{m.State.Settings.PoolRoutes, m.State.Settings.NodeRoutes} {
		for p := range ranges {
			if p.Contains(dst) {
				return sim.Hop{IfIndex: HostDevice}, true
			}
		}
	}
	for _, p := range m.Subnets {
		if p.Contains(dst) {
			return sim.Hop{IfIndex: Uplink, MTU: m.MTU(Uplink)}, true
		}
	}
	gateway := m.Gateway(dst)
	return sim.Hop{IfIndex: Uplink, Gateway: gateway, MTU: m.MTU(Uplink)}, gateway.IsValid()
}

// enter brings a packet to a hook.
func (m *Machine) enter(in sim.In) leg {
	return func(j *Journey, p *packet.Packet) (leg, *packet.Packet, error) {
		in.Packet = p
		if in.Hook == sim.FromTunnel {
			in.VNI = m.State.Settings.Tunnel.VNI
		}
		r, err := m.carrier.Receive(in)
		if err != nil {
			return nil, nil, fmt.Errorf("%s at %s: %w", m.Name, in.Hook, err)
		}
		j.Visits = append(j.Visits, Visit{Node: m.Name, Hook: in.Hook, Result: r})
		for _, again := range r.Again {
			m.world.again = append(m.world.again, arrival{m, again})
		}
		switch r.Action {
		case sim.Keep:
			next, _, err := j.end("kept")
			return next, r.Packet, err
		case sim.Drop:
			next, _, err := j.end("drop")
			return next, r.Packet, err
		case sim.Answer:
			if r.NextHop.IsValid() && r.IfIndex != 0 {
				return m.encapsulated(r)
			}
			return m.back(in, p), r.Packet, nil
		case sim.Local:
			return m.toPod(r.IfIndex), r.Packet, nil
		case sim.Neigh:
			return m.wire(r.NextHop), r.Packet, nil
		case sim.Tunnel:
			if r.IfIndex != 0 {
				return m.encapsulated(r)
			}
			return m.world.decapsulate(m, r.NextHop), r.Packet, nil
		}
		switch in.Hook {
		case sim.ToWorkload:
			return m.toPod(in.IfIndex), r.Packet, nil
		case sim.ToUplink:
			if in.IfIndex == HostDevice {
				next, _, err := j.end("lost " + m.Name + " weir0")
				return next, r.Packet, err
			}
			return m.wire(m.NextHop(r.Packet.IP.Dst)), r.Packet, nil
		}
		if in.Hook == sim.FromUplink && p.IP.Proto == packet.ProtoIPIP && r.Packet.IP.Proto != packet.ProtoIPIP {
			return m.stackMarked(HostDevice, r.Marked), r.Packet, nil // it was unpacked
		}
		return m.stackMarked(in.IfIndex, r.Marked), r.Packet, nil
	}
}

// back is the path of what a node answers by itself to p: the one that p came.
func (m *Machine) back(in sim.In, p *packet.Packet) leg {
	switch in.Hook {
	case sim.FromWorkload:
		return m.toPod(in.IfIndex)
	case sim.FromTunnel:
		return m.world.decapsulate(m, in.Source)
	case sim.FromUplink:
		return m.world.deliverMAC(p.SrcMAC, m.MAC)
	}
	return m.stack(HostDevice)
}

// toPod delivers into the pod behind an interface.
func (m *Machine) toPod(ifindex int) leg {
	return func(j *Journey, _ *packet.Packet) (leg, *packet.Packet, error) {
		for _, a := range m.State.Addrs {
			if a.Kind == nodestate.AddrEndpoint && a.IfIndex == ifindex {
				return j.end("pod:" + a.Owner.String())
			}
		}
		return nil, nil, fmt.Errorf("%s: no pod behind interface %d", m.Name, ifindex)
	}
}

// stack is the node's kernel: it delivers, or routes. A packet that entered by an interface, 0 =
// none, pays with its TTL.
func (m *Machine) stack(entered int) leg { return m.stackMarked(entered, false) }

// stackMarked is stack for a packet that the programs of this node have evaluated (marked). It does
// not fragment.
func (m *Machine) stackMarked(entered int, marked bool) leg {
	return func(j *Journey, p *packet.Packet) (leg, *packet.Packet, error) {
		next, end := m.Stack(p, entered, marked)
		if end != "" {
			return j.end(end)
		}
		return m.enter(next), next.Packet, nil
	}
}

// Stack is what the node's kernel does with a packet: the hook that it meets next, or where it
// ends.
func (m *Machine) Stack(p *packet.Packet, entered int, marked bool) (next sim.In, end string) {
	if p.Kind == packet.Frame {
		return next, "node:" + m.Name
	}
	a := m.State.Addrs[p.IP.Dst]
	if a.Kind == nodestate.AddrHost || slices.Contains(m.Own, p.IP.Dst) {
		return next, "node:" + m.Name
	}
	if entered != 0 {
		if p.IP.TTL <= 1 {
			return next, "lost " + m.Name + " TTL"
		}
		p = p.Clone()
		p.IP.TTL--
	}
	if a.Kind == nodestate.AddrEndpoint {
		return sim.In{Hook: sim.ToWorkload, IfIndex: a.IfIndex, Marked: marked, Packet: p, Entered: entered}, ""
	}
	hop, _ := m.Route(p.IP.Dst)
	return sim.In{Hook: sim.ToUplink, IfIndex: hop.IfIndex, Marked: marked, Packet: p, Entered: entered}, ""
}

// NextHop is the neighbour by which the node's kernel reaches an address out of the uplink.
func (m *Machine) NextHop(dst netip.Addr) netip.Addr {
	if h, _ := m.Route(dst); h.Gateway.IsValid() {
		return h.Gateway
	}
	return dst
}

// wire sends out of the uplink, to a neighbour.
func (m *Machine) wire(next netip.Addr) leg {
	if !slices.ContainsFunc(m.Subnets, func(p netip.Prefix) bool { return p.Contains(next) }) {
		return func(j *Journey, _ *packet.Packet) (leg, *packet.Packet, error) {
			return j.end(fmt.Sprintf("lost %s: next hop %s is not on its link", m.Name, next))
		}
	}
	return m.world.deliver(next, m.MAC)
}

// deliver brings a frame to whoever owns an address on the switch.
func (w *World) deliver(next netip.Addr, from packet.MAC) leg {
	return func(j *Journey, p *packet.Packet) (leg, *packet.Packet, error) {
		p = p.Clone()
		p.SrcMAC = from
		for _, m := range w.machines {
			if m.Like(next) == next {
				p.DstMAC = m.MAC
				return m.enter(sim.In{Hook: sim.FromUplink, IfIndex: Uplink}), p, nil
			}
		}
		for name, a := range w.objects.hosts {
			if a.Addr() == next {
				return j.end("host:" + name)
			}
		}
		for _, s := range w.subnets() {
			if Gateway(s) == next {
				return w.router(s), p, nil
			}
		}
		return j.end("lost on the switch: nobody is " + next.String())
	}
}

// deliverMAC brings a frame to whoever has a MAC address.
func (w *World) deliverMAC(to, from packet.MAC) leg {
	for _, m := range w.machines {
		if m.MAC == to {
			return w.deliver(m.Addr, from)
		}
	}
	for _, h := range w.objects.hosts {
		if macOf(h.Addr()) == to {
			return w.deliver(h.Addr(), from)
		}
	}
	for _, s := range w.subnets() {
		if macOf(Gateway(s)) == to {
			return w.deliver(Gateway(s), from)
		}
	}
	return func(j *Journey, _ *packet.Packet) (leg, *packet.Packet, error) {
		return j.end("lost on the switch: nobody has " + to.String())
	}
}

// pod finds a pod that has an interface.
func (w *World) pod(name string) (*Machine, *nodestate.Addr, netip.Addr, error) {
	for _, m := range w.machines {
		for addr, a := range m.State.Addrs {
			if a.Kind == nodestate.AddrEndpoint && a.Owner.String() == name {
				return m, &a, addr, nil
			}
		}
	}
	return nil, nil, netip.Addr{}, fmt.Errorf("no pod %s has an interface", name)
}

// origin is where a journey begins:
//
//	pod:<namespace>/<name>      from inside the pod
//	node:<name>                 a process of the node, without connect-time balancing
//	host:<name>[@<node>]        a host; @: its next hop is that node, whatever the destination
//	internet                    by the router
//	tunnel:<node>:<address>     out of the node's tunnel, sent by that outer address
//	uplink:<node>:<mac>         a frame on the node's uplink with that source MAC address
func (w *World) origin(from string, p *packet.Packet) (leg, error) {
	kind, name, _ := strings.Cut(from, ":")
	switch kind {
	case "pod":
		m, a, _, err := w.pod(name)
		if err != nil {
			return nil, err
		}
		return m.enter(sim.In{Hook: sim.FromWorkload, IfIndex: a.IfIndex}), nil
	case "node":
		if m := w.machines[name]; m != nil {
			return m.stack(0), nil
		}
	case "host":
		name, via, _ := strings.Cut(name, "@")
		h, ok := w.objects.hosts[name]
		if !ok {
			break
		}
		if m := w.machines[via]; m != nil {
			return w.deliver(m.Addr, macOf(h.Addr())), nil
		}
		if via == "" && h.Contains(p.IP.Dst) {
			return w.deliver(p.IP.Dst, macOf(h.Addr())), nil
		}
		if via == "" {
			return w.router(h.Masked()), nil
		}
	case "internet":
		return w.router(netip.Prefix{}), nil
	case "tunnel":
		name, outer, _ := strings.Cut(name, ":")
		src, err := netip.ParseAddr(outer)
		if m := w.machines[name]; m != nil && err == nil {
			return m.enter(sim.In{Hook: sim.FromTunnel, IfIndex: TunnelDev, Source: src}), nil
		}
	case "uplink":
		name, _, _ := strings.Cut(name, ":")
		if m := w.machines[name]; m != nil {
			return m.enter(sim.In{Hook: sim.FromUplink, IfIndex: Uplink}), nil
		}
	}
	return nil, fmt.Errorf("%q: no such origin", from)
}

// send lets a packet travel.
func (w *World) send(from string, p *packet.Packet) (*Journey, error) {
	if name, mac, ok := strings.Cut(strings.TrimPrefix(from, "uplink:"), ":"); ok && strings.HasPrefix(from, "uplink:") {
		from = "uplink:" + name
		if q, err := packet.Parse("frame type=0 smac=" + mac); err == nil {
			p = p.Clone()
			p.SrcMAC = q.SrcMAC
		} else {
			return nil, err
		}
	}
	first, err := w.origin(from, p)
	if err != nil {
		return nil, err
	}
	return w.travel(first, p)
}

// next lets the first of the fragments that come in again travel.
func (w *World) next() (*Journey, error) {
	if len(w.again) == 0 {
		return nil, fmt.Errorf("no fragment comes in again")
	}
	a := w.again[0]
	w.again = w.again[1:]
	return w.travel(a.m.enter(a.in), a.in.Packet)
}

// connect lets a socket ask for an address: it connects, or sends without.
func (w *World) connect(from string, proto model.Protocol, dst netip.AddrPort, send bool) (netip.AddrPort, error) {
	kind, name, _ := strings.Cut(from, ":")
	s := sim.Socket{Cookie: 1, Proto: proto}
	ask := func(m *Machine) (netip.AddrPort, error) {
		if send {
			return m.carrier.Send(s, dst)
		}
		return m.carrier.Connect(s, dst)
	}
	switch kind {
	case "pod":
		m, a, _, err := w.pod(name)
		if err != nil {
			return dst, err
		}
		s.Netns = uint64(a.IfIndex)
		return ask(m)
	case "node":
		if m := w.machines[name]; m != nil {
			return ask(m)
		}
	}
	return dst, fmt.Errorf("%q: sockets are of pods and nodes", from)
}
