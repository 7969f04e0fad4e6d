// SPDX-License-Identifier: Apache-2.0

package why

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/why/wire"
)

// fibRoute is a route of the kernel's.
type fibRoute struct {
	prefix   netip.Prefix
	protocol uint8
	hops     []fibHop // of several, packets take any
}

// fibHop is where a route leads.
type fibHop struct {
	ifindex int
	gateway netip.Addr // invalid = what is on the link
}

// Attributes of a question for a route, and its flag (linux/rtnetlink.h).
const (
	rtaIPProto  = 27
	rtaDPort    = 29
	rtmFIBMatch = 0x2000
)

// question asks the kernel for the route of what the node itself sends to an address. Rules may
// choose by the protocol (IANA's number) and the port there; 0 = of no matter which packet.
type question struct {
	to       netip.Addr
	protocol uint8
	port     uint16
}

// route is the answer; ok is false where no route leads on.
func (q question) route() (r fibRoute, ok bool) {
	to := q.to
	family := uint8(unix.AF_INET)
	if to.Is6() {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	msg := nl.NewRtMsg()
	msg.Family, msg.Dst_len, msg.Flags, msg.Scope, msg.Type, msg.Protocol = family, uint8(to.BitLen()), rtmFIBMatch, 0, 0, 0
	msg.Table = 0
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	if q.port != 0 {
		req.AddData(nl.NewRtAttr(rtaIPProto, []byte{q.protocol}))
		req.AddData(nl.NewRtAttr(rtaDPort, binary.BigEndian.AppendUint16(nil, q.port)))
	}
	answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	if err != nil || len(answers) != 1 || len(answers[0]) < unix.SizeofRtMsg {
		return r, false
	}
	return parseRoute(to, answers[0])
}

// parseRoute reads an RTM_NEWROUTE that answers a question for an address.
func parseRoute(to netip.Addr, b []byte) (r fibRoute, ok bool) {
	msg := nl.DeserializeRtMsg(b)
	attrs, err := nl.ParseRouteAttr(b[unix.SizeofRtMsg:])
	if err != nil || msg.Type != unix.RTN_UNICAST {
		return r, false
	}
	prefix, err := to.Prefix(int(msg.Dst_len))
	if err != nil {
		return r, false
	}
	r = fibRoute{prefix: prefix, protocol: msg.Protocol}
	var one fibHop
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_OIF:
			one.ifindex = int(binary.NativeEndian.Uint32(a.Value))
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			one.gateway = gatewayOf(a.Attr.Type, a.Value)
		case unix.RTA_MULTIPATH:
			r.hops = append(r.hops, parseHops(a.Value)...)
		}
	}
	if one.ifindex != 0 {
		r.hops = append(r.hops, one)
	}
	return r, len(r.hops) > 0
}

// parseHops reads the hops of a route that has several.
func parseHops(b []byte) (out []fibHop) {
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			break
		}
		hop := fibHop{ifindex: int(binary.NativeEndian.Uint32(b[4:]))}
		attrs, err := nl.ParseRouteAttr(b[unix.SizeofRtNexthop:size])
		if err != nil {
			break
		}
		for _, a := range attrs {
			if of := a.Attr.Type; of == unix.RTA_GATEWAY || of == unix.RTA_VIA {
				hop.gateway = gatewayOf(of, a.Value)
			}
		}
		out = append(out, hop)
		b = b[min(len(b), (size+3)/4*4):]
	}
	return out
}

// gatewayOf reads an attribute RTA_GATEWAY, or RTA_VIA, which begins with the family.
func gatewayOf(attr uint16, value []byte) netip.Addr {
	if attr == unix.RTA_VIA && len(value) >= 2 {
		value = value[2:]
	}
	a, _ := netip.AddrFromSlice(value)
	return a
}

// leads reports whether packets to an address that take the route go out by an interface, to a
// neighbour.
func (r *fibRoute) leads(to netip.Addr, ifindex int, neighbour netip.Addr) bool {
	return slices.ContainsFunc(r.hops, func(h fibHop) bool {
		hop := h.gateway
		if !hop.IsValid() {
			hop = to
		}
		return h.ifindex == ifindex && hop == neighbour
	})
}

// protocols are what put routes into the kernel, as ip(8) has it, and Weir's own programs.
var protocols = map[uint8]string{unix.RTPROT_REDIRECT: "an ICMP redirect", unix.RTPROT_KERNEL: "kernel", unix.RTPROT_BOOT: "boot", unix.RTPROT_STATIC: "static",
	unix.RTPROT_RA: "ra", unix.RTPROT_DHCP: "dhcp", unix.RTPROT_BIRD: "bird", unix.RTPROT_ZEBRA: "zebra", unix.RTPROT_BGP: "bgp",
	unix.RTPROT_ISIS: "isis", unix.RTPROT_OSPF: "ospf", unix.RTPROT_RIP: "rip", kernel.RouteProtocol: "weir", fib.Protocol: "weir-bgp"}

// said is the route in the answer, with the hop that packets by an interface to a neighbour take.
func (r *fibRoute) said(to netip.Addr, ifindex int, neighbour netip.Addr) *wire.Route {
	out := &wire.Route{Prefix: r.prefix.String(), By: protocols[r.protocol], Learned: r.protocol == fib.Protocol, Interface: deviceName(ifindex)}
	if out.By == "" {
		out.By = fmt.Sprintf("protocol %d", r.protocol)
	}
	if neighbour != to {
		out.Via = neighbour.String()
	}
	return out
}

// deviceName is the name of an interface.
func deviceName(index int) string {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("interface %d", index)
	}
	return l.Attrs().Name
}

// routeFor finds the route of the node's by which a packet goes that leaves it by an interface to a
// neighbour: that to one of the addresses of which the data plane may have asked, which leads
// there. nil = none does.
func routeFor(ifindex int, neighbour netip.Addr, asked ...netip.Addr) *wire.Route {
	for _, to := range asked {
		if !to.IsValid() {
			continue
		}
		if r, ok := (question{to: to}).route(); ok && r.leads(to, ifindex, neighbour) {
			return r.said(to, ifindex, neighbour)
		}
	}
	return nil
}

// routeOut is the route to an address, where it leads out by an interface.
func routeOut(to netip.Addr, ifindex int) *wire.Route {
	r, ok := question{to: to}.route()
	if !ok || r.hops[0].ifindex != ifindex {
		return nil
	}
	hop := r.hops[0].gateway
	if !hop.IsValid() {
		hop = to
	}
	return r.said(to, ifindex, hop)
}

// outerRoute is the route of the tunnel's packets to a node; encrypted says that it leads into the
// family's device of WireGuard. port is the tunnel's, 0 = it is IP in IP.
func (i *inquiry) outerRoute(node netip.Addr, port uint16) (r *wire.Route, encrypted bool) {
	found, ok := question{node, unix.IPPROTO_UDP, port}.route()
	if !ok {
		return nil, false
	}
	hop := found.hops[0]
	if !hop.gateway.IsValid() {
		hop.gateway = node
	}
	r = found.said(node, hop.ifindex, hop.gateway)
	return r, r.Interface == i.wireGuard(node).Interface
}
