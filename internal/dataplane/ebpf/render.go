// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"iter"
	"math"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// The functions of this file turn a state's tables into the contents of maps. They are pure. Each
// takes what is of its family, and leaves the rest out.

func renderAddrs[A abi.Address](s *nodestate.State, ifindex func(nodestate.Addr) int) iter.Seq2[A, abi.AddrValue[A]] {
	return func(yield func(A, abi.AddrValue[A]) bool) {
		for addr, a := range s.Addrs {
			if abi.Carries[A](addr) && !yield(abi.ToAddr[A](addr), renderAddr[A](a, isStaged(s, addr), ifindex)) {
				return
			}
		}
	}
}

func renderAddr[A abi.Address](a nodestate.Addr, staged bool, ifindex func(nodestate.Addr) int) abi.AddrValue[A] {
	v := abi.AddrValue[A]{
		Kind: uint8(a.Kind), Mac: a.MAC,
		IngressSet: uint64(a.Ingress.Set), EgressSet: uint64(a.Egress.Set),
		IngressRule: uint32(a.Ingress.Rule), EgressRule: uint32(a.Egress.Rule),
	}
	if a.Node.IsValid() {
		v.Node = abi.ToAddr[A](a.Node)
	}
	if a.Kind == nodestate.AddrEndpoint {
		v.Ifindex = uint32(ifindex(a))
	}
	v.Flags = flags[uint8](
		bit{a.NATOutgoing, abi.AddrNATOutgoing}, bit{a.SameLink, abi.AddrSameLink},
		bit{a.Tunnel, abi.AddrTunnel}, bit{a.Primary, abi.AddrPrimary}, bit{a.NodePorts, abi.AddrNodePorts}, bit{a.KeepSource, abi.AddrKeepSource}, bit{staged, abi.AddrStaged})
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

func renderStaged[A abi.Address](s *nodestate.State) iter.Seq2[A, abi.WeirStagedValue] {
	return func(yield func(A, abi.WeirStagedValue) bool) {
		for addr, v := range s.Staged {
			value := abi.WeirStagedValue{IngressSet: uint64(v.Ingress.Set), EgressSet: uint64(v.Egress.Set),
				IngressRule: uint32(v.Ingress.Rule), EgressRule: uint32(v.Egress.Rule)}
			if abi.Carries[A](addr) && isStaged(s, addr) && !yield(abi.ToAddr[A](addr), value) {
				return
			}
		}
	}
}

func renderRoutes[A abi.Address](s *nodestate.State) iter.Seq2[abi.PrefixKey[A], abi.RouteValue[A]] {
	return func(yield func(abi.PrefixKey[A], abi.RouteValue[A]) bool) {
		for p, r := range s.Routes {
			if !abi.Carries[A](p.Addr()) {
				continue
			}
			v := abi.RouteValue[A]{Flags: flags[uint32](
				bit{r.Pool, abi.RoutePool}, bit{r.Node.IsValid(), abi.RouteRemote}, bit{r.Local, abi.RouteLocal},
				bit{r.Tunnel, abi.RouteTunnel}, bit{r.SameLink, abi.RouteSameLink})}
			if r.Node.IsValid() {
				v.Node = abi.ToAddr[A](r.Node)
			}
			if !yield(abi.ToPrefix[A](p), v) {
				return
			}
		}
	}
}

func renderRanges[A abi.Address](s *nodestate.State) iter.Seq2[abi.RangeKey[A], uint8] {
	return func(yield func(abi.RangeKey[A], uint8) bool) {
		for id, list := range s.SourceRanges.All() {
			for _, p := range list {
				if abi.Carries[A](p.Addr()) && !yield(abi.ToRange[A](id, p), 1) {
					return
				}
			}
		}
	}
}

func renderPeers[A abi.Address](s *nodestate.State) iter.Seq2[A, uint64] {
	return func(yield func(A, uint64) bool) {
		for a, c := range s.Peers.All() {
			if abi.Carries[A](a) && !yield(abi.ToAddr[A](a), uint64(c)) {
				return
			}
		}
	}
}

func renderPeerCIDRs[A abi.Address](s *nodestate.State) iter.Seq2[abi.PrefixKey[A], uint64] {
	return func(yield func(abi.PrefixKey[A], uint64) bool) {
		for p, c := range s.PeerCIDRs {
			if abi.Carries[A](p.Addr()) && !yield(abi.ToPrefix[A](p), uint64(c)) {
				return
			}
		}
	}
}

func renderDSROptOut[A abi.Address](s *nodestate.State) iter.Seq2[abi.PrefixKey[A], uint8] {
	return func(yield func(abi.PrefixKey[A], uint8) bool) {
		for _, p := range s.Settings.DSROptOut {
			if abi.Carries[A](p.Addr()) && !yield(abi.ToPrefix[A](p), 1) {
				return
			}
		}
	}
}

func renderPolicy(s *nodestate.State) iter.Seq2[abi.WeirPolicyKey, abi.WeirPolicyValue] {
	return func(yield func(abi.WeirPolicyKey, abi.WeirPolicyValue) bool) {
		for k, v := range s.Policy.All() {
			if !yield(toPolicyKey(k), toPolicyValue(v)) {
				return
			}
		}
	}
}

func toPolicyKey(k nodestate.PolicyKey) abi.WeirPolicyKey {
	key := abi.WeirPolicyKey{Set: uint64(k.Set), Peer: uint64(k.Peer), Port: k.Port, Proto: uint8(k.Proto), Len: k.Len, Sources: k.Sources}
	if k.Head {
		key.Head = 1
	}
	return key
}

func toPolicyValue(v nodestate.PolicyValue) abi.WeirPolicyValue {
	value := abi.WeirPolicyValue{Rule: uint32(v.Rule), Lens: v.Lens, Protos: v.Protos, Sources: v.Sources}
	if v.Allow {
		value.Verdict |= abi.PolicyAllow
	}
	if v.Log {
		value.Verdict |= abi.PolicyLog
	}
	if v.Undecided {
		value.Verdict |= abi.PolicyUndecided
	}
	return value
}

func renderClients[A abi.Address](s *nodestate.State) iter.Seq2[uint64, A] {
	return func(yield func(uint64, A) bool) {
		for cookie, client := range s.Clients {
			for _, a := range []netip.Addr{client.IPv4, client.IPv6} {
				if a.IsValid() && abi.Carries[A](a) && !yield(cookie, abi.ToAddr[A](a)) {
					return
				}
			}
		}
	}
}

// renderLinks returns the MAC addresses of other nodes' uplinks. Where two addresses of one node
// carry the same, both lead to its primary address.
func renderLinks[A abi.Address](s *nodestate.State) map[abi.WeirLinkKey]A {
	links := map[abi.WeirLinkKey]A{}
	for addr, a := range s.Addrs {
		if a.Kind != nodestate.AddrNode || a.MAC == [6]byte{} || !abi.Carries[A](addr) {
			continue
		}
		node := addr
		if a.Node.IsValid() {
			node = a.Node
		}
		key := abi.WeirLinkKey{Mac: a.MAC}
		if have, ok := links[key]; !ok || abi.FromAddr(have).Compare(node) > 0 {
			links[key] = abi.ToAddr[A](node)
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

// Now is about what the programs' clock says: jiffies begin 300 s before they overflow 32 bits (the
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
	flows      int  // Entries that weir_flows has room for; 0 = what the state says
	// uplinks are their MAC addresses by interface index.
	uplinks map[uint32]abi.WeirLinkKey
}

func renderAnnounced[A abi.Address](s *nodestate.State) iter.Seq2[A, uint8] {
	return func(yield func(A, uint8) bool) {
		for a := range s.Announced {
			if abi.Carries[A](a) && !yield(abi.ToAddr[A](a), 1) {
				return
			}
		}
	}
}

// renderSettings leaves the epoch 0.
func renderSettings[A abi.Address](s *nodestate.State, m machine) abi.Settings[A] {
	c := s.Settings
	v := abi.Settings[A]{
		Flags: flags[uint32](
			bit{c.DSR, abi.SetDSR},
			bit{c.ConnectTime == model.ConnectTimeTCP || c.ConnectTime == model.ConnectTimeEnabled, abi.SetCTLBTCP},
			bit{c.ConnectTime == model.ConnectTimeEnabled, abi.SetCTLBUDP},
			bit{c.HostNAT, abi.SetHostNAT},
			bit{m.listening, abi.SetEvents},
			bit{m.handOver || c.HandOver, abi.SetHandOver},
			bit{m.apart, abi.SetApart},
			bit{m.marks, abi.SetMarks},
			bit{len(s.HostEndpoints) > 0 || m.hostPolicy, abi.SetHosts},
			bit{s.JudgesAlone() || m.untracked, abi.SetUntracked},
			bit{c.VXLANFromPods, abi.SetVXLANFromPods},
			bit{c.IPIPFromPods, abi.SetIPIPFromPods},
			bit{c.RPFStrict, abi.SetRPFStrict},
			bit{c.ToHost == model.ToHostDrop, abi.SetToHostDrop},
			bit{c.ToHost == model.ToHostReturn, abi.SetToHostReturn},
			bit{true, abi.SetPorts}), // tables keep weir_ports
		Node: abi.ToAddr[A](nodeOf[A](c)), TunnelIfindex: uint32(m.tunnel), Vni: c.Tunnel.VNI,
		SnatMin: c.SNATFirst, SnatMax: c.SNATLast, HostNetns: m.hostNetns,
		PerSecond: m.clock.perThousandSeconds(), TunnelMtu: abi.TunnelMTU[A](c),
		HostIfindex: uint32(m.host), TunnelPort: abi.Be16(c.Tunnel.Port),
		DsrPatience: m.clock.fineUnits(c.DSRTimes.Patience),
	}
	t := c.Timeouts
	v.Timeouts[abi.TimeoutTCPSyn] = m.clock.units(t.TCPSynSent)
	v.Timeouts[abi.TimeoutTCPEst] = m.clock.units(t.TCPEstablished)
	v.Timeouts[abi.TimeoutTCPClosing] = m.clock.units(t.TCPReset)
	v.Timeouts[abi.TimeoutTCPFins] = m.clock.units(t.TCPFins)
	v.Timeouts[abi.TimeoutUDP] = m.clock.units(t.UDP)
	v.Timeouts[abi.TimeoutICMP] = m.clock.units(t.ICMP)
	v.Timeouts[abi.TimeoutOther] = m.clock.units(t.Generic)
	if t.Fragment > 0 {
		v.Timeouts[abi.TimeoutFragment] = m.clock.units(t.Fragment)
	}
	room := m.flows
	if room == 0 {
		room = c.MaxFlows
	}
	v.FlowsMost, v.FlowsEach = uint32(room-room/16), uint32(room/8)
	v.Timeouts[abi.TimeoutDSRTries] = m.clock.units(c.DSRTimes.Tries)
	v.Timeouts[abi.TimeoutDSRRetry] = m.clock.units(c.DSRTimes.Retry)
	return v
}

// nodeOf is the node's primary address of the family.
func nodeOf[A abi.Address](c nodestate.Settings) netip.Addr {
	if abi.Carries[A](c.Node6) {
		return c.Node6
	}
	return c.Node
}
