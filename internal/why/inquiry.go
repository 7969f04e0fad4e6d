// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/internal/why/wire"
)

// inquiry answers one question of `weir why`.
type inquiry struct {
	agent  Agent
	plane  DataPlane
	ask    wire.Request
	state  *nodestate.State
	answer *wire.Answer

	places dataplane.Places
	in     sim.In // with the packet as the program gets it
	frame  []byte
	result sim.Result
	chosen string // the endpoint that nftables chose for the result, "" = none, or not known

	led netip.Addr // the egress gateway that nftables chose for the result, invalid = none, or the flow is open

	nftables bool // the data plane is that of nftables
}

var hooks = map[string]sim.Hook{wire.FromWorkload: sim.FromWorkload, wire.ToUplink: sim.ToUplink, wire.FromUplink: sim.FromUplink, wire.FromTunnel: sim.FromTunnel}

func (i *inquiry) run(ctx context.Context) error {
	i.plane = i.agent.DataPlane()
	rules, nftables := i.plane.(Rules)
	i.nftables = nftables
	i.answer.Plane = i.plane.Name()
	i.places = i.plane.Places()
	i.answer.Epoch = i.places.Epoch
	if i.answer.Behind == "" {
		i.answer.Behind = i.places.Behind
	}
	var refused bool
	var err error
	if i.ask.Received != nil {
		err = i.receive()
	} else {
		refused, err = i.openConnection()
	}
	if err != nil {
		return err
	}
	i.answer.Packet = i.in.Packet.String()
	if refused {
		return nil
	}
	if h := i.ask.Received; h != nil && h.Hook == wire.FromTunnel && !h.Encrypted && i.guarded(h.From) {
		i.dropInClear("what comes from there in clear")
		return nil
	}
	if nftables {
		err = i.evaluateRules(ctx, rules)
	} else {
		err = i.runProgram()
	}
	if err != nil {
		return err
	}
	i.describe()
	if err := i.explain(ctx); err != nil {
		return err
	}
	i.noteLimits()
	i.compare()
	return nil
}

// openConnection makes the first packet of a connection, as it leaves its socket. refused: the
// socket gets no connection.
func (i *inquiry) openConnection() (refused bool, err error) {
	q := &i.ask
	i.in = sim.In{Hook: hooks[q.Hook]}
	own := i.state.Addrs[i.sender()]
	switch q.Hook {
	case wire.FromWorkload:
		if own.Kind != nodestate.AddrEndpoint {
			return false, fmt.Errorf("%s is the address of no pod of node %s", i.sender(), i.answer.Node)
		}
		i.in.IfIndex = i.plane.IfIndex(own)
	case wire.ToUplink:
		if own.Kind != nodestate.AddrHost {
			return false, fmt.Errorf("%s is no address of node %s", q.Source, i.answer.Node)
		}
	}
	to := netip.AddrPortFrom(q.Destination, q.Port)
	i.findService(to)
	if q.Hook != wire.FromUplink && !i.nftables {
		if to, refused = i.connect(to); refused {
			i.answer.Outcome = wire.Outcome{Verdict: wire.Dropped, Reason: "NO_BACKEND", Text: "the connection is refused at once: the Service has no endpoint that may be used", Rule: i.answer.Service.Name}
		}
	}
	if i.in.Packet, err = firstPacket(q, to); err != nil {
		return false, err
	}
	if q.Hook == wire.ToUplink {
		i.in.IfIndex, err = i.outInterface(to)
	} else if q.Hook == wire.FromUplink {
		i.in.IfIndex, err = i.inInterface(q.Source)
	}
	if err == nil {
		err = i.addressFrame(own.MAC)
	}
	return refused, err
}

// sender is the address by which the tables know who sends: the pod's own, where it sends with
// another one.
func (i *inquiry) sender() netip.Addr {
	switch {
	case i.ask.Received != nil:
		return i.in.Packet.IP.Src
	case i.ask.Sender.IsValid():
		return i.ask.Sender
	}
	return i.ask.Source
}

// firstPacket is the packet that opens a connection to an address.
func firstPacket(q *wire.Request, to netip.AddrPort) (*packet.Packet, error) {
	from := netip.AddrPortFrom(q.Source, q.SourcePort)
	switch q.Protocol {
	case model.ProtocolTCP:
		return packet.Parse(fmt.Sprintf("tcp %s > %s S ttl=64", from, to))
	case model.ProtocolUDP:
		return packet.Parse(fmt.Sprintf("udp %s > %s ttl=64", from, to))
	case model.ProtocolSCTP:
		return packet.Parse(fmt.Sprintf("sctp %s > %s INIT tag=0 ttl=64", from, to))
	}
	return packet.Parse(fmt.Sprintf("icmp %s > %s echo id=%d seq=1 ttl=64", from.Addr(), to.Addr(), q.SourcePort))
}

