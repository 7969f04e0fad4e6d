// SPDX-License-Identifier: Apache-2.0

// Package dryrun lets a packet that nobody sends pass the rules that are in the kernel, and says
// where it goes or which chain drops it: the nftables half of `weir why`. It follows the hooks as
// the kernel does, asks the kernel for routes and flows, and compares every chain, and each element
// that was looked up, with what was to be written. Nothing is sent, nothing is written.
package dryrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/egress"
	"github.com/weir-net/weir/internal/dataplane/nft/events"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nfteval"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Question is a packet of which Run says what becomes.
type Question struct {
	In    int        // interface by which it comes in; 0 = the node sends it itself
	From  netip.Addr // the node that sends it through the tunnel; invalid = it does not come by that
	By    string     // the interface by which the tunnel's outer packet comes, "" = the one that leads to From
	IPIP  bool       // the tunnel is IP in IP
	Frame []byte     // Ethernet, as it comes in
	// Pick chooses below n where rules choose at random; nil = at random.
	Pick func(n uint32) uint32
}

// Path is where a packet goes.
type Path string

// Paths.
const (
	PathDropped Path = "dropped"
	PathNowhere Path = "nowhere" // no route leads on
	PathNode    Path = "node"    // to a process of the node
	PathPod     Path = "pod"     // by IfIndex
	PathLink    Path = "link"    // out of IfIndex, to NextHop
	PathTunnel  Path = "tunnel"  // to the node NextHop
)

// Trace is what became of a packet.
type Trace struct {
	Path    Path
	IfIndex int
	NextHop netip.Addr
	IPIP    bool             // the tunnel is IP in IP
	Node    netip.Addr       // that the packet is led to whatever the routes say, as it is handed on, or answered by it
	Gateway netip.Addr       // the egress gateway that the flow gets; invalid = none, or it is open and has one
	Refused bool             // dropped, and the sender is informed
	Chain   string           // that dropped
	Reason  reason.Reason    // of a drop
	Rule    nodestate.RuleID // of policy, of a drop

	Src, Dst         netip.Addr // as it goes on
	SrcPort, DstPort uint16
	Known            bool     // connection tracking knew its flow
	Established      bool     // and has seen an answer
	Choices          []uint32 // of how many was chosen at random
	Proof            Proof
}

// Proof is what the kernel was asked.
type Proof struct {
	Family     string
	Generation uint32 // of the network namespace's rules
	Rules      int    // of the table, each compared with what was written
	Met        int    // that the packet met
	Chains     []string
	Lookups    []Asked
	Differs    []string // what is not in the kernel as it should be
	Others     []string // tables of others, which were not asked
}

// Node is what a dry run needs to know of the node.
type Node struct {
	State   *nodestate.State // nil before the first Apply
	Table   *table.State     // of the packet's family
	Numbers *marks.Numbers   // nil where the node does not carry the family
	Network *hostnet.Network
}

// Run lets a packet pass the rules that are in the kernel, and compares these with what was to be
// written. No packet is sent, nothing is written. of gives what belongs to the packet's family.
func Run(q Question, of func(table.Family) Node) (*Trace, error) {
	if len(q.Frame) < 14 {
		return nil, errors.New("no frame")
	}
	t, ok := events.ParseHeader(q.Frame[14:])
	if !ok {
		return nil, errors.New("no IP packet")
	}
	f := table.FamilyOf(t.Src)
	n := of(f)
	if n.State == nil || n.Numbers == nil {
		return nil, fmt.Errorf("the node does not carry %s", f)
	}
	r := &dryRun{node: n, family: f, question: q, out: &Trace{}}
	for range 3 {
		if err := r.begin(t); err != nil {
			return nil, err
		}
		if err := r.pass(); err != nil {
			return nil, err
		}
		if same, err := r.walk.Table.Current(); same || err != nil {
			r.verify()
			return r.out, err
		}
	}
	return nil, errors.New("somebody changes nftables all the time; try again")
}

// dryRun is one packet's.
type dryRun struct {
	node     Node
	family   table.Family
	question Question
	walk     *nfteval.Walk
	out      *Trace
}

