// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// stray is what becomes of an ICMP error about no flow: it begins none. The node's own goes on; no
// pod sends or gets one.
func (n *Node) stray(in In) (Result, *dropped) {
	src, dst := in.Packet.IP.Src, in.Packet.IP.Dst
	k := n.kind(src)
	switch {
	case in.Hook == FromWorkload && !n.owns(in.IfIndex, src),
		(in.Hook == FromUplink || in.Hook == FromTunnel) && (k == nodestate.AddrHost || k == nodestate.AddrEndpoint):
		return Result{}, &dropped{reason: reason.Spoofed}
	case (in.Hook == FromUplink || in.Hook == FromTunnel) && dst.IsLoopback():
		return Result{}, &dropped{reason: reason.NoRoute}
	case n.strays(in):
		return Result{}, &dropped{reason: reason.ReversePath}
	case in.Hook == FromWorkload, k != nodestate.AddrHost && (in.Hook == ToWorkload || n.kind(dst) == nodestate.AddrEndpoint):
		return Result{}, &dropped{reason: reason.ErrorNoFlow}
	case in.Hook != ToUplink || in.IfIndex != n.opts.HostIfIndex:
		return Result{Action: Pass, Packet: in.Packet}, nil
	}
	w, ok, why := n.route(dst)
	if !ok {
		return Result{}, &dropped{reason: why}
	}
	return n.send(in, flowKey{}, &flow{src: src, dst: dst, way: w}, false)
}
