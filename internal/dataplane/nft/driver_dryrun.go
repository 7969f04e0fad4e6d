// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/dryrun"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// DryRun lets a packet pass the rules that are in the kernel, and compares these with what was to
// be written. No packet is sent, nothing is written.
func (d *Driver) DryRun(q dryrun.Question) (*dryrun.Trace, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return dryrun.Run(q, func(f table.Family) dryrun.Node {
		t := d.tables[f]
		return dryrun.Node{State: d.state, Table: t.State, Numbers: t.numbers, Network: &d.network}
	})
}

// Places returns the interfaces by which packets come that are not a pod's. Uplinks are those that
// have addresses of the node, Epoch is that of IPv4's policy.
func (d *Driver) Places() dataplane.Places {
	p, err := d.places()
	if err != nil && p.Behind == "" {
		p.Behind = err.Error()
	}
	return p
}

func (d *Driver) places() (dataplane.Places, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := dataplane.Places{Uplinks: map[int][6]byte{}}
	if d.state == nil {
		p.Behind = "nothing was written yet"
		return p, nil
	}
	p.Host, p.Tunnel, p.IPIP = d.network.HostIndex(), d.network.TunnelIndex(), d.network.IPIPIndex()
	if t := d.tables[table.Family{}]; t.policy != nil {
		p.Epoch = uint32(t.policy.Epoch())
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

// IfIndex returns the interface of an endpoint as the state has it, 0 = it does not say.
func (d *Driver) IfIndex(a nodestate.Addr) int { return a.IfIndex }
