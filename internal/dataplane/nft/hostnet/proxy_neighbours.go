// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// The kernel answers neighbours for addresses that no interface has where it has a proxy entry for
// them, also while no agent runs. ARP requests are answered when the address is routed to another
// interface than that by which they come (arp_process), which a route to weir0 sees to. Neighbour
// solicitations are where proxy_ndp is on (ndisc_recv_ns); with that of "all" those sent to the
// address itself are, too, instead of being forwarded (ip6_forward). The entry lets the interface
// receive the solicited-node group.

// ndaProtocol is NDA_PROTOCOL of linux/neighbour.h (since Linux 5.0): who wrote an entry.
const ndaProtocol = 12

// proxied is an entry of ours: an address that is answered for on an interface.
type proxied struct {
	link int
	addr netip.Addr
}

// uplink is an interface by which others reach the node.
type uplink struct {
	index   int
	name    string
	subnets []netip.Prefix // of its addresses, on the link
}

// has returns how long the longest subnet of the uplink is that an address lies in; 0 = none.
func (u uplink) has(a netip.Addr) int {
	longest := 0
	for _, p := range u.subnets {
		if p.Contains(a) {
			longest = max(longest, p.Bits())
		}
	}
	return longest
}

// uplinks are those that are up.
func uplinks(s *nodestate.State) ([]uplink, error) {
	pattern, err := regexp.Compile(s.Settings.DataIfaces)
	if err != nil {
		return nil, fmt.Errorf("looking for uplinks by their names: %w", err)
	}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	addrs, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	subnets := map[int][]netip.Prefix{}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		bits, size := a.Mask.Size()
		if ip = ip.Unmap(); !ok || size != ip.BitLen() || bits == size || ip.IsLinkLocalUnicast() {
			continue
		}
		subnets[a.LinkIndex] = append(subnets[a.LinkIndex], netip.PrefixFrom(ip, bits).Masked())
	}
	var out []uplink
	for _, l := range links {
		at := l.Attrs()
		if at.RawFlags&unix.IFF_UP == 0 || at.RawFlags&(unix.IFF_LOOPBACK|unix.IFF_NOARP) != 0 || len(subnets[at.Index]) == 0 || !pattern.MatchString(at.Name) {
			continue
		}
		out = append(out, uplink{at.Index, at.Name, subnets[at.Index]})
	}
	return out, nil
}

// announced are the addresses of a family that neighbours are answered for. What an interface has
// here or on another node answers by itself.
func announced(s *nodestate.State, f table.Family) []netip.Addr {
	var out []netip.Addr
	for a := range s.Announced {
		if kind := s.Addrs[a].Kind; f.Has(a) && kind != nodestate.AddrHost && kind != nodestate.AddrNode {
			out = append(out, a)
		}
	}
	return out
}

// announcedRoutes lead announced addresses to weir0, but for pods, where they would go out by the
// uplink.
func (m *Network) announcedRoutes(s *nodestate.State, f table.Family, links []uplink, out map[netip.Prefix]route) {
	for _, a := range announced(s, f) {
		subnet, pool, mtu := 0, 0, s.Settings.Tunnel.MTU
		for _, u := range links {
			subnet = max(subnet, u.has(a))
		}
		for p, fits := range s.Settings.PoolRoutes {
			if p.Contains(a) && p.Bits() > pool {
				pool, mtu = p.Bits(), fits
			}
		}
		alone := netip.PrefixFrom(a, a.BitLen())
		if _, led := out[alone]; !led && subnet > 0 && pool <= subnet && s.Addrs[a].Kind != nodestate.AddrEndpoint {
			out[alone] = route{link: m.host.index, mtu: mtu, src: f.Node(s), any: true}
		}
	}
}

// answer makes the proxy entries of a family equal to what a state announces.
func (m *Network) answer(s *nodestate.State, f table.Family, links []uplink) []error {
	want, used := map[proxied]bool{}, map[string]bool{}
	for _, a := range announced(s, f) {
		for _, u := range links {
			if u.has(a) > 0 {
				want[proxied{u.index, a}], used[u.name] = true, true
			}
		}
	}
	if before, looked := m.answers[f]; looked && before == 0 && len(want) == 0 {
		return nil
	}
	var errs []error
	fail := func(key string, err error) {
		if err != nil {
			errs = append(errs, &dataplane.KeyError{Table: "neighbours", Key: key, Err: err})
		}
	}
	delay := arpDelay
	if f.Six {
		delay = solicitDelay
	}
	for name := range used {
		fail(name, delay.make(name, m.stateDir)) // else an answer waits for up to 0.8 s
	}
	if f.Six && len(want) > 0 {
		fail("all", proxyNDP.make("all", m.stateDir))
	}
	have, err := listProxied(f)
	fail(f.String(), err)
	if err != nil {
		return errs
	}
	for p, protocol := range have {
		if protocol == routeProtocol && !want[p] {
			fail(p.addr.String(), p.write(unix.RTM_DELNEIGH, 0))
		}
	}
	for p := range want {
		if _, ok := have[p]; !ok { // somebody else's answers as well
			fail(p.addr.String(), p.write(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE))
		}
	}
	if len(want) > 0 || len(errs) == 0 {
		m.answers[f] = len(want)
	}
	return errs
}

// removeProxied takes our entries away.
func removeProxied() error {
	var errs []error
	for _, f := range table.Families {
		have, err := listProxied(f)
		errs = append(errs, err)
		for p, protocol := range have {
			if protocol == routeProtocol {
				errs = append(errs, p.write(unix.RTM_DELNEIGH, 0))
			}
		}
	}
	return errors.Join(errs...)
}

// write adds or removes an entry. It outlives a link that is down for a while.
func (p proxied) write(kind, flags int) error {
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: uint8(table.FamilyOf(p.addr).Number()), Index: uint32(p.link), State: unix.NUD_PERMANENT, Flags: unix.NTF_PROXY})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, p.addr.AsSlice()))
	if kind == unix.RTM_NEWNEIGH {
		req.AddData(nl.NewRtAttr(ndaProtocol, []byte{routeProtocol}))
	}
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("writing the proxy entry of %s on interface %d: %w", p.addr, p.link, err)
	}
	return nil
}

// listProxied are all proxy entries of a family, with the protocol number of who wrote them.
func listProxied(f table.Family) (map[proxied]uint8, error) {
	msgs, err := kernel.Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
		req.AddData(&netlink.Ndmsg{Family: uint8(f.Number()), Flags: unix.NTF_PROXY})
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	})
	if err != nil {
		return nil, fmt.Errorf("listing proxy entries of %s: %w", f, err)
	}
	const head = 12 // struct ndmsg: family, 3 bytes, index, state, flags, type
	out := map[proxied]uint8{}
	for _, b := range msgs {
		if len(b) < head || b[0] != uint8(f.Number()) || b[10]&unix.NTF_PROXY == 0 {
			continue
		}
		attrs, err := nl.ParseRouteAttr(b[head:])
		if err != nil {
			return nil, fmt.Errorf("reading a proxy entry: %w", err)
		}
		p, protocol := proxied{link: int(binary.NativeEndian.Uint32(b[4:]))}, uint8(0)
		for _, a := range attrs {
			switch {
			case a.Attr.Type == unix.NDA_DST:
				p.addr, _ = netip.AddrFromSlice(a.Value)
			case a.Attr.Type == ndaProtocol && len(a.Value) > 0:
				protocol = a.Value[0]
			}
		}
		if f.Has(p.addr) {
			out[p] = protocol
		}
	}
	return out, nil
}
