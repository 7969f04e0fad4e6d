// SPDX-License-Identifier: Apache-2.0

package vmflows

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/nodestate"
)

var (
	vm      = netip.MustParseAddr("10.244.1.2")
	near    = netip.MustParseAddr("10.244.1.3") // a pod of the node that the machine leaves
	far     = netip.MustParseAddr("10.244.2.3")
	self    = netip.MustParseAddr("172.30.0.8") // that node
	outside = netip.MustParseAddr("203.0.113.9")
	service = netip.MustParseAddr("10.96.0.1")
)

func kind(a netip.Addr) nodestate.AddrKind {
	return map[netip.Addr]nodestate.AddrKind{vm: nodestate.AddrEndpoint, near: nodestate.AddrEndpoint, self: nodestate.AddrHost}[a]
}

// tracked is an open connection of TCP from port 1000 to port 80, whose answers come from back to
// `to`.
func tracked(src, dst, back, to netip.Addr) conntrack.Entry {
	return conntrack.Entry{Orig: conntrack.Tuple{Src: src, Dst: dst, SrcPort: 1000, DstPort: 80, Proto: unix.IPPROTO_TCP},
		Reply:  conntrack.Tuple{Src: back, Dst: to, SrcPort: 80, DstPort: 1000, Proto: unix.IPPROTO_TCP},
		Status: conntrack.Confirmed | conntrack.SeenReply | conntrack.Assured, Left: 7e9, TCP: conntrack.TCP{State: conntrack.TCPEstablished}}
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// TestLeaving: what another node is told of a flow, and what this one has of it then.
func TestLeaving(t *testing.T) {
	t.Parallel()
	open := wire.MachineFlow{Proto: unix.IPPROTO_TCP, State: conntrack.TCPEstablished, Left: 7}
	flow := func(src, dst, backend netip.AddrPort) *wire.MachineFlow {
		f := open
		f.Src, f.Dst, f.Backend = src, dst, backend
		return &f
	}
	over := tracked(far, vm, vm, far)
	over.TCP.State = conntrack.TCPTimeWait
	half := tracked(far, vm, vm, far)
	half.Status = conntrack.Confirmed
	ping := tracked(far, vm, vm, far)
	ping.Orig.Proto, ping.Reply.Proto = unix.IPPROTO_ICMP, unix.IPPROTO_ICMP
	for name, c := range map[string]struct {
		have conntrack.Entry
		told *wire.MachineFlow
		left bool // it is another one here
	}{
		"to the machine":       {tracked(far, vm, vm, far), flow(at(far, 1000), at(vm, 80), netip.AddrPort{}), false},
		"from it":              {tracked(vm, far, far, vm), flow(at(vm, 1000), at(far, 80), netip.AddrPort{}), false},
		"from it to a Service": {tracked(vm, service, far, vm), flow(at(vm, 1000), at(service, 80), at(far, 80)), false},
		"from it to a Service, led to a pod here":  {tracked(vm, service, near, vm), flow(at(vm, 1000), at(service, 80), at(near, 80)), true},
		"by a Service of a pod here":               {tracked(near, service, vm, near), flow(at(near, 1000), at(vm, 80), netip.AddrPort{}), false},
		"from outside":                             {tracked(outside, vm, vm, outside), flow(at(outside, 1000), at(vm, 80), netip.AddrPort{}), false},
		"from outside, by a node port":             {tracked(outside, self, vm, outside), nil, false},
		"with the node's address":                  {tracked(vm, outside, outside, self), nil, false},
		"by a Service, with the node's address":    {tracked(vm, service, outside, self), nil, false},
		"of the node":                              {tracked(self, vm, vm, self), nil, false},
		"from outside, translated to the node":     {tracked(outside, self, vm, self), nil, false},
		"over":                                     {over, nil, false},
		"half open":                                {half, nil, false},
		"of a protocol that begins anew":           {ping, nil, false},
		"of others":                                {tracked(far, near, near, far), nil, false},
		"to a Service, led to the machine itself":  {tracked(vm, service, vm, self), nil, false},
		"to a Service, as itself, to itself again": {tracked(vm, service, vm, vm), nil, false},
	} {
		got, ok := leaving(vm, c.have, kind)
		if ok != (c.told != nil) || ok && got != *c.told {
			t.Errorf("%s: told is %+v, %t", name, got, ok)
		}
		here, ok := left(vm, c.have, kind)
		if ok != c.left || ok && (here.Translated() || here.Reply != c.have.Reply) {
			t.Errorf("%s: left is %+v, %t", name, here, ok)
		}
		if c.told == nil {
			continue
		}
		if e := entry(*c.told); e.Reply.Src != c.have.Reply.Src || e.Reply.Dst != c.told.Src.Addr() || e.TCP.OrigFlags&e.TCP.RepFlags&conntrack.TCPLiberal == 0 || e.Left != minLeft {
			t.Errorf("%s: taken is %+v", name, e)
		}
	}
}
