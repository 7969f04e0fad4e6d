package ebpf

import (
	"iter"
	"math"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// The functions of this file turn a state's tables into the contents of maps. They are pure. Each
// takes what is of its family, and leaves the rest out.

func renderAddrs[A address](s *nodestate.State, ifindex func(nodestate.Addr) int) iter.Seq2[A, addrValue[A]] {
	return func(yield func(A, addrValue[A]) bool) {
		for addr, a := range s.Addrs {
			if carries[A](addr) && !yield(toAddr[A](addr), renderAddr[A](a, isStaged(s, addr), ifindex)) {
				return
			}
		}
	}
}

func renderAddr[A address](a nodestate.Addr, staged bool, ifindex func(nodestate.Addr) int) addrValue[A] {
	v := addrValue[A]{
		Kind: uint8(a.Kind), Mac: a.MAC,
		IngressSet: uint64(a.Ingress.Set), EgressSet: uint64(a.Egress.Set),
		IngressRule: uint32(a.Ingress.Rule), EgressRule: uint32(a.Egress.Rule),
	}
	if a.Node.IsValid() {
		v.Node = toAddr[A](a.Node)
	}
	if a.Kind == nodestate.AddrEndpoint {
		v.Ifindex = uint32(ifindex(a))
	}
	v.Flags = flags[uint8](
		bit{a.NATOutgoing, addrNATOutgoing}, bit{a.SameLink, addrSameLink},
		bit{a.Tunnel, addrTunnel}, bit{a.Primary, addrPrimary}, bit{a.NodePorts, addrNodePorts}, bit{a.KeepSource, addrKeepSource}, bit{staged, addrStaged})
	return v
}

type bit struct {
	on    bool
	value uint32
}

func flags[T uint8 | uint32](bits ...bit) T {
	var v T
	for _, b := range bits {
		if b.on {
			v |= T(b.value)
		}
	}
	return v
}

// isStaged reports whether the events of an address tell what staged policies would say.
func isStaged(s *nodestate.State, addr netip.Addr) bool {
	_, ok := s.Staged[addr]
	return ok && s.Addrs[addr].Kind == nodestate.AddrEndpoint
}

func renderStaged[A address](s *nodestate.State) iter.Seq2[A, weirStagedValue] {
	return func(yield func(A, weirStagedValue) bool) {
		for addr, v := range s.Staged {
			value := weirStagedValue{IngressSet: uint64(v.Ingress.Set), EgressSet: uint64(v.Egress.Set),
				IngressRule: uint32(v.Ingress.Rule), EgressRule: uint32(v.Egress.Rule)}
			if carries[A](addr) && isStaged(s, addr) && !yield(toAddr[A](addr), value) {
				return
			}
		}
	}
}

func renderRoutes[A address](s *nodestate.State) iter.Seq2[prefixKey[A], routeValue[A]] {
	return func(yield func(prefixKey[A], routeValue[A]) bool) {
		for p, r := range s.Routes {
			if !carries[A](p.Addr()) {
				continue
			}
			v := routeValue[A]{Flags: flags[uint32](
				bit{r.Pool, routePool}, bit{r.Node.IsValid(), routeRemote}, bit{r.Local, routeLocal},
				bit{r.Tunnel, routeTunnel}, bit{r.SameLink, routeSameLink})}
			if r.Node.IsValid() {
				v.Node = toAddr[A](r.Node)
			}
			if !yield(toPrefix[A](p), v) {
				return
			}
		}
	}
}

func renderRanges[A address](s *nodestate.State) iter.Seq2[rangeKey[A], uint8] {
	return func(yield func(rangeKey[A], uint8) bool) {
		for id, list := range s.SourceRanges.All() {
			for _, p := range list {
				if carries[A](p.Addr()) && !yield(toRange[A](id, p), 1) {
					return
				}
			}
		}
	}
}

func renderPeers[A address](s *nodestate.State) iter.Seq2[A, uint64] {
	return func(yield func(A, uint64) bool) {
		for a, c := range s.Peers.All() {
			if carries[A](a) && !yield(toAddr[A](a), uint64(c)) {
				return
			}
		}
	}
}

func renderPeerCIDRs[A address](s *nodestate.State) iter.Seq2[prefixKey[A], uint64] {
	return func(yield func(prefixKey[A], uint64) bool) {
		for p, c := range s.PeerCIDRs {
			if carries[A](p.Addr()) && !yield(toPrefix[A](p), uint64(c)) {
				return
			}
		}
	}
}

func renderDSROptOut[A address](s *nodestate.State) iter.Seq2[prefixKey[A], uint8] {
	return func(yield func(prefixKey[A], uint8) bool) {
		for _, p := range s.Settings.DSROptOut {
			if carries[A](p.Addr()) && !yield(toPrefix[A](p), 1) {
				return
			}
		}
	}
}

func renderPolicy(s *nodestate.State) iter.Seq2[weirPolicyKey, weirPolicyValue] {
	return func(yield func(weirPolicyKey, weirPolicyValue) bool) {
		for k, v := range s.Policy.All() {
			if !yield(toPolicyKey(k), toPolicyValue(v)) {
				return
			}
		}
	}
}

func toPolicyKey(k nodestate.PolicyKey) weirPolicyKey {
	key := weirPolicyKey{Set: uint64(k.Set), Peer: uint64(k.Peer), Port: k.Port, Proto: uint8(k.Proto), Len: k.Len, Sources: k.Sources}
	if k.Head {
		key.Head = 1
	}
	return key
}

func toPolicyValue(v nodestate.PolicyValue) weirPolicyValue {
	value := weirPolicyValue{Rule: uint32(v.Rule), Lens: v.Lens, Protos: v.Protos, Sources: v.Sources}
	if v.Allow {
		value.Verdict |= policyAllow
	}
	if v.Log {
		value.Verdict |= policyLog
	}
	if v.Undecided {
		value.Verdict |= policyUndecided
	}
	return value
}

func renderClients[A address](s *nodestate.State) iter.Seq2[uint64, A] {
	return func(yield func(uint64, A) bool) {
		for cookie, client := range s.Clients {
			for _, a := range []netip.Addr{client.IPv4, client.IPv6} {
				if a.IsValid() && carries[A](a) && !yield(cookie, toAddr[A](a)) {
					return
				}
			}
		}
	}
}

// renderLinks returns the MAC addresses of other nodes' uplinks. Where two addresses of one node
// carry the same, both lead to its primary address.
func renderLinks[A address](s *nodestate.State) map[weirLinkKey]A {
	links := map[weirLinkKey]A{}
	for addr, a := range s.Addrs {
		if a.Kind != nodestate.AddrNode || a.MAC == [6]byte{} || !carries[A](addr) {
			continue
		}
		node := addr
		if a.Node.IsValid() {
			node = a.Node
		}
		key := weirLinkKey{Mac: a.MAC}
		if have, ok := links[key]; !ok || fromAddr(have).Compare(node) > 0 {
			links[key] = toAddr[A](node)
		}
	}
	return links
}

// clock turns durations into the programs' units of 256 jiffies.
type clock struct{ hz int }

func (c clock) units(d time.Duration) uint32 {
	u := math.Ceil(d.Seconds() * float64(c.hz) / 256)
	return uint32(min(max(u, 1), math.MaxInt32))
}

// now is about what the programs' clock says: jiffies begin 300 s before they overflow 32 bits (the
// kernel's INITIAL_JIFFIES) and follow the monotonic clock.
func (c clock) now() uint32 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	hz := uint64(c.hz)
	return uint32((1<<32 - 300*hz + uint64(ts.Nano())*hz/1e9) >> 8)
}

