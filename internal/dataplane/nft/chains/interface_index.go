// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// Indexes are those of interfaces, 0 = not known: an index is compared faster than a name. What is
// not known, or no longer true, is slower, not wrong: the kernel gives a new interface an index
// that none had. Only who makes an interface, or moves one here from another network namespace, can
// choose one that was a pod's (see "Known limits" in docs/design/nftables.md).
type Indexes struct {
	uplink int    // of the node's primary address: most of what is no pod's comes and leaves by it
	tunnel int    // of TunnelDevice
	host   int    // of HostDevice
	others string // those of the rest that have an address, but for pods' and the loopback device, with a comma behind each
	// named: the name of an interface is a number. nft takes a number for a name first, so rules
	// have no indexes then.
	named bool
	// unacknowledged is how long connection tracking keeps a connection of TCP that was answered
	// alone; it comes with the indexes because both are the kernel's, and are looked at together. 0
	// = not known.
	unacknowledged time.Duration
	Connections    uint32 // of Driver.connections, with them for the same reason
}

// MaxIndexes bounds how many pods' interfaces one rule names, and how many others: it is written
// anew with each that comes or goes.
const MaxIndexes = 256

// FindIndexes asks the kernel for them.
func FindIndexes(f table.Family, s *nodestate.State) (out Indexes, err error) {
	if !f.Carried(s) {
		return out, nil
	}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return out, fmt.Errorf("listing interfaces: %w", err)
	}
	addressed, err := addressedLinks(f, s)
	if err != nil {
		return out, fmt.Errorf("listing addresses: %w", err)
	}
	out = indexesOf(s, links, addressed)
	out.unacknowledged, err = unacknowledged()
	return out, err
}

// indexesOf distinguishes interfaces; addressed is what the function of that name returns.
func indexesOf(s *nodestate.State, links []netlink.Link, addressed map[int]bool) (out Indexes) {
	pods, names := map[int]bool{}, map[string]bool{}
	for _, v := range s.Addrs {
		if v.Kind == nodestate.AddrEndpoint {
			pods[v.IfIndex] = true
		}
	}
	for _, name := range expr.Workloads(s) {
		names[name] = true
	}
	others := map[int]bool{}
	for _, l := range links {
		at := l.Attrs()
		if _, err := strconv.ParseUint(at.Name, 0, 64); err == nil {
			return Indexes{named: true}
		}
		switch {
		case at.Name == hostnet.HostDevice:
			out.host = at.Index
		case at.Name == hostnet.TunnelDevice:
			out.tunnel = at.Index
		case at.Name == hostnet.HostPeer, at.Flags&net.FlagLoopback != 0, names[at.Name], pods[at.Index],
			s.Settings.InterfacePrefix != "" && strings.HasPrefix(at.Name, s.Settings.InterfacePrefix):
		case addressed[at.Index]:
			out.uplink = at.Index
		default:
			if _, ok := addressed[at.Index]; ok { // a pod's on its way to its name has none
				others[at.Index] = true
			}
		}
	}
	if len(others) <= MaxIndexes {
		for _, i := range slices.Sorted(maps.Keys(others)) {
			out.others += strconv.Itoa(i) + ", "
		}
	}
	return out
}

// addressedLinks are the indexes of the interfaces that have addresses of the family for more than
// their link, with whether one is the node's primary address.
func addressedLinks(f table.Family, s *nodestate.State) (map[int]bool, error) {
	addrs, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, f.Number()) })
	out := map[int]bool{}
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() {
			out[a.LinkIndex] = out[a.LinkIndex] || a.IP.Equal(f.Node(s).AsSlice())
		}
	}
	return out, err
}

// podIndexes are those of the interfaces of pods that have an address of the family.
func podIndexes(f table.Family, s *nodestate.State) map[int]bool {
	out := map[int]bool{}
	for a, v := range s.Addrs {
		if f.Has(a) && v.Kind == nodestate.AddrEndpoint && v.Interface != "" && v.IfIndex > 0 {
			out[v.IfIndex] = true
		}
	}
	return out
}

// onwardInterfaces are the interfaces that open flows may leave by unasked, but for the uplink and
// the tunnel, in the words of nft; "" when there are none. Of more pods than one rule names there
// are none.
func onwardInterfaces(f table.Family, s *nodestate.State, at Indexes) string {
	words, pods := at.others, podIndexes(f, s)
	if len(pods) <= MaxIndexes && !at.named {
		for _, i := range slices.Sorted(maps.Keys(pods)) {
			words += strconv.Itoa(i) + ", "
		}
	}
	if words == "" {
		return ""
	}
	return "{ " + strings.TrimSuffix(words, ", ") + " }"
}
