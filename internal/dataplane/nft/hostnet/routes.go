// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/kernel"
)

// routeProtocol marks our routes (rtnetlink(7) RTA protocol, of the range for user space daemons).
const routeProtocol = kernel.RouteProtocol

// The metrics of routes to pods of other nodes: before those that the BGP process learned
// (fib.Metric), or behind them, where these count. The kernel makes 1024 of none in IPv6.
const (
	metricLink6   = 256
	metricLearned = 2048
	kernelMetric6 = 1024
)

// route is one of ours, comparable.
type route struct {
	link   int
	via    netip.Addr // invalid: on the link
	mtu    int        // bytes, 0 = the link's
	src    netip.Addr // preferred source
	inner  netip.Addr // the same inside of the tunnel, where it is not src
	remote netip.Addr // the other end of the tunnel; invalid: none
	vni    uint32
	any    bool // that somebody routes the prefix is enough
	metric int  // 0 = the kernel's
}

// routes are those that were written. The kernel's routes into the tunnel are not read back
// (netlink's library does not know their encapsulation), so the first pass writes them again: the
// same route in the same place.
type routes struct {
	written map[netip.Prefix]route
	changes uint64
}

// ensure makes the routes of our protocol number equal to want. Those of others are not touched: a
// prefix that somebody else routes is an error.
func (r *routes) ensure(want map[netip.Prefix]route, log *slog.Logger) []error {
	var errs []error
	have := map[netip.Prefix][]netlink.Route{}
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := kernel.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(f, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return append(errs, fmt.Errorf("listing routes: %w", err))
		}
		for _, one := range found {
			p := kernel.RoutePrefix(one.Dst, f)
			have[p] = append(have[p], one)
		}
	}
	remove := func(p netip.Prefix, all []netlink.Route) {
		for _, one := range all {
			if err := netlink.RouteDel(&one); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, routeError(p, "removing", err))
			}
		}
	}
	if r.written == nil {
		r.written = map[netip.Prefix]route{}
	}
	for p, one := range want {
		there, ok, others := one.among(p, have[p])
		if ok && r.written[p] == one && there.LinkIndex == one.link {
			remove(p, others)
			continue
		}
		if err := one.put(p, ok); one.any && errors.Is(err, unix.EEXIST) {
			continue
		} else if err != nil {
			errs = append(errs, routeError(p, "adding", err))
			continue
		}
		// Those of another metric go when the new one is there: no packet finds none.
		remove(p, others)
		r.written[p] = one
		r.changes++
	}
	// Nor does one where a route of another length takes the place of this one.
	for p, all := range have {
		if _, ok := want[p]; !ok {
			remove(p, all)
			delete(r.written, p)
		}
	}
	return errs
}

// among returns the route whose place this one takes, that of the same metric, and the others.
func (r route) among(p netip.Prefix, all []netlink.Route) (there netlink.Route, ok bool, others []netlink.Route) {
	metric := r.metric
	if metric == 0 && p.Addr().Is6() {
		metric = kernelMetric6
	}
	for _, one := range all {
		if one.Priority == metric {
			there, ok = one, true
		} else {
			others = append(others, one)
		}
	}
	return there, ok, others
}

// put writes a route; replace says that one of ours is there.
func (r route) put(p netip.Prefix, replace bool) error {
	if replace {
		return netlink.RouteReplace(r.netlink(p))
	}
	return netlink.RouteAdd(r.netlink(p))
}

// netlink is the route as the library has it.
func (r route) netlink(p netip.Prefix) *netlink.Route {
	out := &netlink.Route{LinkIndex: r.link, Protocol: routeProtocol, Priority: r.metric, MTU: r.mtu, Src: r.src.AsSlice(),
		Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if r.inner.IsValid() {
		out.Src = r.inner.AsSlice()
	}
	switch {
	case r.remote.IsValid():
		out.Encap = &tunnelEncap{id: r.vni, dst: r.remote, src: r.src}
		out.Scope = netlink.SCOPE_LINK
		if r.via.IsValid() {
			out.Scope, out.Gw, out.Flags = netlink.SCOPE_UNIVERSE, r.via.AsSlice(), int(netlink.FLAG_ONLINK)
		}
	case r.via.IsValid():
		out.Gw = r.via.AsSlice()
		out.Flags = int(netlink.FLAG_ONLINK)
	default:
		out.Scope = netlink.SCOPE_LINK
	}
	if p.Addr().Is6() {
		out.Scope = netlink.SCOPE_UNIVERSE
	}
	return out
}

func routeError(p netip.Prefix, doing string, err error) error {
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("somebody else routes this prefix (ip route show %s); remove that route: %w", p, err)
	}
	return &dataplane.KeyError{Table: "routes", Key: p.String(), Err: fmt.Errorf("%s: %w", doing, err)}
}

// tunnelEncap gives packets of a route their outer addresses and VNI (LWTUNNEL_ENCAP_IP and IP6,
// since Linux 4.3).
type tunnelEncap struct {
	id       uint32
	dst, src netip.Addr
}

// Attributes of linux/lwtunnel.h, the same numbers for both families.
const (
	lwtID, lwtDst, lwtSrc, lwtTTL, lwtFlags = 1, 2, 3, 4, 6
	tunnelChecksum                          = 0x0100 // TUNNEL_CSUM as it lies in memory: bit 0 in network order
)

// Type implements netlink.Encap.
func (e *tunnelEncap) Type() int {
	if e.dst.Is6() {
		return nl.LWTUNNEL_ENCAP_IP6
	}
	return nl.LWTUNNEL_ENCAP_IP
}

// Encode implements netlink.Encap.
func (e *tunnelEncap) Encode() ([]byte, error) {
	attr := func(typ int, data []byte) []byte {
		out := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
		out = append(binary.NativeEndian.AppendUint16(out, uint16(typ)), data...)
		for len(out)%4 != 0 {
			out = append(out, 0)
		}
		return out
	}
	out := attr(lwtID, binary.BigEndian.AppendUint64(nil, uint64(e.id)))
	out = append(out, attr(lwtDst, e.dst.AsSlice())...)
	if e.src.IsValid() {
		out = append(out, attr(lwtSrc, e.src.AsSlice())...)
	}
	out = append(out, attr(lwtTTL, []byte{64})...)
	if e.dst.Is6() { // a checksum of 0 is for tunnels that agree on it (RFC 6935)
		out = append(out, attr(lwtFlags, binary.NativeEndian.AppendUint16(nil, tunnelChecksum))...)
	}
	return out, nil
}

// Decode implements netlink.Encap.
func (e *tunnelEncap) Decode([]byte) error { return errors.New("not needed") }

// String implements netlink.Encap.
func (e *tunnelEncap) String() string { return fmt.Sprintf("id %d dst %s", e.id, e.dst) }

// Equal implements netlink.Encap.
func (e *tunnelEncap) Equal(other netlink.Encap) bool {
	o, ok := other.(*tunnelEncap)
	return ok && *o == *e
}