// fineUnits turns a short duration into units of 16 jiffies.
func (c clock) fineUnits(d time.Duration) uint16 {
	return uint16(min(max(math.Round(d.Seconds()*float64(c.hz)/16), 1), math.MaxUint16/2))
}

// perThousandSeconds is settings.per_second: units in a thousand seconds.
func (c clock) perThousandSeconds() uint32 { return uint32(1000 * c.hz / 256) }

// machine is what a settings entry says of the kernel rather than of the state.
type machine struct {
	clock      clock
	hostNetns  uint64
	host       int  // interface index of weir0
	tunnel     int  // of the VXLAN device; 0 = none
	listening  bool // somebody listens to events
	handOver   bool // another data plane has what has no flow yet
	marks      bool // all programs that are attached put marks on what they translate when told to
	apart      bool // what is translated for the node's own processes is marked
	hostPolicy bool // there are host endpoints still in the map
	untracked  bool // some of them evaluate each packet by itself
	flows      int  // entries that weir_flows has room for; 0 = what the state says
	// uplinks are their MAC addresses by interface index.
	uplinks map[uint32]weirLinkKey
}

func renderAnnounced[A address](s *nodestate.State) iter.Seq2[A, uint8] {
	return func(yield func(A, uint8) bool) {
		for a := range s.Announced {
			if carries[A](a) && !yield(toAddr[A](a), 1) {
				return
			}
		}
	}
}