// receive reads a packet that another node sent on.
func (i *inquiry) receive() error {
	h := i.ask.Received
	p, err := packet.Unmarshal(h.Frame)
	if err != nil || p.Kind == packet.Frame || p.Fragment() {
		return fmt.Errorf("what the other node sent on is no whole IP packet")
	}
	i.in = sim.In{Hook: hooks[h.Hook], Packet: p, Source: h.From, VNI: i.state.Settings.Tunnel.VNI}
	if h.IPIP && i.nftables {
		if i.in.IPIP, i.in.IfIndex = true, i.places.IPIP; i.in.IfIndex == 0 {
			return fmt.Errorf("node %s takes no IP in IP", i.answer.Node)
		}
		i.findService(netip.AddrPortFrom(p.IP.Dst, p.DstPort))
		return i.addressFrame([6]byte{})
	}
	if h.IPIP {
		return i.receiveIPIP(h)
	}
	if h.Hook == wire.FromTunnel {
		if i.in.IfIndex = i.places.Tunnel; i.in.IfIndex == 0 {
			return fmt.Errorf("node %s has no tunnel", i.answer.Node)
		}
		i.findService(netip.AddrPortFrom(p.IP.Dst, p.DstPort))
		return i.addressFrame([6]byte{})
	}
	if i.in.IfIndex, err = i.inInterface(h.From); err != nil {
		return err
	}
	var mac [6]byte
	if m, err := net.ParseMAC(h.MAC); err == nil && len(m) == 6 {
		mac = [6]byte(m)
	}
	i.findService(netip.AddrPortFrom(p.IP.Dst, p.DstPort))
	return i.addressFrame(mac)
}

// receiveIPIP is receive for what comes by IP in IP: the program at the uplink gets it in its outer
// header.
func (i *inquiry) receiveIPIP(h *wire.Handover) error {
	if !i.state.Settings.IPIP.Accept {
		return fmt.Errorf("node %s takes no IP in IP", i.answer.Node)
	}
	inner := i.in.Packet
	var err error
	if i.in.IfIndex, err = i.inInterface(h.From); err != nil {
		return err
	}
	outer, err := packet.IPIP(inner, h.From, i.state.Settings.Node)
	if err != nil {
		return fmt.Errorf("what the other node sent on does not fit into IP in IP: %w", err)
	}
	i.in.IPIP, i.in.Packet = true, outer
	i.findService(netip.AddrPortFrom(inner.IP.Dst, inner.DstPort))
	err = i.addressFrame(i.state.Addrs[h.From].MAC)
	i.in.Packet = inner
	return err
}

// addressFrame gives the frame the MAC addresses that it has at its interface, the sender's being
// from.
func (i *inquiry) addressFrame(from [6]byte) error {
	l, err := netlink.LinkByIndex(i.in.IfIndex)
	if err != nil {
		return fmt.Errorf("interface %d, by which the packet would come: %w", i.in.IfIndex, err)
	}
	i.answer.Program.Interface = l.Attrs().Name
	i.in.Packet.SrcMAC, i.in.Packet.DstMAC = packet.MAC(from), packet.MAC{}
	if mac := l.Attrs().HardwareAddr; len(mac) == 6 {
		i.in.Packet.DstMAC = packet.MAC(mac)
	}
	i.frame, err = i.in.Packet.Marshal()
	return err
}

// inInterface is the interface by which packets of an address come.
func (i *inquiry) inInterface(from netip.Addr) (int, error) {
	if routes, err := netlink.RouteGet(from.AsSlice()); err == nil && len(routes) > 0 {
		if _, ok := i.places.Uplinks[routes[0].LinkIndex]; ok {
			return routes[0].LinkIndex, nil
		}
	}
	if len(i.places.Uplinks) == 0 {
		return 0, fmt.Errorf("node %s has no uplink", i.answer.Node)
	}
	return slices.Min(slices.Collect(maps.Keys(i.places.Uplinks))), nil
}

// outInterface is the interface by which the node's own packets to an address leave.
func (i *inquiry) outInterface(to netip.AddrPort) (int, error) {
	for p := range i.state.Settings.PoolRoutes {
		if p.Contains(to.Addr()) && i.places.Host != 0 && !i.nftables {
			return i.places.Host, nil
		}
	}
	q := question{to: to.Addr()}
	if i.ask.Protocol == model.ProtocolTCP {
		q.protocol, q.port = unix.IPPROTO_TCP, to.Port()
	}
	r, ok := q.route()
	if !ok {
		return 0, fmt.Errorf("node %s has no route to %s", i.answer.Node, to.Addr())
	}
	at := r.hops[0].ifindex
	if _, ok := i.places.Uplinks[at]; !ok && !i.nftables && at != i.places.Host {
		return 0, fmt.Errorf("packets of node %s to %s leave by an interface without Weir's programs", i.answer.Node, to.Addr())
	}
	return at, nil
}

// gotWantedBackend reports whether the packet got the backend that was asked for, or none that is
// known.
func (i *inquiry) gotWantedBackend() bool {
	s, want := i.answer.Service, i.ask.Backend
	if s == nil || s.Where != wire.InPath || !want.IsValid() || i.result.Action == sim.Drop || i.result.Action == sim.Answer {
		return true
	}
	p := i.result.Packet
	return i.handedOn() || netip.AddrPortFrom(p.IP.Dst, p.DstPort) == want
}

