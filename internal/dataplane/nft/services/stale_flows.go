// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Connection tracking goes on translating an open flow as it began. One of UDP or SCTP whose
// backend has left its Service begins anew, as docs/design/datapath.md wants it: its entry is
// deleted, once the maps no longer have the backend. TCP goes on.

// gone is a backend that left a Service's port, or a node where it has none any more, to which
// flows were handed on.
type gone struct {
	backend netip.AddrPort
	node    int // number
	proto   model.Protocol
}

// endings are the flows that are to end: of a backend, those to these frontends.
type endings map[gone]map[nodestate.Frontend]bool

// noteGone notes which backends of a port are gone; faces are the frontends that it had before.
func (v *Follower) noteGone(id nodestate.Frontend, before, now map[netip.AddrPort]bool, faces map[nodestate.Frontend]nodestate.Service) {
	if id.Proto == model.ProtocolTCP {
		return
	}
	for b := range before {
		if now[b] {
			continue
		}
		v.endings.note(gone{backend: b, proto: id.Proto}, faces)
	}
}

// noteLeft notes which nodes have no backend of a port any more.
func (v *Follower) noteLeft(id nodestate.Frontend, before, now map[netip.AddrPort]int, faces map[nodestate.Frontend]nodestate.Service) {
	if id.Proto == model.ProtocolTCP || v.proxied {
		return
	}
	left := map[int]bool{}
	for _, node := range before {
		left[node] = true
	}
	for _, node := range now {
		delete(left, node)
	}
	for node := range left {
		v.endings.note(gone{node: node, proto: id.Proto}, faces)
	}
}

func (e endings) note(k gone, faces map[nodestate.Frontend]nodestate.Service) {
	if e[k] == nil {
		e[k] = map[nodestate.Frontend]bool{}
	}
	for f := range faces {
		e[k][f] = true
	}
}

// EndsHandedOn reports whether flows to a frontend that were handed on to the node of a number are
// to end.
func (v *Follower) EndsHandedOn(node int, f nodestate.Frontend) bool {
	return v.endings[gone{node: node, proto: f.Proto}][f]
}

// live are a port's backends of the family that are not gone.
func (v *Follower) live(all []nodestate.Backend) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for _, b := range all {
		if v.f.Has(b.Addr) {
			out[netip.AddrPortFrom(b.Addr, b.Port)] = true
		}
	}
	return out
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (e endings) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	backend := addrPort(f.Reverse.SrcIP, f.Reverse.SrcPort)
	asked, proto := addrPort(f.Forward.DstIP, f.Forward.DstPort), model.Protocol(f.Forward.Protocol)
	k := gone{backend: backend, proto: proto}
	switch {
	case f.Mark&marks.HandedBit != 0:
		k = gone{node: int(f.Mark&marks.NodeMask) >> marks.NodeShift, proto: proto}
	case backend == asked:
		return false // not translated
	}
	faces := e[k]
	return faces[nodestate.Frontend{Addr: asked.Addr(), Port: asked.Port(), Proto: proto}] ||
		faces[nodestate.Frontend{Addr: unspecified(asked.Addr().Is6()), Port: asked.Port(), Proto: proto}]
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

// unspecified is the address of node ports.
func unspecified(six bool) netip.Addr {
	if six {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// EndFlows deletes the entries of flows that are to end. What fails is tried again.
func (v *Follower) EndFlows() error {
	if len(v.endings) == 0 && !v.floating.changed {
		return nil
	}
	of := netlink.InetFamily(netlink.FAMILY_V4)
	if v.f.Six {
		of = netlink.FAMILY_V6
	}
	if v.floating.changed {
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, of, &v.floating); err != nil {
			return fmt.Errorf("ending the flows of floating addresses that other pods have: %w", err)
		}
		v.floating.changed = false
		clear(v.floating.left)
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, of, maps.Clone(v.endings)); err != nil {
		return fmt.Errorf("ending the flows of %d backends that are gone: %w", len(v.endings), err)
	}
	clear(v.endings)
	return nil
}
