// SPDX-License-Identifier: Apache-2.0

package micro

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/ebpf/offline"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/packet"
)

// The node of the benchmarks: two pods, another node on the same link, a Service.
var (
	nodeAddr   = netip.MustParseAddr("10.0.0.1")
	otherNode  = netip.MustParseAddr("10.0.0.2")
	podA       = netip.MustParseAddr("10.244.1.2")
	podB       = netip.MustParseAddr("10.244.1.3")
	podRemote  = netip.MustParseAddr("10.244.2.2")
	localSvc   = nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Proto: model.ProtocolTCP}
	remoteSvc  = nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.11"), Port: 80, Proto: model.ProtocolTCP}
	localPort  = nodestate.Frontend{Addr: netip.IPv4Unspecified(), Port: 30604, Proto: model.ProtocolTCP}
	remotePort = nodestate.Frontend{Addr: netip.IPv4Unspecified(), Port: 30605, Proto: model.ProtocolTCP}
)

// otherMAC is the other node's MAC address: the one that programs give to frames for pods, because
// a packet is run again and again as the run before left it.
var otherMAC = packet.MAC{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

// links are interface indexes of this network namespace.
type links struct{ uplink, podA, podB, host int }

// uplinkMAC is the uplink's: programs leave what is for another machine.
var uplinkMAC = packet.MAC{2, 0, 0, 0, 0, 1}

// makeLinks makes veth pairs, and the route by which bpf_fib_lookup finds a route out of the
// uplink. The far ends are in the same namespace and lead nowhere.
func makeLinks() (links, error) {
	var l links
	// bpf_fib_lookup finds no route where the kernel does not forward.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return l, fmt.Errorf("switching forwarding on: %w", err)
	}
	for _, want := range []struct {
		name string
		to   *int
	}{{"up0", &l.uplink}, {"podA", &l.podA}, {"podB", &l.podB}, {"weir0", &l.host}} {
		v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: want.name}, PeerName: want.name + "x"}
		if want.name == "up0" {
			v.HardwareAddr = uplinkMAC[:]
		}
		if err := netlink.LinkAdd(v); err != nil {
			return l, fmt.Errorf("adding %s: %w", want.name, err)
		}
		for _, name := range []string{want.name, want.name + "x"} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return l, fmt.Errorf("looking for %s: %w", name, err)
			}
			if err := netlink.LinkSetUp(link); err != nil {
				return l, fmt.Errorf("setting %s up: %w", name, err)
			}
			if name == want.name {
				*want.to = link.Attrs().Index
			}
		}
	}
	up, err := netlink.LinkByIndex(l.uplink)
	if err != nil {
		return l, err
	}
	addr, err := netlink.ParseAddr(nodeAddr.String() + "/24")
	if err != nil {
		return l, err
	}
	if err := netlink.AddrAdd(up, addr); err != nil {
		return l, fmt.Errorf("giving the uplink its address: %w", err)
	}
	gw := &netlink.Route{LinkIndex: l.uplink, Gw: otherNode.AsSlice()}
	if err := netlink.RouteAdd(gw); err != nil {
		return l, fmt.Errorf("adding the default route: %w", err)
	}
	return l, nil
}

