package nft

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// indexes are those of interfaces, 0 = not known: an index is compared faster than a name. What is not known, or no longer true, is slower, never
// wrong: a new interface gets an index that none had.
type indexes struct {
	uplink int    // of the node's primary address: most of what is no pod's comes and leaves by it
	tunnel int    // of tunnelDevice
	host   int    // of hostDevice
	others string // those of the rest that have an address, but for pods' and the loopback device, with a comma behind each
}

// mostIndexes bounds how many interfaces one rule names.
const mostIndexes = 1024

// indexesOf finds them.
func (f family) indexesOf(s *nodestate.State) (out indexes) {
	if !f.carried(s) {
		return out
	}
	links, err := kernel.Dump(netlink.LinkList)
	if err != nil {
		return out
	}
	addressed, err := f.addressed(s)
	if err != nil {
		return out
	}
	pods, names := podIndexes(s), map[string]bool{}
	for _, v := range s.Addrs {
		if v.Kind == nodestate.AddrEndpoint {
			names[v.Interface] = true
		}
	}
	others := map[int]bool{}
	for _, l := range links {
		at := l.Attrs()
		switch {
		case at.Name == hostDevice:
			out.host = at.Index
		case at.Name == tunnelDevice:
			out.tunnel = at.Index
		case at.Name == hostPeer, at.Flags&net.FlagLoopback != 0, names[at.Name], pods[at.Index],
			s.Settings.InterfacePrefix != "" && strings.HasPrefix(at.Name, s.Settings.InterfacePrefix):
		case addressed[at.Index]:
			out.uplink = at.Index
		default:
			if _, ok := addressed[at.Index]; ok { // a pod's on its way to its name has none
				others[at.Index] = true
			}
		}
	}
	if len(others) <= mostIndexes {
		for _, i := range slices.Sorted(maps.Keys(others)) {
			out.others += strconv.Itoa(i) + ", "
		}
	}
	return out
}

// addressed are the indexes of the interfaces that have addresses of the family for more than their link, with whether one is the node's primary
// address.
func (f family) addressed(s *nodestate.State) (map[int]bool, error) {
	addrs, err := kernel.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, f.number()) })
	out := map[int]bool{}
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() {
			out[a.LinkIndex] = out[a.LinkIndex] || a.IP.Equal(f.node(s).AsSlice())
		}
	}
	return out, err
}

// podIndexes are those of pods' interfaces.
func podIndexes(s *nodestate.State) map[int]bool {
	out := map[int]bool{}
	for _, v := range s.Addrs {
		if v.Kind == nodestate.AddrEndpoint && v.Interface != "" && v.IfIndex > 0 {
			out[v.IfIndex] = true
		}
	}
	return out
}

// onward are the interfaces that open flows may leave by unasked, but for the uplink and the tunnel, in the words of nft; "" when there are none, or
// too many.
func (at indexes) onward(s *nodestate.State) string {
	pods := podIndexes(s)
	if len(pods) > mostIndexes || len(pods) == 0 && at.others == "" {
		return ""
	}
	words := at.others
	for _, i := range slices.Sorted(maps.Keys(pods)) {
		words += strconv.Itoa(i) + ", "
	}
	return "{ " + strings.TrimSuffix(words, ", ") + " }"
}
