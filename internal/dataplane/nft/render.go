package nft

import (
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/nodestate"
)

// family is one of the two that a node carries.
type family struct{ six bool }

var families = []family{{}, {six: true}}

func (f family) nft() knftables.Family {
	if f.six {
		return knftables.IPv6Family
	}
	return knftables.IPv4Family
}

func (f family) String() string {
	if f.six {
		return "IPv6"
	}
	return "IPv4"
}

// has reports whether an address is of the family.
func (f family) has(a netip.Addr) bool { return a.IsValid() && a.Is4() != f.six }

// number is netlink's of the family.
func (f family) number() int {
	if f.six {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// zero is the unspecified address.
func (f family) zero() netip.Addr {
	if f.six {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// node is the node's primary address of the family; invalid when it has none.
func (f family) node(s *nodestate.State) netip.Addr {
	if f.six {
		return s.Settings.Node6
	}
	return s.Settings.Node
}

// carried reports whether the node carries the family.
func (f family) carried(s *nodestate.State) bool { return !f.six || s.Settings.IPv6 }

// Render makes the table of a family from a state alone. A node that the state's makers never saw before gets the number
// that marks gives it.
func Render(s *nodestate.State, six bool) *Table {
	f := family{six}
	t := newTable(f.nft())
	epoch, hosts := renderPolicy(f, t, s, newPolicy())
	renderChains(f, t, s, epoch, hosts, setSizeFor(f, s, 0), indexes{connections: 1 << 18}) // the kernel's default
	n := newNodeNumbers()
	renderAddrs(f, t, s, n, indexes{})
	renderRoutes(f, t, s)
	renderRemote(f, t, s, n)
	newServices(f, n).render(t, s)
	return t
}

// renderAddrs makes the elements that follow nodestate.State.Addrs.
func renderAddrs(f family, t *Table, s *nodestate.State, numbers *nodeNumbers, at indexes) {
	numbers.follow(f, s)
	addWorkloads(t, s)
	for a, v := range s.Addrs {
		if !f.has(a) {
			continue
		}
		t.add(setKnown, a.String(), "")
		switch v.Kind {
		case nodestate.AddrHost:
			t.add(setOwn, a.String(), "")
			t.add(mapPortals, a.String(), "goto "+ownChainOutside)
			t.add(mapInside, a.String(), "goto "+ownChainInside)
			t.add(setLocal, a.String(), "")
			t.add(mapSenders, a.String(), "goto "+ownSourceChain)
		case nodestate.AddrEndpoint:
			t.add(setPods, a.String(), "")
			t.add(setLocal, a.String(), "")
			t.add(setHairpin, key(a, a), "")
			addSender(f, t, s, a, v, at)
			if v.NATOutgoing {
				t.add(setOutgoing, a.String(), "")
			}
		case nodestate.AddrNode:
			t.add(setNodes, a.String(), "")
			n, ok := numbers.of(v.Node)
			addNode(f, t, a, v, n, ok)
			if ok {
				mark := strconv.Itoa(n << nodeShift)
				t.add(mapNodes, a.String(), mark)
				if v.SameLink && v.MAC != [6]byte{} {
					t.add(mapLinks, macText(v.MAC), mark)
				}
			}
			if v.KeepSource {
				t.add(setKeepSource, a.String(), "")
			}
		}
		if v.Kind == nodestate.AddrPod {
			t.add(mapSenders, a.String(), "goto "+podSource)
			addRemote(f, t, s, numbers, ofSinglePods, a, v.Node, v.SameLink, v.Tunnel)
		}
		if v.NodePorts {
			t.add(setPorted, a.String(), "")
			if v.Kind == nodestate.AddrNode {
				t.add(mapPortals, a.String(), "goto "+nodeChainOutside)
				t.add(mapInside, a.String(), "goto "+nodeChainInside)
			}
		}
	}
}

// renderRoutes makes the elements that follow routes: prefixes of pods.
func renderRoutes(f family, t *Table, s *nodestate.State) {
	var pods, routed, blocks prefixes
	for p, r := range s.Routes {
		if !f.has(p.Addr()) {
			continue
		}
		pods.add(p)
		routed.add(p)
		if r.Local {
			blocks.add(p)
		}
	}
	for a, v := range s.Addrs {
		if !f.has(a) {
			continue
		}
		switch v.Kind {
		case nodestate.AddrEndpoint, nodestate.AddrPod:
			pods.add(netip.PrefixFrom(a, a.BitLen()))
			routed.add(netip.PrefixFrom(a, a.BitLen()))
		case nodestate.AddrHost:
			routed.add(netip.PrefixFrom(a, a.BitLen()))
		}
	}
	optOut := disjointOf(f, s.Settings.DSROptOut)
	for set, of := range map[string]prefixes{setOptOut: optOut, setPodRanges: pods, setRouted: routed, setBlocks: blocks} {
		for _, p := range of.disjoint() {
			t.add(set, prefixText(p), "")
		}
	}
}