// begin reads the table and makes the packet.
func (r *dryRun) begin(t events.Header) error {
	of := uint8(unix.NFPROTO_IPV4)
	if r.family.Six {
		of = unix.NFPROTO_IPV6
	}
	table, err := nfteval.Read(of, table.Name)
	if err != nil {
		return err
	}
	pick := r.question.Pick
	if pick == nil {
		pick = rand.Uint32N
	}
	ip := slices.Clone(r.question.Frame[14:])
	w := &nfteval.Walk{Table: table, Pick: pick, AddrType: addrType, LeadsBack: leadsBack, NextHop: nextHop, Packet: nfteval.Packet{Link: r.question.Frame[:14], IP: ip, Proto: uint8(t.Proto), L4: 40,
		Ends: nfteval.Tuple{Src: t.Src, Dst: t.Dst, SrcPort: t.SrcPort, DstPort: t.DstPort}}}
	if !r.family.Six {
		w.L4 = int(ip[0]&15) * 4
	}
	if t.Proto == model.ProtocolICMP || t.Proto == model.ProtocolICMPv6 {
		w.Ends.DstPort = t.Message
		if len(ip) >= w.L4+6 {
			w.Ends.SrcPort = binary.BigEndian.Uint16(ip[w.L4+4:])
		}
	}
	if w.Flow, err = nfteval.FindFlow(w.Ends, w.Proto); err != nil {
		return err
	}
	if r.question.In != 0 {
		if w.In, err = deviceOf(r.question.In); err != nil {
			return err
		}
	}
	r.walk, *r.out = w, Trace{Known: w.Flow.Known, Established: w.Flow.State == nfteval.StateEstablished}
	return nil
}

// deviceOf is an interface as rules see it.
func deviceOf(index int) (nfteval.Device, error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return nfteval.Device{}, fmt.Errorf("interface %d: %w", index, err)
	}
	kind := uint16(unix.ARPHRD_VOID)
	switch l.Attrs().EncapType {
	case "ether":
		kind = unix.ARPHRD_ETHER
	case "loopback":
		kind = unix.ARPHRD_LOOPBACK
	}
	return nfteval.Device{Index: index, Name: l.Attrs().Name, Type: kind}, nil
}

// addrType is the kernel's type of an address (RTN_LOCAL, …).
func addrType(a netip.Addr) (uint32, error) {
	found, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(found) == 0 {
		return unix.RTN_UNICAST, nil // nothing of the node's
	}
	return uint32(found[0].Type), nil
}

// leadsBack reports whether the kernel's route to an address leads out by an interface.
func leadsBack(to netip.Addr, ifindex int) (bool, error) {
	found, err := netlink.RouteGet(to.AsSlice())
	if err != nil {
		return false, nil // there is none
	}
	return slices.ContainsFunc(found, func(r netlink.Route) bool { return r.LinkIndex == ifindex }), nil
}

// nextHop is the gateway of the kernel's route to an address, or the address where it is on the
// link or has none.
func nextHop(to netip.Addr) (netip.Addr, error) {
	found, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(found) == 0 {
		return to, nil
	}
	if a, ok := netip.AddrFromSlice(found[0].Gw); ok && !a.IsUnspecified() {
		return a.Unmap(), nil
	}
	return to, nil
}

// hook lets the packet pass a hook; false = it ended there.
func (r *dryRun) hook(at nfteval.Hook) (bool, error) {
	e, err := r.walk.Hook(at)
	if err != nil || !e.Dropped {
		return err == nil, err
	}
	r.out.Path, r.out.Refused, r.out.Chain = PathDropped, e.Refused, e.Chain
	r.out.Reason, r.out.Rule = r.why(e.Chain)
	return false, nil
}

// pass lets the packet pass the node.
func (r *dryRun) pass() error {
	defer func() {
		w := r.walk
		r.out.Src, r.out.Dst, r.out.SrcPort, r.out.DstPort, r.out.Choices = w.Ends.Src, w.Ends.Dst, w.Ends.SrcPort, w.Ends.DstPort, w.Choices
		r.out.Gateway = egress.Chosen(w.Chains)
	}()
	if r.question.From.IsValid() {
		if ok, err := r.decapsulate(); !ok || err != nil {
			return err
		}
	}
	if r.question.In == 0 {
		return r.send()
	}
	if ok, err := r.hook(nfteval.Prerouting); !ok || err != nil {
		return err
	}
	return r.route()
}

