// SPDX-License-Identifier: Apache-2.0

// Package hostnet is what a node of the nftables data plane has besides tables: its devices, the
// routes to pools and other nodes, policy routing by packet marks, proxy entries for announced
// addresses, and the kernel's settings. Network makes them equal to a state in two steps: Prepare
// before tables are written, Open after. Routes, rules and entries carry a protocol number of our
// own; nobody else's are touched.
package hostnet

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// Network is what was put in place, as far as is known. It is for one goroutine.
type Network struct {
	log          *slog.Logger
	host         *device
	tunnel       *device
	ipip         *device
	remade       bool // the tunnel's device is another than before: what was attached to it is gone
	routes       routes
	policyRoutes policyRoutes
	nodeRoutes   nodeRoutes

	uplinks     []uplink             // by which announced addresses are answered for
	answers     map[table.Family]int // how many addresses are answered for; nothing = an agent before this one may have left some
	acceptLocal map[string]int       // pods' interfaces that were looked at, by name: their index
	trusted     map[string]int       // those of pods that send with sources that are not their own, likewise
	stateDir    string               // survives a reboot; "" = there is none

	beside     func(node string) ([6]byte, error) // Beside; nil = all nodes have Weir
	neighbours map[netip.Addr][6]byte             // at the tunnel's device, as written
	ownBeside  netip.Addr                         // of the device of IP in IP; invalid = it has none
}

// Prepare makes what tables and routes refer to.
func (m *Network) Prepare(s *nodestate.State) []error {
	var errs []error
	fail := func(key string, err error) {
		if err != nil {
			errs = append(errs, &dataplane.KeyError{Table: "devices", Key: key, Err: err})
		}
	}
	mtu := s.Settings.Tunnel.MTU + vxlanOverhead
	if s.Settings.Tunnel.MTU <= 0 {
		mtu = defaultMTU
	}
	var err error
	m.host, err = ensureHostDevice(mtu)
	fail(HostDevice, err)
	before := m.tunnel
	m.tunnel = nil
	if s.NeedsTunnel() {
		m.tunnel, err = ensureTunnel(s.Settings.Tunnel.Port, mtu)
		fail(TunnelDevice, err)
	} else {
		fail(TunnelDevice, removeIfOurs(TunnelDevice))
	}
	fail(IPIPDevice, m.prepareIPIP(s))
	m.remade = (before == nil) != (m.tunnel == nil) || before != nil && before.index != m.tunnel.index
	return errs
}

// Open brings devices up, lets the kernel forward and makes routes, of the families whose tables
// are in force: what comes by them has to be evaluated. What comes out of the tunnel may be of any
// family that the node carries.
func (m *Network) Open(s *nodestate.State, written func(table.Family) bool, numbers func(table.Family) *marks.Numbers) []error {
	var errs []error
	fail := func(key string, err error) {
		if err != nil {
			errs = append(errs, &dataplane.KeyError{Table: "devices", Key: key, Err: err})
		}
	}
	if m.host == nil {
		return nil // prepare said why
	}
	opened := func(f table.Family) bool { return f.Carried(s) && written(f) }
	all := opened(table.Family{}) && (!s.Settings.IPv6 || opened(table.Family{Six: true}))
	if !opened(table.Family{}) && !opened(table.Family{Six: true}) {
		return nil // their tables said why
	}
	names := []string{HostPeer, HostDevice}
	if m.tunnel != nil && all {
		names = append(names, TunnelDevice)
	}
	if m.ipip != nil && all {
		names = append(names, IPIPDevice)
	}
	for _, name := range names {
		fail(name, errors.Join(setUp(name), kernel.TrustDevice(name)))
		if opened(table.Family{Six: true}) && name != HostPeer && name != IPIPDevice {
			fail(name, carryIPv6(name))
		}
	}
	if opened(table.Family{}) {
		_, err := kernel.SetSysctl(1, "net", "ipv4", "ip_forward")
		fail("ip_forward", err)
		if err := m.acceptLocalOfPods(s); err != nil { // what it spares is all that is lost
			m.log.Warn("the kernel goes on checking sources of some pods", "error", err)
		}
	}
	if opened(table.Family{}) {
		fail("sources of pods", m.trustSenders(s))
	}
	if opened(table.Family{Six: true}) {
		fail("forwarding of IPv6", forwardIPv6())
	}
	if all {
		errs = append(errs, m.tunnelNeighbours(s)...)
	}
	want, errs2 := m.wantedRoutes(s, opened, all)
	if len(s.Announced) == 0 {
		m.uplinks = nil
	} else if links, err := uplinks(s); err == nil {
		m.uplinks = links
	} else {
		fail("uplinks", err) // what is announced goes on by those of before
	}
	for _, f := range table.Families {
		if opened(f) {
			m.announcedRoutes(s, f, m.uplinks, want)
		}
	}
	errs = append(append(errs, errs2...), m.routes.ensure(want, m.log)...)
	if all {
		errs = append(errs, m.nodeRoutes.ensure(s, m, opened)...)
	}
	for _, f := range table.Families {
		if opened(f) || !f.Carried(s) {
			errs = append(errs, m.answer(s, f, m.uplinks)...)
		}
	}
	if all {
		for _, f := range table.Families {
			if n := numbers(f); n != nil {
				errs = append(errs, m.policyRoutes.ensure(s, m, f, n)...)
			}
		}
	}
	return errs
}