// newState is the node's state without policy.
func newState(l links) *nodestate.State {
	s := nodestate.New()
	d := model.DefaultSettings()
	s.Settings = nodestate.Settings{Node: nodeAddr, ConnectTime: model.ConnectTimeTCP, SNATFirst: d.SNATPortFirst,
		SNATLast: d.SNATPortLast, Tunnel: nodestate.Tunnel{Port: d.VXLANPort, VNI: d.VXLANVNI}, Timeouts: d.Timeouts}
	s.Addrs[nodeAddr] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true, NodePorts: true}
	s.Addrs[otherNode] = nodestate.Addr{Kind: nodestate.AddrNode, SameLink: true, NodePorts: true, Node: otherNode, MAC: otherMAC}
	s.Addrs[podA] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: l.podA, NATOutgoing: true, MAC: [6]byte{2, 0, 0, 0, 1, 2}}
	s.Addrs[podB] = nodestate.Addr{Kind: nodestate.AddrEndpoint, IfIndex: l.podB, NATOutgoing: true, MAC: [6]byte{2, 0, 0, 0, 1, 3}}
	s.Routes[netip.MustParsePrefix("10.244.0.0/16")] = nodestate.Route{Pool: true}
	s.Routes[netip.MustParsePrefix("10.244.1.0/26")] = nodestate.Route{Pool: true, Local: true}
	s.Routes[netip.MustParsePrefix("10.244.2.0/26")] = nodestate.Route{Pool: true, SameLink: true, Node: otherNode}
	s.Frontends.Set(localSvc, nodestate.Service{ID: localSvc})
	s.Frontends.Set(localPort, nodestate.Service{ID: localSvc, External: true})
	s.Backends.Set(localSvc, []nodestate.Backend{{Addr: podB, Port: 8080, Local: true}})
	s.Frontends.Set(remoteSvc, nodestate.Service{ID: remoteSvc})
	s.Frontends.Set(remotePort, nodestate.Service{ID: remoteSvc, External: true})
	s.Backends.Set(remoteSvc, []nodestate.Backend{{Addr: podRemote, Port: 8080}})
	return s
}

// withPolicy isolates podB: `peers` addresses of 172.20.0.0/16, each of a class of its own, may
// reach its TCP port 8080.
func withPolicy(s *nodestate.State, peers int) {
	const set nodestate.SetID = 77
	b := s.Addrs[podB]
	b.Ingress = nodestate.Isolation{Set: set, Rule: 1}
	s.Addrs[podB] = b
	for i := range peers {
		class := nodestate.Class(1000 + i)
		s.Peers.Set(peer(i), class)
		s.Policy.Set(nodestate.PolicyKey{Set: set, Peer: class, Head: true}, nodestate.PolicyValue{
			Rule: 2, Protos: nodestate.ProtoBitTCP, Lens: 1 << 16})
		s.Policy.Set(nodestate.PolicyKey{Set: set, Peer: class, Proto: model.ProtocolTCP, Port: 8080, Len: 16}, nodestate.PolicyValue{Allow: true, Rule: 2})
	}
}

func peer(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)}) }

// mirror makes the translation of an established flow go round: the packet as the flow's entry
// leaves it gets an entry that turns it back. So one packet can be translated again and again.
func mirror(o *offline.Node, text string) error {
	p, err := packet.Parse(text)
	if err != nil {
		return err
	}
	flows := o.Maps["weir_flows"]
	h, err := flows.Handle()
	if err != nil {
		return fmt.Errorf("reading the types of the flow table: %w", err)
	}
	defer h.Close()
	spec, err := h.Spec(nil)
	if err != nil {
		return err
	}
	var keyType, valueType *btf.Struct
	if err := errors.Join(spec.TypeByName("flow_key", &keyType), spec.TypeByName("flow_value", &valueType)); err != nil {
		return err
	}
	key := make([]byte, keyType.Size)
	copy(key[offset(keyType, "saddr"):], p.IP.Src.AsSlice())
	copy(key[offset(keyType, "daddr"):], p.IP.Dst.AsSlice())
	binary.BigEndian.PutUint16(key[offset(keyType, "sport"):], p.SrcPort)
	binary.BigEndian.PutUint16(key[offset(keyType, "dport"):], p.DstPort)
	key[offset(keyType, "proto")] = p.IP.Proto

	value, err := flows.LookupBytes(key)
	if err != nil || value == nil {
		return fmt.Errorf("no established flow of %s: %w", text, err)
	}
	other := append([]byte{}, key...)
	for field, n := range map[string]int{"saddr": 4, "daddr": 4, "sport": 2, "dport": 2} {
		k, v := offset(keyType, field), offset(valueType, field)
		copy(other[k:k+n], value[v:v+n])
		copy(value[v:v+n], key[k:k+n])
	}
	return flows.Put(other, value)
}

// offset of a member in bytes. A missing one would be a change of bpf/abi.h that this file must
// follow.
func offset(s *btf.Struct, member string) int {
	for _, m := range s.Members {
		if m.Name == member {
			return int(m.Offset.Bytes())
		}
	}
	panic("struct " + s.Name + " has no member " + member)
}