// send is pass for what a process of the node sends.
func (r *dryRun) send() error {
	w := r.walk
	for range 2 { // once more when rules changed what the route depends on
		route, err := r.routeOf()
		if err != nil {
			return err
		}
		if route == nil {
			r.nowhere()
			return nil
		}
		if w.Out, err = deviceOf(route.LinkIndex); err != nil {
			return err
		}
		if len(w.Chains) > 0 {
			break
		}
		if ok, err := r.hook(nfteval.Output); !ok || err != nil {
			return err
		}
	}
	return r.leave()
}

func (r *dryRun) nowhere() { r.out.Path, r.out.Reason = PathNowhere, reason.NoRoute }

// routeOf is the kernel's route for the packet; nil = none that leads on.
func (r *dryRun) routeOf() (*netlink.Route, error) {
	w := r.walk
	found, err := netlink.RouteGetWithOptions(w.Ends.Dst.AsSlice(), &netlink.RouteGetOptions{IifIndex: w.In.Index, SrcAddr: w.Ends.Src.AsSlice(), Mark: w.Routed})
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EXDEV} {
		if errors.Is(err, none) {
			return nil, nil
		}
	}
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("asking for a route to %s: %w", w.Ends.Dst, err)
	}
	if found[0].Type != unix.RTN_UNICAST && found[0].Type != unix.RTN_LOCAL {
		return nil, nil
	}
	return &found[0], nil
}

// route is where a packet goes that came in.
func (r *dryRun) route() error {
	w := r.walk
	route, err := r.routeOf()
	if err != nil {
		return err
	}
	if route == nil {
		r.nowhere()
		return nil
	}
	if route.Type == unix.RTN_LOCAL {
		ok, err := r.hook(nfteval.Input)
		if ok {
			r.out.Path = PathNode
		}
		return err
	}
	if w.Out, err = deviceOf(route.LinkIndex); err != nil {
		return err
	}
	if ok, err := r.hook(nfteval.Forward); !ok || err != nil {
		return err
	}
	return r.leave()
}

// leave says by which interface the packet goes on.
func (r *dryRun) leave() error {
	w, out := r.walk, r.out
	route, err := r.routeOf()
	if err != nil || route == nil {
		return errors.Join(err, errors.New("the route is gone"))
	}
	if w.Routed&marks.RoutedBit != 0 {
		out.Node = r.node.Numbers.Taken[int(w.Routed&marks.NodeMask)>>marks.NodeShift]
	}
	if ok, err := r.hook(nfteval.Postrouting); !ok || err != nil {
		return err
	}
	host, tunnel, ipip := r.node.Network.HostIndex(), r.node.Network.TunnelIndex(), r.node.Network.IPIPIndex()
	switch {
	case route.Type == unix.RTN_LOCAL:
		out.Path = PathNode
	case host != 0 && route.LinkIndex == host:
		r.nowhere()
	case tunnel != 0 && route.LinkIndex == tunnel:
		out.Path, out.IfIndex, out.NextHop = PathTunnel, route.LinkIndex, r.farEnd()
	case ipip != 0 && route.LinkIndex == ipip:
		out.Path, out.IfIndex, out.NextHop, out.IPIP = PathTunnel, route.LinkIndex, r.farEnd(), true
	default:
		out.Path, out.IfIndex, out.NextHop = PathLink, route.LinkIndex, w.Ends.Dst
		if a := r.node.State.Addrs[w.Ends.Dst]; a.Kind == nodestate.AddrEndpoint && a.IfIndex == route.LinkIndex {
			out.Path = PathPod
		} else if gw, ok := netip.AddrFromSlice(route.Gw); ok && !gw.IsUnspecified() {
			out.NextHop = gw.Unmap()
		}
	}
	return nil
}

// farEnd is the node at the other end of the tunnel: the one that the mark names, or that the
// longest route leads to.
func (r *dryRun) farEnd() netip.Addr {
	if r.out.Node.IsValid() {
		return r.out.Node
	}
	to := r.walk.Ends.Dst
	for bits := to.BitLen(); bits >= 0; bits-- {
		p, err := to.Prefix(bits)
		if err != nil {
			continue
		}
		if end := r.node.Network.TunnelEnd(p); end.IsValid() {
			return end
		}
	}
	return netip.Addr{}
}

