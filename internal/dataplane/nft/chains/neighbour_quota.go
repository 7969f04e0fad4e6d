// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// The kernel's table of neighbours (gc_thresh3) is the whole node's, and an entry that nobody
// answers for stays for three seconds, one that is new for five. So pods make it look for a few new
// ones a second. What is known already, gateways and nodes are not asked about.
const (
	newNeighbourChain = "new-neighbour"
	podDiscoveryChain = "pod-discovery" // neighbour discovery from addresses that nobody knows to be the pod's own
	SetNeighbours     = "neighbours"    // addresses that the kernel has resolved, gateways, nodes
	setResolving      = "resolving"     // those that a pod asked for a moment ago
	setResolves       = "resolves"      // pods' interfaces with their rate
	setDiscovers      = "discovers"     // the same for neighbour discovery
	resolvePod        = 16              // new neighbours of a pod in a second
	resolveAll        = 96              // and of all pods: five seconds of it are less than half of the table as it is by default
	discoverPod       = 16              // frames of a pod about its link in a second
	resolvingFor      = 3               // seconds for which one that was asked for is not counted again
	resolvingSize     = 4096
)

// resolveChains make the chains and sets by which pods are held to a rate of new neighbours.
func resolveChains(f table.Family, t *table.Table, s *nodestate.State) {
	refuse := expr.DenyName(reason.Neighbours, 0)
	t.Chains[newNeighbourChain] = table.Chain{Rules: expr.Expand(f, s,
		"rt $ip nexthop @"+setResolving+" return",
		fmt.Sprintf("update @%s { iifname timeout 1m limit rate over %d/second burst %d packets } goto %s", setResolves, resolvePod, resolvePod, refuse),
		fmt.Sprintf("limit rate over %d/second burst %d packets goto %s", resolveAll, resolveAll, refuse),
		fmt.Sprintf("add @%s { rt $ip nexthop timeout %ds }", setResolving, resolvingFor))}
	t.Chains[podDiscoveryChain] = table.Chain{Rules: expr.Expand(f, s,
		fmt.Sprintf("update @%s { iifname timeout 1m limit rate over %d/second burst %d packets } drop", setDiscovers, discoverPod, discoverPod))}
	t.Chains[refuse] = table.Chain{Rules: []string{"counter", "drop"}}
	table.AddSet(f, t, SetNeighbours, table.Set{Key: "$addr"})
	table.AddSet(f, t, setResolving, table.Set{Key: "$addr", Learned: true, Size: resolvingSize})
	table.AddSet(f, t, setResolves, table.Set{Key: "ifname", Learned: true, Size: resolvingSize})
	table.AddSet(f, t, setDiscovers, table.Set{Key: "ifname", Learned: true, Size: resolvingSize})
}

// asksNeighbour leads what a pod begins, and nobody has answered, and would go to a neighbour that
// is not known, to its chain.
func asksNeighbour(s *nodestate.State) string {
	pods := ""
	if p := expr.PodInterfaces(s); p != "" {
		pods = "oifname != " + p + " "
	}
	return "iifname $pods oifname != { $tunnels, $host } " + pods + "rt $ip nexthop != @" + SetNeighbours + " jump " + newNeighbourChain
}

// FindNeighbours are the addresses that the kernel need not look for, and those that pods do not
// choose.
func FindNeighbours(f table.Family, s *nodestate.State) (map[netip.Addr]bool, error) {
	const resolved = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT
	out, pods := map[netip.Addr]bool{}, map[int]bool{}
	for a, v := range s.Addrs {
		switch {
		case v.Kind == nodestate.AddrEndpoint:
			pods[v.IfIndex] = true
		case v.Kind == nodestate.AddrNode && f.Has(a):
			out[a] = true
		}
	}
	found, err := kernel.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, f.Number()) })
	if err != nil {
		return nil, fmt.Errorf("listing neighbours: %w", err)
	}
	for _, n := range found {
		if a, ok := netip.AddrFromSlice(n.IP); ok && n.State&resolved != 0 && !pods[n.LinkIndex] {
			out[a.Unmap()] = true
		}
	}
	routes, err := kernel.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, f.Number()) })
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	for _, r := range routes {
		vias := []*netlink.NexthopInfo{{Gw: r.Gw}}
		for _, p := range append(vias, r.MultiPath...) {
			if a, ok := netip.AddrFromSlice(p.Gw); ok {
				out[a.Unmap()] = true
			}
		}
	}
	maps.DeleteFunc(out, func(a netip.Addr, _ bool) bool { return !f.Has(a) || a.IsMulticast() || a.IsUnspecified() })
	return out, nil
}
