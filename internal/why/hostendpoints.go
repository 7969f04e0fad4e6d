// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/internal/why/wire"
)

// earlyEnds explains what host endpoints say before the route of the packet is looked for. settled:
// nothing else is asked.
func (i *inquiry) earlyEnds(ctx context.Context) (out []wire.End, settled bool, err error) {
	out, settled, err = i.untrackedEnds(ctx)
	if err != nil {
		return out, false, err
	}
	if _, _, denied := denial(out); denied || settled {
		return out, true, nil
	}
	if n := len(out); n > 0 && !out[n-1].Undecided {
		return out, false, nil // that ends what is said before Services
	}
	arrival, err := i.arrivalEnds(ctx)
	_, _, denied := denial(arrival)
	return append(out, arrival...), denied, err
}

// untrackedEnds explains what host endpoints say to the packet by itself, as
// docs/design/datapath.md says ("Without tracking"): where it comes in, or, when it begins in the
// node, as it meets the uplink. settled: that lets it pass, and nothing else is asked.
func (i *inquiry) untrackedEnds(ctx context.Context) (out []wire.End, settled bool, err error) {
	if !i.state.EvaluatesUntracked() || i.isTunnel() {
		return nil, false, nil
	}
	look := func(index int, p *packet.Packet) {
		h := i.state.HostEndpointAt(index, p.IP.Src)
		iso, peer, ingress := h.UntrackedIngress, p.IP.Src, true
		if i.in.Hook == sim.ToUplink {
			iso, peer, ingress = h.UntrackedEgress, p.IP.Dst, false
		}
		if _, _, denied := denial(out); err != nil || denied || iso.Set == 0 {
			return
		}
		var e wire.End
		e, err = i.hostEnd(ctx, index, policy.HostUntracked, ingress, peer, policyPorts(p, p))
		v := i.state.Decide(iso, peer, i.ask.Protocol, policyPorts(p, p))
		e.Undecided = v.Allow && v.Undecided
		settled = v.Allow && !v.Undecided
		out = append(out, e)
	}
	switch i.in.Hook {
	case sim.FromUplink:
		look(i.in.IfIndex, i.in.Packet)
	case sim.ToUplink:
		if i.in.IfIndex != i.places.Host {
			look(i.in.IfIndex, i.in.Packet)
		}
		if i.result.Action == sim.Neigh {
			look(i.result.IfIndex, i.result.Packet)
		}
	}
	return out, settled && i.result.Action == sim.Pass && i.answer.Service == nil && !i.ofPods(), err
}

// ofPods reports whether the packet is from or for a pod of this node.
func (i *inquiry) ofPods() bool {
	return i.state.Addrs[i.sender()].Kind == nodestate.AddrEndpoint || i.state.Addrs[i.in.Packet.IP.Dst].Kind == nodestate.AddrEndpoint
}

// arrivalEnds explains what host endpoints say to what comes in by an uplink, before Services.
func (i *inquiry) arrivalEnds(ctx context.Context) ([]wire.End, error) {
	p := i.in.Packet
	if len(i.state.HostEndpoints) == 0 || i.in.Hook != sim.FromUplink || i.isTunnel() {
		return nil, nil
	}
	if i.state.HostEndpointAt(i.in.IfIndex, p.IP.Src).PreDNAT.Set == 0 {
		return nil, nil
	}
	e, err := i.hostEnd(ctx, i.in.IfIndex, policy.HostPreDNAT, true, p.IP.Src, policyPorts(p, p))
	return []wire.End{e}, err
}

// isTunnel: no host endpoint applies to outer packets of the tunnel.
func (i *inquiry) isTunnel() bool {
	p := i.in.Packet
	a, b := i.state.Addrs[p.IP.Src].Kind, i.state.Addrs[p.IP.Dst].Kind
	return p.Kind == packet.UDP && p.DstPort == i.state.Settings.Tunnel.Port &&
		(a == nodestate.AddrNode && b == nodestate.AddrHost || a == nodestate.AddrHost && b == nodestate.AddrNode)
}

