// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/nodestate"
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
		return
	}
	o.Packet = r.Packet.String()
	pod, node := i.owner(r.Packet.IP.Dst)
	switch r.Action {
	case sim.Local:
		o.Verdict, o.Path, o.Text = wire.Delivered, "local", "into pod "+pod
	case sim.Pass:
		o.Verdict, o.Path, o.Text = wire.Left, "stack", "to the node's own stack, which routes it"
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
	o.Path = "direct"
	if i.state.Addrs[r.NextHop].Kind == nodestate.AddrNode {
		node = r.NextHop
	}
	if r.Action == sim.Tunnel {
		hook, o.Path = wire.FromTunnel, "tunnel"
	}
	name := i.state.Addrs[node].Owner.Name
	if !node.IsValid() || name == "" {
		o.Verdict, o.Text = wire.Left, fmt.Sprintf("out of the cluster, to the neighbour %s", r.NextHop)
		return
	}
	i.sendOn(hook, node, name, pod)
}

// sendOn says that the packet goes to a node of the cluster, where it comes in by a hook.
func (i *inquiry) sendOn(hook string, node netip.Addr, name, pod string) {
	r, o := i.result, &i.answer.Outcome
	o.Verdict, o.Text = wire.SentOn, fmt.Sprintf("to node %s (%s)", name, node)
	if pod != "" {
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
	i.answer.Next = &wire.Next{Node: name, Handover: wire.Handover{Hook: hook, From: from, MAC: i.agent.LinkAddress(), Frame: frame}}
}

// nodeOf is the address of the other node on which an address lives, invalid when there is none.
func (i *inquiry) nodeOf(a netip.Addr) netip.Addr {
	switch at := i.state.Addrs[a]; at.Kind {
	case nodestate.AddrPod:
		return at.Node
	case nodestate.AddrNode:
		return at.Node
	}
	var best netip.Prefix
	var node netip.Addr
	for p, r := range i.state.Routes {
		if p.Contains(a) && (!best.IsValid() || p.Bits() > best.Bits()) {
			best, node = p, r.Node
		}
	}
	return node
}
