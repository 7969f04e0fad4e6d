// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// Way is a route to what is on another node: by a next hop, or by IP in IP.
type Way struct {
	Prefix netip.Prefix
	Link   int
	Via    netip.Addr // the next hop, or the node at which the tunnel ends
	IPIP   bool
}

// Ways are the routes of IPv4 that an agent has left in the kernel, but for those through VXLAN and
// those that learned ones come before.
func Ways() ([]Way, error) {
	ipip, err := findDevice(IPIPDevice)
	if err != nil {
		return nil, err
	}
	skip := map[int]bool{}
	for _, name := range []string{HostDevice, TunnelDevice} {
		if d, err := findDevice(name); err != nil {
			return nil, err
		} else if d != nil {
			skip[d.index] = true
		}
	}
	found, err := kernel.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	ends, err := tunnelEnds()
	if err != nil {
		return nil, err
	}
	var out []Way
	for _, r := range found {
		w := Way{Prefix: kernel.RoutePrefix(r.Dst, netlink.FAMILY_V4), Link: r.LinkIndex}
		if ipip != nil && r.LinkIndex == ipip.index {
			w.IPIP, w.Via = true, ends[w.Prefix]
		} else if gw, ok := netip.AddrFromSlice(r.Gw); ok {
			w.Via = gw.Unmap()
		}
		if w.Via.IsValid() && r.Priority == 0 && !skip[r.LinkIndex] {
			out = append(out, w)
		}
	}
	return out, nil
}

// tunnelEnds are the nodes at which the tunnels of our routes of IPv4 end, which netlink's library
// does not read.
func tunnelEnds() (map[netip.Prefix]netip.Addr, error) {
	raw, err := kernel.Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		of := nl.NewRtMsg()
		of.Family = unix.AF_INET
		req.AddData(of)
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes with their tunnels: %w", err)
	}
	out := map[netip.Prefix]netip.Addr{}
	for _, m := range raw {
		head := nl.DeserializeRtMsg(m)
		attrs, err := nl.ParseRouteAttr(m[head.Len():])
		if err != nil {
			return nil, fmt.Errorf("reading a route: %w", err)
		}
		if head.Protocol != routeProtocol {
			continue
		}
		var to, end netip.Addr
		for _, a := range attrs {
			switch a.Attr.Type &^ unix.NLA_F_NESTED {
			case unix.RTA_DST:
				to, _ = netip.AddrFromSlice(a.Value)
			case unix.RTA_ENCAP:
				inner, err := nl.ParseRouteAttr(a.Value)
				if err != nil {
					return nil, fmt.Errorf("reading the tunnel of a route: %w", err)
				}
				for _, i := range inner {
					if i.Attr.Type == lwtDst {
						end, _ = netip.AddrFromSlice(i.Value)
					}
				}
			}
		}
		if to.IsValid() && end.IsValid() {
			out[netip.PrefixFrom(to, int(head.Dst_len))] = end
		}
	}
	return out, nil
}