// hostEnds explains what host endpoints say where the packet comes in, and where it leaves.
func (i *inquiry) hostEnds(ctx context.Context) ([]wire.End, error) {
	if len(i.state.HostEndpoints) == 0 || i.isTunnel() {
		return nil, nil
	}
	if i.handedOn() {
		i.answer.Notes = append(i.answer.Notes, "what a host endpoint of this node says to what it hands on depends on the endpoint of the Service that it chose, and is part of the program's verdict alone")
		return nil, nil
	}
	if !i.refusedBy() {
		return i.hostEndsOf(ctx, i.result, netip.AddrPort{})
	}
	if r := i.result.Reason; r != reason.HostIngress && r != reason.HostEgress {
		return nil, nil // they were not asked
	}
	// Where a packet would have gone that was dropped, the oracle says.
	wishes := []netip.AddrPort{{}}
	if s := i.answer.Service; s != nil && s.Where == wire.InPath {
		wishes = nil
		for _, b := range s.Backends {
			if at, err := netip.ParseAddrPort(b.Address); err == nil && b.Usable && len(wishes) < maxTriedBackends {
				wishes = append(wishes, at)
			}
		}
	}
	var first []wire.End
	for n, wish := range wishes {
		ends, err := i.hostEndsOf(ctx, i.withoutHosts(wish), wish)
		if err != nil {
			return nil, err
		}
		if rule, _, denied := denial(ends); denied && rule == i.answer.Outcome.Rule {
			return ends, nil
		}
		if n == 0 {
			first = ends
		}
	}
	return first, nil
}

// maxTriedBackends bounds the endpoints of a Service that are tried to find the one that was
// chosen.
const maxTriedBackends = 16

// withoutHosts is what would become of the packet if there were no host endpoints; of a Service it
// gets the endpoint wish.
func (i *inquiry) withoutHosts(wish netip.AddrPort) sim.Result {
	open := *i.state
	open.HostEndpoints, open.Settings.ToHost = nil, model.ToHostAccept
	uplinks := map[int]packet.MAC{}
	for index, mac := range i.places.Uplinks {
		uplinks[index] = mac
	}
	return sim.New(&open, sim.Options{FIB: kernelRoute, HostIfIndex: i.places.Host, TunnelIfIndex: i.places.Tunnel, Uplinks: uplinks, NoTunnel: i.places.Tunnel == 0, Pick: func(c sim.Choice) int {
		return max(0, slices.IndexFunc(c.From, func(b nodestate.Backend) bool { return netip.AddrPortFrom(b.Addr, b.Port) == wish }))
	}}).Receive(i.in)
}

// kernelRoute is the kernel's route to an address; false where it leads nowhere, or to the node
// itself.
func kernelRoute(a netip.Addr) (sim.Hop, bool) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return sim.Hop{}, false
	}
	gateway, _ := netip.AddrFromSlice(routes[0].Gw)
	return sim.Hop{IfIndex: routes[0].LinkIndex, Gateway: gateway.Unmap(), MTU: routes[0].MTU}, true
}

