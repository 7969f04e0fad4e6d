package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nfteval"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Question is a packet of which Rehearse says what becomes.
type Question struct {
	In    int        // interface by which it comes in; 0 = the node sends it itself
	From  netip.Addr // the node that sends it through the tunnel; invalid = it does not come by that
	Frame []byte     // Ethernet, as it comes in
	// Pick chooses below n where rules choose at random; nil = at random.
	Pick func(n uint32) uint32
}

// Way is where a packet goes.
type Way string

// Ways.
const (
	WayDropped Way = "dropped"
	WayNowhere Way = "nowhere" // no route leads on
	WayNode    Way = "node"    // to a process of the node
	WayPod     Way = "pod"     // by IfIndex
	WayLink    Way = "link"    // out of IfIndex, to NextHop
	WayTunnel  Way = "tunnel"  // to the node NextHop
)

// Passage is what became of a packet.
type Passage struct {
	Way     Way
	IfIndex int
	NextHop netip.Addr
	Node    netip.Addr       // that the packet is led to whatever the routes say, as it is handed on, or answered by it
	Refused bool             // dropped, and the sender is told
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

// Rehearse lets a packet pass the rules that are in the kernel, and compares these with what was to be written. No packet is sent, nothing is
// written.
func (d *Driver) Rehearse(q Question) (*Passage, error) {
	if len(q.Frame) < 14 {
		return nil, errors.New("no frame")
	}
	t, ok := header(q.Frame[14:])
	if !ok {
		return nil, errors.New("no IP packet")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := family{t.src.Is6()}
	if d.state == nil || d.tables[f].numbers == nil {
		return nil, fmt.Errorf("the node does not carry %s", f)
	}
	r := &rehearsal{driver: d, family: f, question: q, out: &Passage{}}
	for range 3 {
		if err := r.begin(t); err != nil {
			return nil, err
		}
		if err := r.pass(); err != nil {
			return nil, err
		}
		if same, err := r.walk.Table.Current(); same || err != nil {
			r.prove()
			return r.out, err
		}
	}
	return nil, errors.New("somebody changes nftables all the time; try again")
}

// rehearsal is one packet's.
type rehearsal struct {
	driver   *Driver
	family   family
	question Question
	walk     *nfteval.Walk
	out      *Passage
}

// begin reads the table and makes the packet.
func (r *rehearsal) begin(t ends) error {
	of := uint8(unix.NFPROTO_IPV4)
	if r.family.six {
		of = unix.NFPROTO_IPV6
	}
	table, err := nfteval.Read(of, tableName)
	if err != nil {
		return err
	}
	pick := r.question.Pick
	if pick == nil {
		pick = rand.Uint32N
	}
	ip := slices.Clone(r.question.Frame[14:])
	w := &nfteval.Walk{Table: table, Pick: pick, AddrType: addrType, LeadsBack: leadsBack, NextHop: nextHop, Packet: nfteval.Packet{Link: r.question.Frame[:14], IP: ip, Proto: uint8(t.proto), L4: 40,
		Ends: nfteval.Tuple{Src: t.src, Dst: t.dst, SrcPort: t.sport, DstPort: t.dport}}}
	if !r.family.six {
		w.L4 = int(ip[0]&15) * 4
	}
	if t.proto == model.ProtocolICMP || t.proto == model.ProtocolICMPv6 {
		w.Ends.DstPort = t.message
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
	r.walk, *r.out = w, Passage{Known: w.Flow.Known, Established: w.Flow.State == nfteval.StateEstablished}
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

// nextHop is the gateway of the kernel's route to an address, or the address where it is on the link or has none.
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
func (r *rehearsal) hook(at nfteval.Hook) (bool, error) {
	e, err := r.walk.Hook(at)
	if err != nil || !e.Dropped {
		return err == nil, err
	}
	r.out.Way, r.out.Refused, r.out.Chain = WayDropped, e.Refused, e.Chain
	r.out.Reason, r.out.Rule = r.why(e.Chain)
	return false, nil
}

// pass lets the packet pass the node.
func (r *rehearsal) pass() error {
	defer func() {
		w := r.walk
		r.out.Src, r.out.Dst, r.out.SrcPort, r.out.DstPort, r.out.Choices = w.Ends.Src, w.Ends.Dst, w.Ends.SrcPort, w.Ends.DstPort, w.Choices
	}()
	if r.question.From.IsValid() {
		if ok, err := r.throughTunnel(); !ok || err != nil {
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
func (r *rehearsal) send() error {
	w := r.walk
	for range 2 { // once more when rules changed what the way depends on
		way, err := r.routeOf()
		if err != nil {
			return err
		}
		if way == nil {
			r.nowhere()
			return nil
		}
		if w.Out, err = deviceOf(way.LinkIndex); err != nil {
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

func (r *rehearsal) nowhere() { r.out.Way, r.out.Reason = WayNowhere, reason.NoRoute }

// routeOf is the kernel's route for the packet; nil = none that leads on.
func (r *rehearsal) routeOf() (*netlink.Route, error) {
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
func (r *rehearsal) route() error {
	w := r.walk
	way, err := r.routeOf()
	if err != nil {
		return err
	}
	if way == nil {
		r.nowhere()
		return nil
	}
	if way.Type == unix.RTN_LOCAL {
		ok, err := r.hook(nfteval.Input)
		if ok {
			r.out.Way = WayNode
		}
		return err
	}
	if w.Out, err = deviceOf(way.LinkIndex); err != nil {
		return err
	}
	if ok, err := r.hook(nfteval.Forward); !ok || err != nil {
		return err
	}
	return r.leave()
}

// leave says by which interface the packet goes on.
func (r *rehearsal) leave() error {
	w, out := r.walk, r.out
	way, err := r.routeOf()
	if err != nil || way == nil {
		return errors.Join(err, errors.New("the route is gone"))
	}
	if w.Routed&wayBit != 0 {
		out.Node = r.driver.tables[r.family].numbers.taken[int(w.Routed&nodeMask)>>nodeShift]
	}
	if ok, err := r.hook(nfteval.Postrouting); !ok || err != nil {
		return err
	}
	m := &r.driver.machine
	switch {
	case way.Type == unix.RTN_LOCAL:
		out.Way = WayNode
	case m.host != nil && way.LinkIndex == m.host.index:
		r.nowhere()
	case m.tunnel != nil && way.LinkIndex == m.tunnel.index:
		out.Way, out.IfIndex, out.NextHop = WayTunnel, way.LinkIndex, r.farEnd()
	default:
		out.Way, out.IfIndex, out.NextHop = WayLink, way.LinkIndex, w.Ends.Dst
		if a := r.driver.state.Addrs[w.Ends.Dst]; a.Kind == nodestate.AddrEndpoint && a.IfIndex == way.LinkIndex {
			out.Way = WayPod
		} else if gw, ok := netip.AddrFromSlice(way.Gw); ok && !gw.IsUnspecified() {
			out.NextHop = gw.Unmap()
		}
	}
	return nil
}

// farEnd is the node at the other end of the tunnel: the one that the mark names, or that the longest route leads to.
func (r *rehearsal) farEnd() netip.Addr {
	if r.out.Node.IsValid() {
		return r.out.Node
	}
	to := r.walk.Ends.Dst
	for bits := to.BitLen(); bits >= 0; bits-- {
		if p, err := to.Prefix(bits); err == nil && r.driver.machine.routes.written[p].remote.IsValid() {
			return r.driver.machine.routes.written[p].remote
		}
	}
	return netip.Addr{}
}

// why is the reason for which a chain drops, with policy's rule.
func (r *rehearsal) why(chain string) (reason.Reason, nodestate.RuleID) {
	if why, rule, ok := denyChain(chain); ok {
		return why, rule
	}
	fromTunnel := r.driver.machine.tunnel != nil && r.walk.In.Index == r.driver.machine.tunnel.index
	switch chain {
	case "from-network", sourceProven, ownSourceChain:
		if fromTunnel {
			return reason.TunnelSource, 0
		}
		if back, err := leadsBack(r.walk.Ends.Src, r.walk.In.Index); chain != ownSourceChain && r.driver.state.Settings.RPFStrict && err == nil && !back {
			return reason.ReversePath, 0
		}
		return reason.Spoofed, 0
	case workloadChain, "translate", "admit", admitNewChain, blockSource, blockTunnel, frontSource, podSource, podTunnel, nodeSource,
		nodeRequest, sourceForged, handedChain, handedOpen, admitHanded, admitBackChain:
		return reason.Spoofed, 0
	case "tunnel":
		return reason.TunnelSource, 0
	case "choose", rangesChain:
		switch l := r.walk.Lookups; {
		case len(l) > 0 && (l[len(l)-1].Set == mapLists || l[len(l)-1].Set == mapRanged):
			return reason.NoLocalBackend, 0
		case chain == rangesChain:
			return reason.SourceRange, 0
		}
		return reason.NoFlow, 0
	case "refused":
		return reason.NoBackend, 0
	case "no-endpoint", "forwarded", forwardedAny, unknownPodChain, sentChain, sentAny, sentHomeChain, sentOthersChain:
		return reason.NoEndpoint, 0
	case toTunnelChain, podTunnelChain:
		return reason.TunnelFromPod, 0
	}
	return reason.NoFlow, 0
}

// throughTunnel lets the outer packet of the tunnel pass, whose mark the inner one has. false = it ends.
func (r *rehearsal) throughTunnel() (bool, error) {
	s, inner := r.driver.state, r.walk
	from := r.question.From
	f := family{from.Is6()}
	if r.driver.machine.tunnel == nil || !f.node(s).IsValid() || f != r.family {
		return false, fmt.Errorf("nothing comes by a tunnel from %s", from)
	}
	routes, err := netlink.RouteGet(from.AsSlice())
	if err != nil || len(routes) == 0 {
		return false, fmt.Errorf("no route to node %s: %w", from, err)
	}
	in, err := deviceOf(routes[0].LinkIndex)
	if err != nil {
		return false, err
	}
	outer := outerPacket(from, f.node(s), s.Settings.Tunnel.Port, s.Settings.Tunnel.VNI)
	l4 := len(outer) - 16
	tuple := nfteval.Tuple{Src: from, Dst: f.node(s), SrcPort: outerPort, DstPort: s.Settings.Tunnel.Port}
	w := &nfteval.Walk{Table: inner.Table, Pick: inner.Pick, AddrType: addrType, LeadsBack: leadsBack, NextHop: nextHop, Packet: nfteval.Packet{Link: linkOf(s, from), IP: outer, Proto: unix.IPPROTO_UDP, L4: l4, In: in, Ends: tuple}}
	if w.Flow, err = nfteval.FindFlow(tuple, unix.IPPROTO_UDP); err != nil {
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

// linkOf is the Ethernet header of what a node sends by the link: its MAC address is what is looked at.
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

// Places are the interfaces of the node.
type Places struct {
	Uplinks      map[int][6]byte // that have addresses of the node: by index, with the MAC address
	Tunnel, Host int             // 0 = there is none
	Epoch        uint32          // of IPv4's policy
	Behind       string          // what of the state is not in the kernel
}

// Places returns them.
func (d *Driver) Places() (Places, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := Places{Uplinks: map[int][6]byte{}}
	if d.state == nil {
		p.Behind = "nothing was written yet"
		return p, nil
	}
	if d.machine.host != nil {
		p.Host = d.machine.host.index
	}
	if d.machine.tunnel != nil {
		p.Tunnel = d.machine.tunnel.index
	}
	if t := d.tables[family{}]; t.policy != nil {
		p.Epoch = uint32(t.policy.epochs.current)
	}
	if len(d.problems) > 0 {
		p.Behind = d.problems[0]
	}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return p, fmt.Errorf("listing interfaces: %w", err)
	}
	addrs, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return p, fmt.Errorf("listing addresses: %w", err)
	}
	own := map[int]bool{}
	for _, a := range addrs {
		at, _ := netip.AddrFromSlice(a.IP)
		own[a.LinkIndex] = own[a.LinkIndex] || d.state.Addrs[at.Unmap()].Kind == nodestate.AddrHost
	}
	for _, l := range links {
		if a := l.Attrs(); own[a.Index] && a.Index != p.Host && a.Index != p.Tunnel && a.EncapType == "ether" && len(a.HardwareAddr) == 6 {
			p.Uplinks[a.Index] = [6]byte(a.HardwareAddr)
		}
	}
	return p, nil
}