// handedOn reports whether the packet of a Service goes on to another node for it to translate.
func (i *inquiry) handedOn() bool {
	r, s := i.result, i.answer.Service
	return s != nil && s.Where == wire.InPath && (r.Action == sim.Neigh || r.Action == sim.Tunnel) && r.Packet.IP.Dst == i.in.Packet.IP.Dst && r.Packet.DstPort == i.in.Packet.DstPort
}

func (i *inquiry) warn(format string, args ...any) {
	i.answer.Warnings = append(i.answer.Warnings, fmt.Sprintf(format, args...))
}

// findService names the Service of an address and port, or the pod of a floating address.
func (i *inquiry) findService(to netip.AddrPort) {
	if own := i.state.FloatingAt(to.Addr(), i.ask.Hook == wire.FromUplink || i.ask.Received != nil); own.IsValid() {
		pod, node := i.owner(own)
		i.answer.Service = &wire.Service{Name: "floating address " + to.Addr().String(), Frontend: to.String() + "/" + i.ask.Protocol.String(), Where: wire.InPath,
			Backends: []wire.Backend{{Address: netip.AddrPortFrom(own, to.Port()).String(), Pod: pod, Node: node, Usable: true}}}
		return
	}
	f := nodestate.Frontend{Addr: to.Addr(), Port: to.Port(), Proto: i.ask.Protocol}
	svc, ok := i.state.Frontends.Get(f)
	if at := i.state.Addrs[f.Addr]; !ok && (at.Kind == nodestate.AddrHost || at.Kind == nodestate.AddrNode) {
		f.Addr = netip.IPv4Unspecified()
		if to.Addr().Is6() {
			f.Addr = netip.IPv6Unspecified()
		}
		svc, ok = i.state.Frontends.Get(f)
		ok = ok && (svc.LocalOnly && at.Kind == nodestate.AddrHost || !svc.LocalOnly && at.NodePorts)
	}
	if !ok {
		return
	}
	s := &wire.Service{Name: i.state.RuleText(svc.Rule), Frontend: to.String() + "/" + f.Proto.String(), Where: wire.InPath, Affinity: svc.Affinity}
	local := svc.LocalPolicy && !svc.External
	if i.ask.Hook == "" || i.ask.Hook == wire.FromUplink {
		local = svc.LocalPolicy
	}
	if h := i.ask.Received; h != nil {
		local = true // the node that was asked left the choice to this one
	}
	for _, b := range i.state.Backends.At(svc.ID) {
		pod, node := i.owner(b.Addr)
		s.Backends = append(s.Backends, wire.Backend{Address: netip.AddrPortFrom(b.Addr, b.Port).String(), Pod: pod, Node: node, Usable: b.InList(local)})
	}
	i.answer.Service = s
}

// owner names the pod that has an address, as far as this node knows it, and its node.
func (i *inquiry) owner(a netip.Addr) (pod, node string) {
	at := i.state.Addrs[a]
	switch at.Kind {
	case nodestate.AddrEndpoint:
		return at.Owner.String(), i.answer.Node
	case nodestate.AddrPod:
		return at.Owner.String(), i.state.Addrs[at.Node].Owner.Name
	case nodestate.AddrHost:
		return "", i.answer.Node
	case nodestate.AddrNode:
		return "", at.Owner.Name
	}
	return "", i.state.Addrs[i.nodeOf(a)].Owner.Name
}

// connect is what becomes of a socket that connects: where its packets go, or that it is refused.
// The socket programs cannot be run without a socket; what they look up is looked up here, by the
// rules of the oracle.
func (i *inquiry) connect(to netip.AddrPort) (netip.AddrPort, bool) {
	s := i.answer.Service
	if s == nil || i.ask.Protocol != model.ProtocolTCP && i.ask.Protocol != model.ProtocolUDP {
		return to, false
	}
	wanted := false
	node := sim.New(i.state, sim.Options{Pick: func(c sim.Choice) int {
		at := slices.IndexFunc(c.From, func(b nodestate.Backend) bool { return netip.AddrPortFrom(b.Addr, b.Port) == i.ask.Backend })
		if wanted = at >= 0; wanted {
			return at
		}
		return rand.IntN(len(c.From))
	}})
	socket := sim.Socket{Cookie: 1, Proto: i.ask.Protocol}
	if i.ask.Hook == wire.FromWorkload {
		socket.Netns = 1 // of a pod that is not known
		for cookie, client := range i.state.Clients {
			if client.Of(i.ask.Source) == i.ask.Source {
				socket.Netns = cookie
			}
		}
	}
	got, err := node.Connect(socket, to)
	if err != nil {
		s.Where = wire.AtConnect
		return to, true
	}
	if got == to {
		return to, false
	}
	s.Where, s.Chosen = wire.AtConnect, got.String()
	if i.ask.Backend.IsValid() && !wanted {
		i.warn("%s is no backend that this connection may get", i.ask.Backend)
	}
	return got, false
}