// hostEndsOf is hostEnds for a packet of which that becomes, as docs/design/datapath.md says
// ("Passage"); one that is handed on is evaluated by the endpoint that was chosen.
func (i *inquiry) hostEndsOf(ctx context.Context, result sim.Result, chosen netip.AddrPort) (out []wire.End, err error) {
	src := i.in.Packet
	from, to, ports := src.IP.Src, result.Packet.IP.Dst, policyPorts(src, result.Packet)
	if chosen.IsValid() && to == src.IP.Dst && (result.Action == sim.Neigh || result.Action == sim.Tunnel) {
		to, ports.Dst = chosen.Addr(), chosen.Port()
	}
	a, b := i.state.Addrs[from].Kind, i.state.Addrs[to].Kind
	in, leaves := 0, 0
	if i.in.Hook == sim.FromUplink || i.in.Hook == sim.FromTunnel {
		in = i.in.IfIndex
		if i.in.IPIP && !i.nftables {
			in = noInterface
		}
	}
	switch {
	case result.Action == sim.Neigh:
		leaves = result.IfIndex
	case result.Action == sim.Tunnel && !i.nftables && result.IfIndex != 0:
		leaves = noInterface
	case result.Action == sim.Tunnel && i.byIPIP():
		leaves = i.places.IPIP
	case result.Action == sim.Tunnel:
		leaves = i.places.Tunnel
	case result.Action == sim.Pass && i.in.Hook == sim.ToUplink && i.in.IfIndex != i.places.Host:
		leaves = i.in.IfIndex
	}
	ownFrom, ownTo := a == nodestate.AddrHost, b == nodestate.AddrHost
	if !ownTo && b != nodestate.AddrEndpoint && in != 0 && leaves == 0 {
		hop, ok := kernelRoute(to)
		ownTo = !ok
		if _, uplink := i.places.Uplinks[hop.IfIndex]; ok && uplink {
			leaves = hop.IfIndex
		}
	}
	use := func(own bool) policy.HostUse {
		if own {
			return policy.HostOwn
		}
		return policy.HostForward
	}
	look := func(index int, use policy.HostUse, ingress bool, peer netip.Addr) {
		var e wire.End
		if _, _, denied := denial(out); err != nil || denied {
			return
		}
		if e, err = i.hostEnd(ctx, index, use, ingress, peer, ports); e.Explanation.HostEndpoint != "" {
			out = append(out, e)
		}
	}
	if in == 0 && leaves == 0 {
		if a == nodestate.AddrEndpoint && ownTo && i.state.Settings.ToHost == model.ToHostReturn {
			look(0, policy.HostOwn, true, from)
		}
		return out, err
	}
	if in != 0 {
		look(in, use(ownTo), true, from)
	}
	if leaves != 0 {
		look(leaves, use(ownFrom), false, to)
	}
	return out, err
}

// noInterface is the interface of what comes or goes by IP in IP, without a device (IPIP_IFINDEX of
// bpf/ipip.h): no host endpoint is about it but that of all interfaces.
const noInterface = 0x7fffffff

// hostEnd is what the host endpoint of an interface says, nothing where there is none.
func (i *inquiry) hostEnd(ctx context.Context, index int, use policy.HostUse, ingress bool, peer netip.Addr, ports nodestate.Ports) (wire.End, error) {
	at := nodestate.HostInterface{IfIndex: index, IPv6: peer.Is6()}
	h, ok := i.state.HostEndpoints[at]
	if !ok {
		at.IfIndex = 0
		if h, ok = i.state.HostEndpoints[at]; !ok {
			return wire.End{}, nil
		}
	}
	q := policy.HostQuestion{At: at, Use: use, Question: policy.Question{Endpoint: peer, Peer: peer, Ingress: ingress, Proto: i.ask.Protocol, Ports: ports}}
	e, err := i.end(ctx, q.Question, hostIsolation(h, use, ingress), func(c *model.Cluster) (policy.Explanation, bool) { return policy.ExplainHost(c, q) })
	e.Host, e.Interface = use.String(), fmt.Sprintf("interface %d", index)
	if l, err := netlink.LinkByIndex(index); index != 0 && err == nil {
		e.Interface = l.Attrs().Name
	} else if index == noInterface {
		e.Interface = "IP in IP"
	} else if index == 0 {
		e.Interface = "pods' interfaces"
	}
	return e, err
}

// hostIsolation is the set of a host endpoint for one use, in one direction.
func hostIsolation(h nodestate.HostEndpoint, use policy.HostUse, ingress bool) nodestate.Isolation {
	switch {
	case use == policy.HostPreDNAT:
		return h.PreDNAT
	case use == policy.HostUntracked && ingress:
		return h.UntrackedIngress
	case use == policy.HostUntracked:
		return h.UntrackedEgress
	case use == policy.HostOwn && ingress:
		return h.HostIngress
	case use == policy.HostOwn:
		return h.HostEgress
	case ingress:
		return h.ForwardIngress
	}
	return h.ForwardEgress
}