// wantedRoutes are those that the state asks for: the pools by weir0, so that nothing for an
// address that nobody has leaves the node, and what is on other nodes.
func (m *Network) wantedRoutes(s *nodestate.State, opened func(table.Family) bool, tunnel bool) (map[netip.Prefix]route, []error) {
	out, errs := map[netip.Prefix]route{}, []error(nil)
	for p, mtu := range s.Settings.PoolRoutes {
		f := table.FamilyOf(p.Addr())
		if opened(f) {
			out[p.Masked()] = route{link: m.host.index, mtu: mtu, src: f.Node(s)}
		}
	}
	known := map[netip.Addr]route{}
	add := func(p netip.Prefix, node netip.Addr, through, ipip, learned bool) {
		f := table.FamilyOf(node)
		if !opened(f) || !opened(table.FamilyOf(p.Addr())) || learned && s.Settings.Chained { // that plugin's routes and rules lead there
			return
		}
		if through {
			if r, ok := m.through(s, node, ipip); ok && tunnel {
				out[p] = r
			}
			return
		}
		direct, ok := known[node]
		if !ok {
			var err error
			if direct, err = routeTo(node); err != nil {
				errs = append(errs, &dataplane.KeyError{Table: "routes", Key: p.String(), Err: err})
				return
			}
			direct.src = f.Node(s)
			known[node] = direct
		}
		direct.metric = 0
		switch {
		case learned:
			direct.metric = metricLearned
		case f.Six:
			direct.metric = metricLink6
		}
		out[p] = direct
	}
	for p, r := range s.Routes {
		if r.Node.IsValid() {
			add(p.Masked(), r.Node, r.Tunnel, r.IPIP, r.Learned)
		}
	}
	for a, v := range s.Addrs {
		if v.Kind == nodestate.AddrPod && v.Node.IsValid() && !covered(s, a, v) {
			add(netip.PrefixFrom(a, a.BitLen()), v.Node, v.Tunnel, v.IPIP, v.Learned)
		}
	}
	return out, errs
}

// tunnelRoute is the route to a node by VXLAN.
func (m *Network) tunnelRoute(s *nodestate.State, node netip.Addr) route {
	f := table.FamilyOf(node)
	mtu := s.Settings.Tunnel.MTU
	if f.Six {
		mtu -= 20 // the outer header is longer
	}
	r := route{link: m.tunnel.index, mtu: mtu, src: f.Node(s), remote: node, vni: s.Settings.Tunnel.VNI}
	if m.beside != nil && node.Is4() {
		r.via = node // tunnelNeighbours knows its MAC address there
	}
	return r
}

// covered reports whether the longest prefix that holds a pod's address leads where the pod is.
func covered(s *nodestate.State, a netip.Addr, v nodestate.Addr) bool {
	r, ok := s.RouteTo(a)
	return ok && r.Node == v.Node && r.Tunnel == v.Tunnel && r.IPIP == v.IPIP && r.Learned == v.Learned
}

// routeTo is the kernel's route to a node, and so to its pods.
func routeTo(node netip.Addr) (route, error) {
	found, err := netlink.RouteGet(node.AsSlice())
	if err != nil || len(found) == 0 {
		return route{}, errors.Join(errors.New("no route to node "+node.String()), err)
	}
	r := route{link: found[0].LinkIndex, via: node}
	if gw, ok := netip.AddrFromSlice(found[0].Gw); ok && !gw.IsUnspecified() {
		r.via = gw.Unmap()
	}
	return r, nil
}

// Remove takes away what an earlier run left: routes to other nodes, routing rules, proxy entries
// and the device of IP in IP. Other devices stay, and routes of weir0, which the other data plane
// uses.
func Remove() error {
	host, err := findDevice(HostDevice)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := kernel.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(f, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return fmt.Errorf("listing routes: %w", err)
		}
		for _, r := range found {
			if host != nil && r.LinkIndex == host.index {
				continue
			}
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, routeError(kernel.RoutePrefix(r.Dst, f), "removing", err))
			}
		}
	}
	return errors.Join(append(errs, removePolicyRoutes(), removeNodeRoutes(), removeProxied(), RemoveIPIP())...)
}

// New is one of which nothing is known yet; stateDir survives a reboot, "" = there is none.
func New(log *slog.Logger, stateDir string) Network {
	return Network{log: log, answers: map[table.Family]int{}, stateDir: stateDir}
}

// HostIndex is the index of weir0; 0 = there is none.
func (m *Network) HostIndex() int {
	if m.host == nil {
		return 0
	}
	return m.host.index
}

// TunnelIndex is the index of the tunnel's device; 0 = there is none.
func (m *Network) TunnelIndex() int {
	if m.tunnel == nil {
		return 0
	}
	return m.tunnel.index
}

// Answered is how many addresses of a family neighbours are answered for.
func (m *Network) Answered(f table.Family) int { return m.answers[f] }

// TunnelRemade reports whether the tunnel's device is another than before prepare: what was
// attached to it is gone.
func (m *Network) TunnelRemade() bool { return m.remade }

// TunnelEnd is the node that the route of a prefix leads to through the tunnel; invalid = there is
// none.
func (m *Network) TunnelEnd(p netip.Prefix) netip.Addr {
	if r, ok := m.nodeRoutes.written[p]; ok {
		return r.remote
	}
	return m.routes.written[p].remote
}
