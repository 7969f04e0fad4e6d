// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
)

// HostEndpoints names the host endpoints of this node that are not in force. uplinks are the
// interfaces with programs; a data plane that covers all interfaces needs none.
func HostEndpoints(n Node, uplinks []string, everywhere bool) []weirv1.Problem {
	var out []weirv1.Problem
	for _, h := range n.HostEndpoints {
		p := weirv1.Problem{Object: "HostEndpoint " + h.Name, Field: "spec.interfaceName", Value: h.Interface}
		at := slices.IndexFunc(n.Machine.Links, func(l model.LocalInterface) bool {
			return l.Name == h.Interface || h.Interface == "" && slices.ContainsFunc(l.Addrs, func(a netip.Addr) bool { return slices.Contains(h.ExpectedIPs, a) })
		})
		switch {
		case h.Interface == model.AllInterfaces:
			if !everywhere { // there all are covered
				out = append(out, uncoveredInterfaces(p, n, uplinks)...)
			}
			continue
		case at < 0:
			p.Message, p.Action = "this node has no such interface; the host endpoint is not in force", "correct interfaceName or expectedIPs"
		case !everywhere && !slices.Contains(uplinks, n.Machine.Links[at].Name):
			p.Value = n.Machine.Links[at].Name
			p.Message, p.Action = "has no programs of Weir; the host endpoint is not in force there", "name the interface in FelixConfiguration spec.bpfDataIfacePattern"
		default:
			continue
		}
		out = append(out, p)
	}
	if len(n.HostEndpoints) > 0 {
		out = append(out, uncoveredIPv6(n)...)
	}
	return out
}

// LateDrops says on which uplinks what doNotTrack policy denies is dropped later than in the
// driver's XDP, by dataplane.Status.Arrival.
func LateDrops(node string, arrival map[string]string) []weirv1.Problem {
	var out []weirv1.Problem
	for _, name := range slices.Sorted(maps.Keys(arrival)) {
		p := weirv1.Problem{Object: "Node " + node, Field: "doNotTrack on " + name, Value: arrival[name]}
		switch arrival[name] {
		case dataplane.XDPNative:
			continue
		case dataplane.XDPGeneric:
			p.Message, p.Action = "the driver has no XDP: what doNotTrack policy denies is dropped in the generic one, after the kernel has taken the packet in; policy is in force", "use a driver with XDP where floods are to be dropped"
		default:
			p.Message, p.Action = "XDP cannot be had: what doNotTrack policy denies is dropped by from_uplink, at more cost; policy is in force", "end another program in XDP on the interface, or use another driver or kernel"
		}
		out = append(out, p)
	}
	return out
}

// uncoveredInterfaces names the interfaces with addresses of the node that a host endpoint of all
// interfaces does not cover: those without programs. p is the problem to fill in.
func uncoveredInterfaces(p weirv1.Problem, n Node, uplinks []string) []weirv1.Problem {
	var names []string
	for _, l := range n.Machine.Links {
		known := func(a netip.Addr) bool { return slices.Contains(n.Machine.Addrs, a) && !a.IsLinkLocalUnicast() }
		if !slices.Contains(uplinks, l.Name) && slices.ContainsFunc(l.Addrs, known) {
			names = append(names, l.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	p.Value = strings.Join(names, ", ")
	p.Message = "have addresses of the node and no programs of Weir; the host endpoint of all interfaces is not in force there"
	p.Action = "name those that others reach in FelixConfiguration spec.bpfDataIfacePattern"
	return []weirv1.Problem{p}
}

// uncoveredIPv6 says when the node has IPv6 addresses that host endpoints do not cover.
func uncoveredIPv6(n Node) []weirv1.Problem {
	if n.State == nil || n.State.Settings.IPv6 {
		return nil
	}
	at := slices.IndexFunc(n.Machine.Addrs, netip.Addr.Is6)
	if at < 0 {
		return nil
	}
	return []weirv1.Problem{{Object: "HostEndpoint " + n.HostEndpoints[0].Name, Field: "IPv6", Value: n.Machine.Addrs[at].String(),
		Message: "the node has IPv6 addresses and Weir does not carry IPv6 here: no host endpoint applies to what they exchange",
		Action:  "set FelixConfiguration spec.ipv6Support to true, or filter IPv6 by other means"}}
}
