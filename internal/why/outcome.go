// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/internal/why/wire"
)

// describe says in words what the program did.
func (i *inquiry) describe() {
	r, o := i.result, &i.answer.Outcome
	o.Rule = i.state.RuleText(r.Rule)
	if s := i.answer.Service; s != nil && s.Chosen == "" && !i.refusedBy() && !i.handedOn() {
		s.Chosen = netip.AddrPortFrom(r.Packet.IP.Dst, r.Packet.DstPort).String()
	}
	if i.refusedBy() {
		o.Verdict, o.Reason, o.Text = wire.Dropped, r.Reason.String(), r.Reason.Text()
		if r.Action == sim.Answer {
			o.Text += "; the sender gets an ICMP error or a reset"
		}
		if r.Reason == reason.NoGateway {
			o.EgressRule = i.egressRule(i.in.Packet.IP.Dst)
			o.Text += byRule(o.EgressRule)
		}
		return
	}
	o.Packet = r.Packet.String()
	pod, node := i.owner(r.Packet.IP.Dst)
	switch r.Action {
	case sim.Local:
		o.Verdict, o.Path, o.Text = wire.Delivered, "local", "into pod "+pod
	case sim.Pass:
		o.Verdict, o.Path, o.Text = wire.Left, "stack", "to the node's own stack, which routes it"
		if to := r.Packet.IP.Dst; i.in.Hook == sim.ToUplink && i.in.IfIndex != i.places.Host {
			o.Route = routeOut(to, i.in.IfIndex)
		}
		switch at := i.state.Addrs[r.Packet.IP.Dst]; {
		case at.Kind == nodestate.AddrHost:
			o.Verdict, o.Text = wire.Delivered, "to node "+node+" itself"
		case i.in.Hook == sim.ToUplink && at.Kind == nodestate.AddrNode:
			i.sendOn(wire.FromUplink, at.Node, at.Owner.Name, "")
		}
	case sim.Tunnel, sim.Neigh:
		i.describeRoute(pod)
	default:
		o.Verdict, o.Text = wire.Left, r.Action.String()
	}
}

// refusedBy reports whether the program dropped the packet.
func (i *inquiry) refusedBy() bool {
	return i.result.Action == sim.Drop || i.result.Action == sim.Answer || i.result.Action == sim.Keep
}

// describeRoute is describe for what leaves the node by its programs.
func (i *inquiry) describeRoute(pod string) {
	r, o := i.result, &i.answer.Outcome
	hook, node := wire.FromUplink, i.nodeOf(r.Packet.IP.Dst)
	o.Path, o.Gateway = "direct", i.gateway()
	if !node.IsValid() {
		o.EgressRule = i.egressRule(r.Packet.IP.Dst)
	}
	if i.state.Addrs[r.NextHop].Kind == nodestate.AddrNode {
		node = r.NextHop
	}
	if r.Action == sim.Tunnel {
		hook, o.Path = wire.FromTunnel, "tunnel"
		i.describeTunnel(node)
	} else {
		o.Route = routeFor(r.IfIndex, r.NextHop, r.Packet.IP.Dst, node)
		if w := i.wireGuard(r.Packet.IP.Dst); w.On() && deviceName(r.IfIndex) == w.Interface {
			o.Encrypted = w.Interface
		}
	}
	name := i.state.Addrs[node].Owner.Name
	if !node.IsValid() || name == "" {
		o.Verdict, o.Text = wire.Left, fmt.Sprintf("out of the cluster, to the neighbour %s", r.NextHop)
		if o.Gateway != "" {
			o.Text += fmt.Sprintf(", by egress gateway %s, with the address %s", o.Gateway, r.Packet.IP.Src)
		} else if o.EgressRule != "" {
			o.Text += ", by no egress gateway"
		}
		o.Text += byRule(o.EgressRule)
		return
	}
	if i.guarded(node) && o.Encrypted == "" && o.Path == "tunnel" {
		i.dropInClear("what would go there in clear")
		return
	}
	i.sendOn(hook, node, name, pod)
}

// sendOn says that the packet goes to a node of the cluster, where it comes in by a hook.
func (i *inquiry) sendOn(hook string, node netip.Addr, name, pod string) {
	r, o := i.result, &i.answer.Outcome
	o.Verdict, o.Text = wire.SentOn, fmt.Sprintf("to node %s (%s)", name, node)
	if o.Tunnel != "" {
		o.Text += " by " + o.Tunnel
	}
	if o.Encrypted != "" {
		o.Text += fmt.Sprintf(", encrypted by WireGuard (%s)", o.Encrypted)
	}
	if o.Gateway != "" {
		o.Text += " for egress gateway " + o.Gateway + byRule(o.EgressRule)
	}
	if pod != "" {
		if o.Encrypted != "" {
			o.Text += ","
		}
		o.Text += " for pod " + pod
	}
	frame, err := r.Packet.Marshal()
	if err != nil {
		i.warn("what goes on cannot be written as bytes: %v", err)
		return
	}
	from := i.state.Settings.Node
	if r.Packet.IP.Dst.Is6() {
		from = i.state.Settings.Node6
	}
	i.answer.Next = &wire.Next{Node: name, Handover: wire.Handover{Hook: hook, From: from, MAC: i.agent.LinkAddress(), Frame: frame,
		IPIP: o.Tunnel == wire.IPIP, Encrypted: o.Encrypted != ""}}
}

