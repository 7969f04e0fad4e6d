package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Names of sets and maps that more than one file speaks of.
const (
	setWorkloads  = "workloads"     // pods' interfaces
	mapSenders    = "senders"       // addresses of this node → the chain that asks by which interface they come
	setPods       = "pods"          // addresses of this node's pods
	setOwn        = "own"           // the node's own addresses
	setLocal      = "local-sources" // own and pods: nobody else's sources
	setNodes      = "nodes"         // other nodes' addresses
	mapNodes      = "node-marks"    // other nodes' addresses → their mark
	mapLinks      = "link-marks"    // other nodes' MAC addresses → their mark
	setPorted     = "node-port-addresses"
	setBlocks     = "local-blocks"   // where only endpoints of this node live
	setKnown      = "known"          // addresses that somebody has, here or elsewhere
	setRouted     = "cluster"        // prefixes of pods, and the node's own addresses: what is not masqueraded
	setPodRanges  = "pod-ranges"     // prefixes of pods
	setOutgoing   = "nat-outgoing"   // pods whose source is translated when they leave the cluster
	mapPortals    = "portals"        // addresses of nodes that may be asked for ports → where they are looked up
	mapInside     = "portals-inside" // the same for pods and the node's own processes
	setHairpin    = "hairpin"        // address . address of each pod
	setKeepSource = "keep-source"    // nodes' addresses that pods reach with their own
	setDirect     = "direct"         // lists whose answers to outside clients go straight to them
	setOptOut     = "never-direct"   // clients to whom they do not
)

// expandRules writes the words of the family and of the state into rules.
func expandRules(f table.Family, s *nodestate.State, lines ...string) []string {
	w := f.Words()
	r := strings.NewReplacer("$ip", w.IP, "$icmp", w.ICMP, "$unreachable", w.Unreachable,
		"$ports", "meta l4proto { tcp, udp, sctp }",
		"$node", f.Node(s).String(),
		"$mask", marks.Hex(marks.NodeMask), "$rest", marks.Hex(^uint32(marks.NodeMask)),
		"$tunnel", hostnet.TunnelDevice, "$pods", fromPods(s), "$host", hostnet.HostDevice, "$routed", marks.Hex(marks.RoutedBit), "$through", marks.Hex(marks.TunnelBit), "$handed", marks.Hex(marks.HandedBit), "$came", marks.Hex(marks.CameBit),
		"$goal", marks.Hex(marks.NodeMask|marks.TunnelBit), "$shakes", marks.Hex(marks.HandshakeMask), "$plain", marks.Hex(^uint32(marks.RoutedMask)),
		"$vxlan", fmt.Sprint(s.Settings.Tunnel.Port), "$vni", fmt.Sprint(s.Settings.Tunnel.VNI))
	out := make([]string, 0, len(lines))
	for _, l := range lines {
		out = append(out, r.Replace(l))
	}
	return out
}

