// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Expand writes the words of the family and of the state into rules. $tunnel are the devices by
// which other nodes' packets come out of a tunnel; $tunnels the same inside of a set.
func Expand(f table.Family, s *nodestate.State, lines ...string) []string {
	w := f.Words()
	tunnel, tunnels := hostnet.TunnelDevice, hostnet.TunnelDevice
	if f.TakesIPIP(s) {
		tunnels = fmt.Sprintf("%q, %q", hostnet.TunnelDevice, hostnet.IPIPDevice)
		tunnel = "{ " + tunnels + " }"
	}
	r := strings.NewReplacer("$ip", w.IP, "$icmp", w.ICMP, "$unreachable", w.Unreachable, "$loopback", w.Loopback,
		"$ports", "meta l4proto { tcp, udp, sctp }",
		"$node", f.Node(s).String(),
		"$mask", marks.Hex(marks.NodeMask), "$rest", marks.Hex(^uint32(marks.NodeMask)),
		"$tunnels", tunnels, "$tunnel", tunnel, "$pods", FromPods(s), "$host", hostnet.HostDevice, "$routed", marks.Hex(marks.RoutedBit), "$through", marks.Hex(marks.TunnelBit), "$handed", marks.Hex(marks.HandedBit), "$came", marks.Hex(marks.CameBit), "$led", marks.Hex(marks.EgressBits),
		"$goal", marks.Hex(marks.NodeMask|marks.TunnelBit), "$shakes", marks.Hex(marks.HandshakeMask), "$plain", marks.Hex(^uint32(marks.RoutedMask)),
		"$vxlan", fmt.Sprint(s.Settings.Tunnel.Port), "$vni", fmt.Sprint(s.Settings.Tunnel.VNI))
	out := make([]string, 0, len(lines))
	for _, l := range lines {
		if l != "" { // a rule that this state has not
			out = append(out, r.Replace(l))
		}
	}
	return out
}

// PodInterfaces are the interfaces of pods by their names, in the words of nft; "" when the prefix
// is not known.
func PodInterfaces(s *nodestate.State) string {
	if s.Settings.InterfacePrefix == "" {
		return ""
	}
	return `"` + s.Settings.InterfacePrefix + `*"`
}

// PlainName reports whether nft takes a name as part of its own.
func PlainName(name string) bool {
	return strings.IndexFunc(name, func(c rune) bool {
		return c != '-' && c != '_' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	}) < 0
}

// InterfaceID is what of an interface's name the names of chains bear.
func InterfaceID(name string) string {
	if !PlainName(name) {
		return fmt.Sprintf("%016x", table.Hash(name))
	}
	return name
}

// FromPods is what the interfaces of pods are, behind from-network: what comes by others of their
// names is dropped there.
func FromPods(s *nodestate.State) string {
	if p := PodInterfaces(s); p != "" && workloadsBegin(s) {
		return p
	}
	return "@" + SetWorkloads
}

// Workloads are the pods' interfaces that the state names, of whichever family their addresses are.
// Those of pods that are not known are among them where their names do not say that they are pods':
// they have no addresses.
func Workloads(s *nodestate.State) []string {
	names := map[string]bool{}
	for _, v := range s.Addrs {
		if v.Kind == nodestate.AddrEndpoint && v.Interface != "" {
			names[v.Interface] = true
		}
	}
	for _, name := range s.Held {
		if !strings.HasPrefix(name, s.Settings.InterfacePrefix) {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// workloadsBegin reports whether all pods' interfaces have the names of such.
func workloadsBegin(s *nodestate.State) bool {
	for _, name := range s.Held {
		if !strings.HasPrefix(name, s.Settings.InterfacePrefix) {
			return false
		}
	}
	for _, v := range s.Addrs {
		if v.Kind == nodestate.AddrEndpoint && v.Interface != "" && !strings.HasPrefix(v.Interface, s.Settings.InterfacePrefix) {
			return false
		}
	}
	return true
}