// gateway names the egress gateway by which the packet leaves the cluster, empty = by none: of the
// tables' those that the program may have chosen.
func (i *inquiry) gateway() string {
	r, client := i.result, i.in.Packet.IP.Src
	to := r.Packet.IP.Dst
	if i.nodeOf(to).IsValid() || i.in.Hook == sim.FromWorkload && !i.state.MustLeaveByGateway(client, to) {
		return ""
	}
	a := i.led
	switch {
	case i.nftables && !a.IsValid():
		a = i.gatewayOfOpen(client, to)
	case !i.nftables:
		a = sim.Gateway(i.state, netip.AddrPortFrom(client, i.in.Packet.SrcPort), netip.AddrPortFrom(to, r.Packet.DstPort), i.in.Hook == sim.FromTunnel)
	}
	if !a.IsValid() {
		return ""
	}
	if pod, _ := i.owner(a); pod != "" {
		return fmt.Sprintf("%s (%s)", pod, a)
	}
	return a.String()
}

// gatewayOfOpen is the gateway of an open flow, by where its packet goes: connection tracking knows
// the node, or the address with which it leaves. invalid = several may be meant.
func (i *inquiry) gatewayOfOpen(client, to netip.Addr) (found netip.Addr) {
	for _, g := range i.state.GatewaysOf(client, to) {
		at := i.state.Addrs[g]
		own := at.Kind == nodestate.AddrEndpoint
		source := g
		if own && at.NATOutgoing {
			source = i.state.Settings.Node
			if g.Is6() {
				source = i.state.Settings.Node6
			}
		}
		if own && i.result.Packet.IP.Src == source || !own && i.result.Action == sim.Tunnel && i.nodeOf(g) == i.result.NextHop {
			if found.IsValid() {
				return netip.Addr{}
			}
			found = g
		}
	}
	return found
}

// egressRule says which rule of an EgressGatewayPolicy decides on what leaves the cluster for an
// address; empty = the client has no policy, or nothing of it leaves so.
func (i *inquiry) egressRule(to netip.Addr) string {
	client := i.in.Packet.IP.Src
	policy, has := i.state.Egress.Policies[client]
	if !has || i.in.Hook == sim.FromWorkload && !i.state.Addrs[client].Gateways {
		return ""
	}
	group, cidr := i.state.Egress.Group(client, to)
	name := "EgressGatewayPolicy " + i.state.Egress.Names[policy]
	if group == nodestate.GroupNone {
		return name + ", which has none for " + to.String()
	}
	return name + " for " + cidr.String()
}

// byRule is a rule in a sentence.
func byRule(rule string) string {
	if rule == "" {
		return ""
	}
	return ", by the rule of " + rule
}

// byIPIP reports whether the packet leaves by IP in IP: the programs then name the interface, which
// for VXLAN is the device's.
func (i *inquiry) byIPIP() bool {
	if i.nftables {
		return i.result.Action == sim.Tunnel && i.places.IPIP != 0 && i.result.IfIndex == i.places.IPIP
	}
	return i.result.Action == sim.Tunnel && i.result.IfIndex != 0
}

// describeTunnel says by which tunnel the packet goes to a node, and by which route of the
// kernel's, which is asked for the outer packet.
func (i *inquiry) describeTunnel(node netip.Addr) {
	o := &i.answer.Outcome
	o.Tunnel = wire.VXLAN
	port := i.state.Settings.Tunnel.Port
	if i.byIPIP() {
		o.Tunnel, port = wire.IPIP, 0
	}
	encrypted := false
	if o.Route, encrypted = i.outerRoute(node, port); encrypted {
		o.Encrypted = o.Route.Interface
	}
}

// wireGuard is what is encrypted in an address's family.
func (i *inquiry) wireGuard(a netip.Addr) *nodestate.WireGuard {
	if a.Is6() {
		return &i.state.WireGuard6
	}
	return &i.state.WireGuard4
}

// guarded reports whether nothing of the tunnel may go to a node in clear, nor come from it.
func (i *inquiry) guarded(node netip.Addr) bool {
	w := i.wireGuard(node)
	_, is := w.Peers[node]
	return w.On() && is
}

// guardTable is what drops it in the kernel, wireguard.Table.
const guardTable = "weir-wireguard"

// dropInClear says that the guard of WireGuard drops the packet.
func (i *inquiry) dropInClear(what string) {
	o := &i.answer.Outcome
	*o = wire.Outcome{Verdict: wire.Dropped, Reason: "NOT_ENCRYPTED", Tunnel: o.Tunnel, Route: o.Route,
		Text: fmt.Sprintf("nftables table inet %s drops %s: the node's key is known", guardTable, what)}
	i.answer.Next = nil
}

// nodeOf is the address of the other node on which an address lives, invalid when there is none.
func (i *inquiry) nodeOf(a netip.Addr) netip.Addr {
	switch at := i.state.Addrs[a]; at.Kind {
	case nodestate.AddrPod:
		return at.Node
	case nodestate.AddrNode:
		return at.Node
	}
	r, _ := i.state.RouteTo(a)
	return r.Node
}
