// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net"
	"regexp"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/hostdev"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// ensureUplinks looks for uplinks where they were not looked for yet, or by another pattern.
func (d *Driver) ensureUplinks(s *nodestate.State) error {
	pattern, err := regexp.Compile(s.Settings.DataIfaces)
	if err != nil {
		return &dataplane.KeyError{Table: "interfaces", Key: "bpfDataIfacePattern", Err: err}
	}
	if d.pattern != nil && d.pattern.String() == pattern.String() && d.uplinks != nil {
		return nil
	}
	d.pattern = pattern
	return d.findUplinks(s)
}

// findUplinks looks for the interfaces that lead out of the node.
func (d *Driver) findUplinks(s *nodestate.State) error {
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return &dataplane.KeyError{Table: "interfaces", Key: "list", Err: err}
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	pods := map[string]bool{}
	for _, a := range s.Addrs {
		if a.Kind == nodestate.AddrEndpoint {
			pods[a.Interface] = true
		}
	}
	found, addrs := map[int]string{}, map[uint32]abi.WeirLinkKey{}
	for _, l := range links {
		attrs := l.Attrs()
		if attrs.Flags&net.FlagLoopback != 0 || pods[attrs.Name] || !d.isUplink(attrs.Name) {
			continue
		}
		// A member of a bond that is an uplink itself: the packets are seen there.
		if master, ok := byIndex[attrs.MasterIndex]; ok && d.isUplink(master.Attrs().Name) {
			continue
		}
		found[attrs.Index] = attrs.Name
		if len(attrs.HardwareAddr) == 6 {
			addrs[uint32(attrs.Index)] = abi.WeirLinkKey{Mac: [6]uint8(attrs.HardwareAddr)}
		}
	}
	for index, name := range found {
		if d.uplinks[index] != name {
			d.log.Info("uplink found", "interface", name, "index", index)
		}
	}
	if len(found) == 0 && (d.uplinks == nil || len(d.uplinks) > 0) {
		d.log.Warn("no interface matches bpfDataIfacePattern: nothing from outside reaches pods and Services", "pattern", d.pattern.String())
	}
	d.uplinks, d.machine.Uplinks = found, addrs
	return nil
}

func (d *Driver) isUplink(name string) bool {
	return name != hostdev.HostDevice && name != hostdev.HostPeer && name != hostdev.TunnelDevice && d.pattern.MatchString(name)
}
