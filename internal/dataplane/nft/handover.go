// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/names"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

// What this data plane knows of connections besides what connection tracking does, for another one
// that takes its place, and the other way round. It is read from the kernel: no driver needs to be
// there.

// Mark is the ct mark by which a connection takes a route; ok is false where marks cannot name the
// node.
func (d *Driver) Mark(r conntrack.NodeRoute) (mark uint32, ok bool) {
	if r.Gateway && !r.Tunnel {
		return marks.EgressBits, true
	}
	if r.Routes {
		return marks.RoutesNumber << marks.NodeShift, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.tables[table.FamilyOf(r.Node)]
	if t == nil || t.numbers == nil || d.state == nil {
		return 0, false
	}
	node := r.Node
	if a := d.state.Addrs[node]; a.Node.IsValid() {
		node = a.Node
	}
	num, ok := t.numbers.Of(node)
	if !ok {
		return 0, false
	}
	mark = uint32(num) << marks.NodeShift
	if r.Gateway {
		return mark | marks.EgressBits | marks.TunnelBit, true
	}
	for bit, on := range map[uint32]bool{marks.HandedBit: r.HandsOn, marks.TunnelBit: r.Tunnel, marks.CameBit: r.Came} {
		if on {
			mark |= bit
		}
	}
	return mark, true
}

// connectionRoute is what a ct mark says; nodes are those that marks name.
func connectionRoute(mark uint32, nodes map[uint32]netip.Addr) (conntrack.NodeRoute, bool) {
	node, ok := nodes[mark&marks.NodeMask]
	if mark&marks.EgressBits == marks.EgressBits {
		through := mark&marks.TunnelBit != 0
		if !through {
			node = netip.Addr{} // the number is a gateway's
		}
		return conntrack.NodeRoute{Node: node, Gateway: true, Tunnel: through}, ok || !through
	}
	return conntrack.NodeRoute{Node: node, Tunnel: mark&marks.TunnelBit != 0, HandsOn: mark&marks.HandedBit != 0, Came: mark&marks.CameBit != 0}, ok
}

// Left reads what tables that are there know.
func Left() (left conntrack.Left, err error) {
	conn, err := nftables.New()
	if err != nil {
		return left, fmt.Errorf("opening nftables: %w", err)
	}
	nodes := map[bool]map[uint32]netip.Addr{}
	var errs []error
	for _, f := range table.Families {
		_, known, err := table.Elements(conn, f, expr.MapNodes)
		errs = append(errs, err)
		nodes[f.Six] = map[uint32]netip.Addr{}
		for _, e := range known {
			if a, ok := netip.AddrFromSlice(e.Key); ok && len(e.Val) >= 4 {
				nodes[f.Six][binary.NativeEndian.Uint32(e.Val)&marks.NodeMask] = a
			}
		}
	}
	left.Route = func(mark uint32, six bool) (conntrack.NodeRoute, bool) { return connectionRoute(mark, nodes[six]) }
	_, flows, err := table.Elements(conn, table.Family{}, chains.MapDSRFlows)
	for _, e := range flows {
		if entry, ok := dsrEntry(e); ok {
			left.Untracked = append(left.Untracked, entry)
		}
	}
	errs = append(errs, err)
	for _, f := range table.Families {
		some, err := services.AffinityOf(conn, f, trackedClients)
		left.Affinity, errs = append(left.Affinity, some...), append(errs, err)
	}
	left.Told, err = names.Left(conn)
	errs = append(errs, err)
	return left, errors.Join(errs...)
}

// FlowsOf implements vmflows.DataPlane: what takes a path of its own is left out.
func (d *Driver) FlowsOf(a netip.Addr) (out []conntrack.Entry, err error) {
	t, err := conntrack.Open()
	if err != nil {
		return nil, err
	}
	defer t.Close()
	err = t.Each(a.Is6(), func(e conntrack.Entry) {
		if (e.Orig.Src == a || e.Reply.Src == a) && e.Zone == 0 && e.Mark&^(marks.EpochMask|marks.PluginBit) == 0 {
			e.Mark = 0 // it is to be evaluated
			out = append(out, e)
		}
	})
	return out, err
}

// PutFlows implements vmflows.DataPlane.
func (d *Driver) PutFlows(_ netip.Addr, ifindex int, flows []conntrack.Entry) error {
	t, err := conntrack.Open()
	if err != nil {
		return err
	}
	defer t.Close()
	var some conntrack.Some
	for _, e := range flows {
		put, err := t.Put(e, func(there conntrack.Entry) bool { return ifindex != 0 && !e.Translated() && there.Reply == e.Reply })
		if err == nil && !put { // what this node has may be of an earlier stay: windows have moved since
			err = t.Loosen(e.Reply)
		}
		some.Add(err)
	}
	return some.Err()
}

// dsrEntry is an element of IPv4's map of DSR flows, as a connection. Each part of a key fills
// whole words.
func dsrEntry(e nftables.SetElement) (conntrack.Entry, bool) {
	if len(e.Key) != 16 || len(e.Val) < 4 {
		return conntrack.Entry{}, false
	}
	mark := binary.NativeEndian.Uint32(e.Val)
	if mark&chains.DsrClosed != 0 {
		return conntrack.Entry{}, false
	}
	orig := conntrack.Tuple{Src: netip.AddrFrom4([4]byte(e.Key)), Dst: netip.AddrFrom4([4]byte(e.Key[4:])), Proto: unix.IPPROTO_TCP,
		SrcPort: binary.BigEndian.Uint16(e.Key[8:]), DstPort: binary.BigEndian.Uint16(e.Key[12:])}
	out := conntrack.Entry{Orig: orig, Reply: orig.Reversed(), Mark: mark | marks.HandedBit, Left: e.Expires.Truncate(time.Second),
		Status: conntrack.Assured | conntrack.Confirmed, TCP: conntrack.TCP{State: conntrack.TCPEstablished}}
	return out, true
}

// trackedClients are the addresses of IPv6 that began connections, by their hashes.
func trackedClients() map[uint32]netip.Addr {
	out := map[uint32]netip.Addr{}
	table, err := conntrack.Open()
	if err != nil {
		return out // clients choose anew
	}
	defer table.Close()
	_ = table.Each(true, func(e conntrack.Entry) { out[services.HashClient(e.Orig.Src)] = e.Orig.Src })
	return out
}