// why is the reason for which a chain drops, with policy's rule.
func (r *dryRun) why(chain string) (reason.Reason, nodestate.RuleID) {
	tunnel, ipip := r.node.Network.TunnelIndex(), r.node.Network.IPIPIndex()
	in := r.walk.In.Index
	d := chains.Dropped{Chain: chain, FromTunnel: tunnel != 0 && in == tunnel || ipip != 0 && in == ipip}
	if n := len(r.walk.Lookups); n > 0 {
		d.LastSet = r.walk.Lookups[n-1].Set
	}
	if r.node.State.Settings.RPFStrict {
		back, err := leadsBack(r.walk.Ends.Src, r.walk.In.Index)
		d.Astray = err == nil && !back
	}
	return d.Why()
}

// decapsulate lets the outer packet of the tunnel pass, whose mark the inner one has. false = it
// ends.
func (r *dryRun) decapsulate() (bool, error) {
	s, inner := r.node.State, r.walk
	from := r.question.From
	f := table.FamilyOf(from)
	device := r.node.Network.TunnelIndex()
	if r.question.IPIP {
		device = r.node.Network.IPIPIndex()
	}
	if device == 0 || !f.Node(s).IsValid() || f != r.family {
		return false, fmt.Errorf("nothing comes by a tunnel from %s", from)
	}
	routes, err := netlink.RouteGet(from.AsSlice())
	if err != nil || len(routes) == 0 {
		return false, fmt.Errorf("no route to node %s: %w", from, err)
	}
	by := routes[0].LinkIndex
	if name := r.question.By; name != "" {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return false, fmt.Errorf("interface %s, by which the packet would come: %w", name, err)
		}
		by = l.Attrs().Index
	}
	in, err := deviceOf(by)
	if err != nil {
		return false, err
	}
	outer := outerPacket(from, f.Node(s), s.Settings.Tunnel.Port, s.Settings.Tunnel.VNI)
	l4 := len(outer) - 16
	tuple := nfteval.Tuple{Src: from, Dst: f.Node(s), SrcPort: outerPort, DstPort: s.Settings.Tunnel.Port}
	w := &nfteval.Walk{Table: inner.Table, Pick: inner.Pick, AddrType: addrType, LeadsBack: leadsBack, NextHop: nextHop, Packet: nfteval.Packet{Link: linkOf(s, from), IP: outer, Proto: unix.IPPROTO_UDP, L4: l4, In: in, Ends: tuple}}
	if r.question.IPIP {
		w.IP[9], w.Proto, w.Ends.SrcPort, w.Ends.DstPort = unix.IPPROTO_IPIP, unix.IPPROTO_IPIP, 0, 0
		copy(w.IP[l4:], r.question.Frame[14:])
	}
	if w.Flow, err = nfteval.FindFlow(w.Ends, w.Proto); err != nil {
		return false, err
	}
	r.walk = w
	ok, err := r.hook(nfteval.Prerouting)
	if ok && err == nil {
		ok, err = r.hook(nfteval.Input)
	}
	inner.Mark, inner.Lookups, inner.Chains, inner.Rules = w.Mark, w.Lookups, w.Chains, w.Rules
	r.walk = inner
	return ok, err
}

// linkOf is the Ethernet header of what a node sends by the link: its MAC address is what is looked
// at.
func linkOf(s *nodestate.State, node netip.Addr) []byte {
	b := make([]byte, 14)
	mac := s.Addrs[node].MAC
	copy(b[6:], mac[:])
	return b
}

// outerPort is the source port of the tunnel's outer packets; the real one is a hash.
const outerPort = 50000

// outerPacket is one of the tunnel, without what it carries.
func outerPacket(from, to netip.Addr, port uint16, vni uint32) []byte {
	var b []byte
	if from.Is6() {
		b = append([]byte{0x60, 0, 0, 0, 0, 16, unix.IPPROTO_UDP, 64}, append(from.AsSlice(), to.AsSlice()...)...)
	} else {
		b = append([]byte{0x45, 0, 0, 36, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, append(from.AsSlice(), to.AsSlice()...)...)
	}
	b = binary.BigEndian.AppendUint16(b, outerPort)
	b = binary.BigEndian.AppendUint16(b, port)
	b = append(b, 0, 16, 0, 0, 8, 0, 0, 0)
	return binary.BigEndian.AppendUint32(b, vni<<8)
}
