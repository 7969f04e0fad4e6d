package ebpf

import (
	"iter"
	"math"
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// The functions of this file turn a state's tables into the contents of maps. They are pure. What is
// not IPv4 is left out: these programs carry IPv4.

func isIPv4(a netip.Addr) bool { return a.Is4() || a.Is4In6() }

func renderAddrs(s *nodestate.State, ifindex func(nodestate.Addr) int) iter.Seq2[weirIpAddr, weirAddrValue] {
	return func(yield func(weirIpAddr, weirAddrValue) bool) {
		for addr, a := range s.Addrs {
			if isIPv4(addr) && !yield(ipAddr(addr), renderAddr(a, ifindex)) {
				return
			}
		}
	}
}

func renderAddr(a nodestate.Addr, ifindex func(nodestate.Addr) int) weirAddrValue {
	v := weirAddrValue{
		Kind: uint8(a.Kind), Mac: a.MAC,
		IngressSet: uint64(a.Ingress.Set), EgressSet: uint64(a.Egress.Set),
		IngressRule: uint32(a.Ingress.Rule), EgressRule: uint32(a.Egress.Rule),
	}
	if a.Node.IsValid() {
		v.Node = ipAddr(a.Node)
	}
	if a.Kind == nodestate.AddrEndpoint {
		v.Ifindex = uint32(ifindex(a))
	}
	v.Flags = flags[uint8](
		bit{a.NATOutgoing, addrNATOutgoing}, bit{a.SameLink, addrSameLink},
		bit{a.Tunnel, addrTunnel}, bit{a.Primary, addrPrimary})
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

func renderRoutes(s *nodestate.State) iter.Seq2[weirPrefixKey, weirRouteValue] {
	return func(yield func(weirPrefixKey, weirRouteValue) bool) {
		for p, r := range s.Routes {
			if !isIPv4(p.Addr()) {
				continue
			}
			v := weirRouteValue{Flags: flags[uint32](
				bit{r.Pool, routePool}, bit{r.Node.IsValid(), routeRemote}, bit{r.Local, routeLocal},
				bit{r.Tunnel, routeTunnel}, bit{r.SameLink, routeSameLink})}
			if r.Node.IsValid() {
				v.Node = ipAddr(r.Node)
			}
			if !yield(prefixKey(p), v) {
				return
			}
		}
	}
}

func renderPeers(s *nodestate.State) iter.Seq2[weirIpAddr, uint64] {
	return func(yield func(weirIpAddr, uint64) bool) {
		for a, c := range s.Peers.All() {
			if isIPv4(a) && !yield(ipAddr(a), uint64(c)) {
				return
			}
		}
	}
}

func renderPeerCIDRs(s *nodestate.State) iter.Seq2[weirPrefixKey, uint64] {
	return func(yield func(weirPrefixKey, uint64) bool) {
		for p, c := range s.PeerCIDRs {
			if isIPv4(p.Addr()) && !yield(prefixKey(p), uint64(c)) {
				return
			}
		}
	}
}

func renderDSROptOut(s *nodestate.State) iter.Seq2[weirPrefixKey, uint8] {
	return func(yield func(weirPrefixKey, uint8) bool) {
		for _, p := range s.Settings.DSROptOut {
			if isIPv4(p.Addr()) && !yield(prefixKey(p), 1) {
				return
			}
		}
	}
}

func renderPolicy(s *nodestate.State) iter.Seq2[weirPolicyKey, weirPolicyValue] {
	return func(yield func(weirPolicyKey, weirPolicyValue) bool) {
		for k, v := range s.Policy {
			key := weirPolicyKey{Set: uint64(k.Set), Peer: uint64(k.Peer), Port: k.Port, Proto: uint8(k.Proto), Len: k.Len}
			if k.Head {
				key.Head = 1
			}
			value := weirPolicyValue{Rule: uint32(v.Rule), Lens: v.Lens, Protos: v.Protos}
			if v.Allow {
				value.Allow = 1
			}
			if !yield(key, value) {
				return
			}
		}
	}
}

func renderClients(s *nodestate.State) iter.Seq2[uint64, weirIpAddr] {
	return func(yield func(uint64, weirIpAddr) bool) {
		for cookie, a := range s.Clients {
			if isIPv4(a) && !yield(cookie, ipAddr(a)) {
				return
			}
		}
	}
}

// renderLinks returns the MAC addresses of other nodes' uplinks. Where two addresses of one node carry
// the same, both lead to its primary address.
func renderLinks(s *nodestate.State) map[weirLinkKey]weirIpAddr {
	links := map[weirLinkKey]weirIpAddr{}
	for addr, a := range s.Addrs {
		if a.Kind != nodestate.AddrNode || a.MAC == [6]byte{} || !isIPv4(addr) {
			continue
		}
		node := addr
		if a.Node.IsValid() {
			node = a.Node
		}
		key := weirLinkKey{Mac: a.MAC}
		if have, ok := links[key]; !ok || addrOf(have).Compare(node) > 0 {
			links[key] = ipAddr(node)
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

// perThousandSeconds is settings.per_second: units in a thousand seconds.
func (c clock) perThousandSeconds() uint32 { return uint32(1000 * c.hz / 256) }

// machine is what a settings entry says of the kernel rather than of the state.
type machine struct {
	clock     clock
	hostNetns uint64
	host      int // interface index of weir0
	tunnel    int // of the VXLAN device; 0 = none
}

// renderSettings leaves the epoch 0.
func renderSettings(s *nodestate.State, m machine) weirSettings {
	c := s.Settings
	v := weirSettings{
		Flags: flags[uint32](
			bit{c.DSR, setDSR},
			bit{c.ConnectTime == model.ConnectTimeTCP || c.ConnectTime == model.ConnectTimeEnabled, setCTLBTCP},
			bit{c.ConnectTime == model.ConnectTimeEnabled, setCTLBUDP},
			bit{true, setPorts}), // tables keep weir_ports
		Node: ipAddr(c.Node), TunnelIfindex: uint32(m.tunnel), Vni: c.Tunnel.VNI,
		SnatMin: c.SNATFirst, SnatMax: c.SNATLast, HostNetns: m.hostNetns,
		PerSecond: m.clock.perThousandSeconds(), TunnelMtu: uint32(max(c.Tunnel.MTU, 0)),
		HostIfindex: uint32(m.host), TunnelPort: be16(c.Tunnel.Port),
	}
	t := c.Timeouts
	v.Timeouts[timeoutTCPSyn] = m.clock.units(t.TCPSynSent)
	v.Timeouts[timeoutTCPEst] = m.clock.units(t.TCPEstablished)
	v.Timeouts[timeoutTCPClosing] = m.clock.units(t.TCPClosing)
	v.Timeouts[timeoutUDP] = m.clock.units(t.UDP)
	v.Timeouts[timeoutICMP] = m.clock.units(t.ICMP)
	v.Timeouts[timeoutOther] = m.clock.units(t.Generic)
	return v
}

// needsTunnel reports whether anything goes through the VXLAN device: a route or an address that asks for
// it, or a node that is not on our link, to which packets of outside clients are handed on through it.
func needsTunnel(s *nodestate.State) bool {
	for _, r := range s.Routes {
		if r.Tunnel {
			return true
		}
	}
	for _, a := range s.Addrs {
		if a.Tunnel || a.Kind == nodestate.AddrNode && !a.SameLink {
			return true
		}
	}
	return false
}