// renderSettings leaves the epoch 0.
func renderSettings[A address](s *nodestate.State, m machine) settings[A] {
	c := s.Settings
	v := settings[A]{
		Flags: flags[uint32](
			bit{c.DSR, setDSR},
			bit{c.ConnectTime == model.ConnectTimeTCP || c.ConnectTime == model.ConnectTimeEnabled, setCTLBTCP},
			bit{c.ConnectTime == model.ConnectTimeEnabled, setCTLBUDP},
			bit{c.HostNAT, setHostNAT},
			bit{m.listening, setEvents},
			bit{m.handOver || c.HandOver, setHandOver},
			bit{m.apart, setApart},
			bit{m.marks, setMarks},
			bit{len(s.HostEndpoints) > 0 || m.hostPolicy, setHosts},
			bit{s.JudgesAlone() || m.untracked, setUntracked},
			bit{c.VXLANFromPods, setVXLANFromPods},
			bit{c.IPIPFromPods, setIPIPFromPods},
			bit{c.RPFStrict, setRPFStrict},
			bit{c.ToHost == model.ToHostDrop, setToHostDrop},
			bit{c.ToHost == model.ToHostReturn, setToHostReturn},
			bit{true, setPorts}), // tables keep weir_ports
		Node: toAddr[A](nodeOf[A](c)), TunnelIfindex: uint32(m.tunnel), Vni: c.Tunnel.VNI,
		SnatMin: c.SNATFirst, SnatMax: c.SNATLast, HostNetns: m.hostNetns,
		PerSecond: m.clock.perThousandSeconds(), TunnelMtu: tunnelMTU[A](c),
		HostIfindex: uint32(m.host), TunnelPort: be16(c.Tunnel.Port),
		DsrPatience: m.clock.fineUnits(c.DSRTimes.Patience),
	}
	t := c.Timeouts
	v.Timeouts[timeoutTCPSyn] = m.clock.units(t.TCPSynSent)
	v.Timeouts[timeoutTCPEst] = m.clock.units(t.TCPEstablished)
	v.Timeouts[timeoutTCPClosing] = m.clock.units(t.TCPReset)
	v.Timeouts[timeoutTCPFins] = m.clock.units(t.TCPFins)
	v.Timeouts[timeoutUDP] = m.clock.units(t.UDP)
	v.Timeouts[timeoutICMP] = m.clock.units(t.ICMP)
	v.Timeouts[timeoutOther] = m.clock.units(t.Generic)
	if t.Fragment > 0 {
		v.Timeouts[timeoutFragment] = m.clock.units(t.Fragment)
	}
	room := m.flows
	if room == 0 {
		room = c.MaxFlows
	}
	v.FlowsMost, v.FlowsEach = uint32(room-room/16), uint32(room/8)
	v.Timeouts[timeoutDSRTries] = m.clock.units(c.DSRTimes.Tries)
	v.Timeouts[timeoutDSRRetry] = m.clock.units(c.DSRTimes.Retry)
	return v
}

// nodeOf is the node's primary address of the family.
func nodeOf[A address](c nodestate.Settings) netip.Addr {
	if carries[A](c.Node6) {
		return c.Node6
	}
	return c.Node
}

// ipv6Extra is what an IPv6 header is longer by than an IPv4 one, bytes. The outer header of a
// packet in the tunnel is of the family of the inner one.
const ipv6Extra = 20

// tunnelMTU is how long a packet of the family may be that fits into the tunnel, bytes; 0 = not
// known.
func tunnelMTU[A address](c nodestate.Settings) uint32 {
	mtu := c.Tunnel.MTU
	if carries[A](netip.IPv6Unspecified()) {
		mtu -= ipv6Extra
	}
	return uint32(max(mtu, 0))
}