// renderChains makes the chains and sets that every node has; those of the hooks are in filter_chains.go. room is of setSizeFor,
// at of findIndexes.
func renderChains(f table.Family, t *table.Table, s *nodestate.State, epoch uint16, h hostRules, room uint64, at indexes) {
	filterChains(f, t, s, epoch, h, at)
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expandRules(f, s, rules...)} }
	t.Chains["leave"] = table.Chain{Type: knftables.NATType, Hook: knftables.PostroutingHook, Priority: "srcnat", Rules: expandRules(f, s, masqueradeRules(f, s)...)}
	chain(asNodeChain, asNodeRules(f, s, s.Settings.SNATFirst, s.Settings.SNATLast)...)
	first, last := outsidePorts(s)
	chain(asNodeOutside, asNodeRules(f, s, first, last)...)
	portShareChains(f, t, s)
	connectionShareChains(f, t, s, at.connections)
	resolveChains(f, t, s)
	chain("no-endpoint", "meta l4proto tcp reject with tcp reset", "reject with $icmp type $unreachable")
	chain("refused", "meta l4proto tcp reject with tcp reset", "reject with $icmp type port-unreachable")
	serviceChains(f, t, s)
	dsrFallbackChains(f, t, s, at)
	policySets(f, t, room)

	sets := map[string]table.Set{
		setWorkloads: {Key: "ifname", Size: room}, mapSenders: {Key: "$addr", Value: "verdict", Size: room}, setPods: {Key: "$addr", Size: room}, setOwn: {Key: "$addr", Size: room},
		setLocal: {Key: "$addr", Size: room}, setNodes: {Key: "$addr"}, mapNodes: {Key: "$addr", Value: "mark"}, mapLinks: {Key: "ether_addr", Value: "mark"},
		setPorted: {Key: "$addr"}, setBlocks: {Key: "$addr", Interval: true}, setRouted: {Key: "$addr", Interval: true},
		setKnown:     {Key: "$addr"},
		setPodRanges: {Key: "$addr", Interval: true}, setOutgoing: {Key: "$addr", Size: room}, setHairpin: {Key: "$addr . $addr", Size: room}, setKeepSource: {Key: "$addr"},
	}
	sets[mapPortals], sets[mapInside] = table.Set{Key: "$addr", Value: "verdict"}, table.Set{Key: "$addr", Value: "verdict"}
	sets[setDirect], sets[setOptOut] = table.Set{Key: "classid"}, table.Set{Key: "$addr", Interval: true}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		table.AddSet(f, t, name, sets[name])
	}
}

// minSetSize is the size of sets of what is on this node, up to half as many pods.
const minSetSize = 4096

// setSizeFor is the size of sets of what is on this node, at least as it was: the kernel finds an element of a set with a size faster. It is
// twice what they hold, because a transaction that replaces all has both. Where it changes the table is made anew, and what packets
// taught it is lost: so it is generous, and never less than it was.
func setSizeFor(f table.Family, s *nodestate.State, was uint64) uint64 {
	held, interfaces := 0, map[string]bool{} // setWorkloads has those of either family
	for a, v := range s.Addrs {
		if f.Has(a) { // also those of other nodes, and their pods outside of blocks: mapSenders has them
			held++
		}
		if v.Kind == nodestate.AddrEndpoint {
			interfaces[v.Interface] = true
		}
	}
	room := max(was, minSetSize)
	for room < uint64(2*max(held, len(interfaces))) {
		room *= 2
	}
	return room
}

// asNodeChain gives a flow the node's address, and a port of the range that is for that; an echo's identifier plays the port.
const asNodeChain = "as-node"

func asNodeRules(f table.Family, s *nodestate.State, first, last uint16) []string {
	if !f.Node(s).IsValid() {
		return nil
	}
	if last < first || first == 0 {
		return []string{"snat to $node"}
	}
	to := netip.AddrPortFrom(f.Node(s), first).String() + "-" + fmt.Sprint(last)
	return []string{"$ports snat to " + to, "$icmp type echo-request snat to " + to, "snat to $node"}
}

// masqueradeRules translate sources. A node without an address of the family translates none.
func masqueradeRules(f table.Family, s *nodestate.State) []string {
	if !f.Node(s).IsValid() {
		return nil
	}
	rules := []string{
		"ct status dnat $ip saddr . $ip daddr @" + setHairpin + " goto " + asNodeChain,
		"$ip saddr @" + setOutgoing + " $ip daddr != @" + setRouted + " $ip daddr != @" + setKeepSource + " goto " + asNodePod,
	}
	if s.Settings.KubeProxy {
		return rules // whose source a Service's flow has is said by who translated it
	}
	return append(rules,
		// A client outside whose backend is on another node, or outside of the cluster: the answers have to come by here.
		"ct status dnat iifname != $pods $ip saddr != @"+setOwn+" $ip daddr != @"+setLocal+" goto "+asNodeOutside)
}
