// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// Sources that live on other nodes are checked before connection tracking, with each packet:
// docs/design/datapath.md ("Sources") says what is right. The look-up in `senders`, which every
// packet pays anyway, finds the addresses of nodes and of pods outside of their nodes' blocks; all
// other pods' are known by the prefixes of pools, and looked up by their blocks.
const (
	blockSource  = "block-source"          // an address of a pool
	blockTunnel  = "block-from-tunnel"     // the same, from the tunnel
	frontSource  = "front-source"          // an address of a pool that no node has, from a node
	podSource    = "pod-source"            // a pod outside of its node's blocks
	podTunnel    = "pod-from-tunnel"       // the same, from the tunnel
	nodeSource   = "node-source"           // the primary address of a node on the link, whose MAC address is known
	nodeToOwn    = "node-to-own"           // the same from another machine, to an address of this node
	nodeAny      = "node-source-any"       // any other address of a node
	nodeInTunnel = "node-source-in-tunnel" // the primary address of a node that is reached through the tunnel
	nodeTunnel   = "node-from-tunnel"      // a node's address, from the tunnel
	nodeRequest  = "node-request"          // the same from another node, which hands it on if it is for a Service
	nodeLinked   = "node-request-linked"
	nodeProven   = "node-request-proven"
	nodeOther    = "node-to-own-other"   // the same from another node
	nodeService  = "node-to-own-service" // which may hand on what is for a Service
	ownService   = "own-service"
	ownAsked     = "own-asked"    // from nobody who is known, to an address of this node: for no Service it is the node's own processes' matter
	sourceProven = "proven"       // the source is right
	handedChain  = "handed-by"    // what is for a node port of another node comes from that one
	handedOpen   = "handed-still" // the same of an open flow
	sourceForged = "forged"

	setNodeLinks     = "node-links" // nodes' addresses with the MAC address that they come from
	setNodeAddrMarks = "node-homes" // nodes' addresses with the node's mark
	setNodesFar      = "nodes-far"  // addresses of nodes behind a router
	setNodesBare     = "nodes-bare" // addresses of nodes on the link that publish no MAC address
	setSameNode      = "same-node"  // each node's mark, twice
	setLinked        = "-links"     // with `block` or `pod` before it: bases of blocks, or addresses, with the MAC address of their node
	setRoutable      = "-routed"    // those that come by an uplink, from whichever MAC address
	setTunnelled     = "-tunnelled" // those that come by the tunnel alone
	setWithMark      = "-homes"     // with their node's mark
	ofPodBlocks      = "block"
	ofSinglePods     = "pod"
)

// unprovenAnswer drops, where connection tracking has looked, what nodeToOwn let pass for the
// node's own processes: with the mark of no node, for a flow of a pod that has the node's address.
const unprovenAnswer = "meta mark and $mask == $mask ct status snat ct direction reply drop"

// maxPools bounds how many rules match pools' addresses; of more a set does.
const maxPools = 8

// maskText is the netmask of a length, as an address.
func maskText(f table.Family, bits int) string {
	all := slices.Repeat([]byte{0xff}, f.Zero().BitLen()/8)
	a, _ := netip.AddrFromSlice(all)
	return netip.PrefixFrom(a, bits).Masked().Addr().String()
}

// blockLengths are those of blocks on other nodes, the longest first.
func blockLengths(f table.Family, s *nodestate.State) []int {
	var out []int
	for p, r := range s.Routes {
		if f.Has(p.Addr()) && r.Node.IsValid() && !slices.Contains(out, p.Bits()) {
			out = append(out, p.Bits())
		}
	}
	slices.SortFunc(out, func(a, b int) int { return b - a })
	return out
}

// fromPools are the rules that lead addresses of pools to their chain.
func fromPools(f table.Family, s *nodestate.State) []string {
	var pools table.Prefixes
	for p := range s.Routes {
		if f.Has(p.Addr()) {
			pools.Add(p)
		}
	}
	pools = pools.Disjoint()
	if len(pools) > maxPools {
		return []string{"$ip saddr @" + expr.SetPodRanges + " goto " + blockSource}
	}
	var out []string
	for _, p := range pools {
		out = append(out, "$ip saddr "+table.PrefixText(p)+" goto "+blockSource)
	}
	return out
}

// remoteChains are those of sources that live on other nodes. any are the rules for what may come
// from anywhere.
func remoteChains(f table.Family, t *table.Table, s *nodestate.State, at Indexes, any []string) {
	chain := func(name string, rules ...string) { t.Chains[name] = table.Chain{Rules: expr.Expand(f, s, rules...)} }
	const front = "$ip daddr . meta l4proto . th dport"
	const atPort = "meta l4proto . th dport"
	// Pods cannot take another's address, whatever MAC address they send with.
	local := []string{"iifname $pods goto " + workloadChain}
	if p := expr.PodInterfaces(s); p != "" && expr.FromPods(s) != p {
		local = append(local, "iifname "+p+" drop")
	}
	local = append(local, `iifname "lo" return`)
	plain := func(key, kind string) []string {
		return []string{
			key + " . ether saddr @" + kind + setLinked + " goto " + sourceProven,
			key + " @" + kind + setRoutable + " goto " + sourceProven,
			key + " @" + kind + setTunnelled + " $ip daddr @" + expr.SetOwn + " goto " + ownAsked}
	}
	const sender = " . meta mark and $mask @"
	blocks := []string{"iifname $tunnel goto " + blockTunnel}
	pods := []string{"iifname $tunnel goto " + podTunnel}
	blocks, pods = append(blocks, local...), append(pods, local...)
	var tunnel []string
	for _, bits := range blockLengths(f, s) {
		key := "$ip saddr and " + maskText(f, bits)
		blocks = append(blocks, plain(key, ofPodBlocks)...)
		tunnel = append(tunnel, key+sender+ofPodBlocks+setWithMark+" goto "+sourceProven)
	}
	chain(blockSource, append(blocks, "meta mark set ether saddr map @"+expr.MapLinks+" goto "+frontSource, "drop")...)
	chain(blockTunnel, append(tunnel, "goto "+frontSource)...)
	// A load balancer's address may be of a pool: a node that was handed something on answers with
	// it.
	chain(frontSource,
		"iifname != $tunnel meta mark set meta mark and $rest",
		"meta priority set $ip saddr . meta l4proto . th sport map @"+services.MapServicesOutside+" goto "+nodeProven,
		"drop")
	chain(podSource, append(append(pods, plain("$ip saddr", ofSinglePods)...), "drop")...)
	chain(podTunnel, "$ip saddr"+sender+ofSinglePods+setWithMark+" goto "+sourceProven, "drop")

	nodes := []string{}
	if at.uplink > 0 {
		nodes = append(nodes, fmt.Sprintf("iif %d $ip saddr . ether saddr @%s goto %s", at.uplink, setNodeLinks, sourceProven))
	}
	nodes = append(append(nodes, "iifname $tunnel goto "+nodeTunnel), local...)
	chain(nodeSource, append(nodes,
		"$ip saddr . ether saddr @"+setNodeLinks+" goto "+sourceProven,
		"udp dport $vxlan goto "+sourceProven, // the chain of the tunnel evaluates it
		"$ip daddr @"+expr.SetOwn+" goto "+nodeToOwn,
		"meta mark set ether saddr map @"+expr.MapLinks+" goto "+nodeLinked,
		"drop")...)
	service := func(to string) []string {
		return []string{
			"meta priority set " + front + " map @" + services.MapServicesOutside + " goto " + to,
			"meta priority set " + atPort + " map @" + services.MapHostPorts + " goto " + to,
			"$ip daddr @" + expr.SetPorted + " meta priority set " + atPort + " map @" + services.MapPortsOutside + " goto " + to}
	}
	chain(nodeToOwn,
		"meta mark set ether saddr map @"+expr.MapLinks+" goto "+nodeOther,
		"$ports jump "+ownService,
		"meta mark set meta mark or $mask goto "+sourceProven)
	chain(nodeOther,
		"meta mark set meta mark and $rest",
		"$ports jump "+nodeService,
		"meta mark set meta mark or $mask goto "+sourceProven)
	chain(ownService, service(sourceForged)...)
	chain(nodeService, service(nodeProven)...)
	chain(nodeLinked, "meta mark set meta mark and $rest", "goto "+nodeRequest)
	if reachesNodesByTunnel(f, s) {
		chain(nodeInTunnel, slices.Concat([]string{"iifname $tunnel goto " + nodeTunnel}, local, []string{
			"udp dport $vxlan goto " + sourceProven,
			"$ip daddr @" + expr.SetOwn + " goto " + nodeToOwn, // by a failsafe port, or WireGuard's
			"drop"})...)
	}
	chain(nodeAny, "iifname $tunnel goto "+nodeTunnel, "goto "+sourceProven)
	chain(nodeTunnel, "$ip saddr"+sender+setNodeAddrMarks+" goto "+sourceProven, "goto "+nodeRequest)
	chain(nodeRequest,
		"meta priority set "+front+" map @"+services.MapServicesOutside+" goto "+nodeProven,
		"meta priority set "+atPort+" map @"+services.MapPorts+" goto "+nodeProven,
		"drop")
	chain(nodeProven, "meta priority set none", "goto "+sourceProven)
	chain(ownAsked, "$ports jump "+ownService, "goto "+sourceProven)
	chain(sourceForged, "drop")
	chain(sourceProven, slices.Concat(reversePathRules(f, s), ipipRules(f, s), []string{"meta l4proto != udp accept", "udp dport != $vxlan accept"}, any)...)
	handedChains(f, chain)
	remoteSets(f, t)
}

// handedChains are about node ports of other nodes: what is for one was handed on by that node.
func handedChains(f table.Family, chain func(name string, rules ...string)) {
	own := fmt.Sprintf("meta priority set meta priority and %#x or %#x ", ^uint32(services.LocalList|services.HandList), services.LocalList)
	known := "meta mark set $ip daddr map @" + expr.MapNodes + " " + own + "goto choose"
	chain(handedChain,
		"iifname $tunnel $ip daddr . meta mark and $mask @"+setNodeAddrMarks+" "+known,
		"iifname != $tunnel $ip daddr . ether saddr @"+setNodeLinks+" "+known,
		"iifname != $tunnel $ip daddr @"+setNodesBare+" "+known,
		"drop")
	chain(handedOpen,
		"iifname $tunnel ct original $ip daddr . meta mark and $mask @"+setNodeAddrMarks+" return",
		"iifname != $tunnel ct original $ip daddr . ether saddr @"+setNodeLinks+" return",
		"iifname != $tunnel ct original $ip daddr @"+setNodesBare+" return",
		"drop")
}

// handedBack drops answers to what this node handed on that do not come from the node that it was
// handed on to.
func handedBack() []string {
	return []string{
		"ct mark and $handed != 0 meta mark and $mask == 0 meta mark set ether saddr map @" + expr.MapLinks,
		"ct mark and $handed != 0 meta mark and $mask . ct mark and $mask != @" + setSameNode + " drop"}
}

func remoteSets(f table.Family, t *table.Table) {
	table.AddSet(f, t, setNodeLinks, table.Set{Key: "$addr . ether_addr"})
	table.AddSet(f, t, setNodeAddrMarks, table.Set{Key: "$addr . mark"})
	table.AddSet(f, t, setNodesFar, table.Set{Key: "$addr"})
	table.AddSet(f, t, setNodesBare, table.Set{Key: "$addr"})
	table.AddSet(f, t, setSameNode, table.Set{Key: "mark . mark"})
	for _, kind := range []string{ofPodBlocks, ofSinglePods} {
		table.AddSet(f, t, kind+setLinked, table.Set{Key: "$addr . ether_addr"})
		table.AddSet(f, t, kind+setRoutable, table.Set{Key: "$addr"})
		table.AddSet(f, t, kind+setTunnelled, table.Set{Key: "$addr"})
		table.AddSet(f, t, kind+setWithMark, table.Set{Key: "$addr . mark"})
	}
}

// addNode adds the elements of an address of another node, whose number is num. through: some nodes
// are reached through the tunnel.
func addNode(f table.Family, t *table.Table, a netip.Addr, v nodestate.Addr, num int, numbered, through bool) {
	chain := nodeAny
	switch {
	case !v.SameLink:
		t.Add(setNodesFar, a.String(), "")
		if v.Tunnel && through {
			chain = nodeInTunnel
		}
	case v.MAC == [6]byte{}:
		t.Add(setNodesBare, a.String(), "")
	default:
		t.Add(setNodeLinks, table.Key(a, table.MACText(v.MAC)), "")
		if a == v.Node { // other addresses may be on other interfaces
			chain = nodeSource
		}
	}
	t.Add(expr.MapSenders, a.String(), "goto "+chain)
	if numbered {
		mark := strconv.Itoa(num << marks.NodeShift)
		t.Add(setNodeAddrMarks, table.Key(a, mark), "")
		if a == v.Node {
			t.Add(setSameNode, table.Key(mark, mark), "")
		}
	}
}

// reachesNodesByTunnel reports whether some node itself is reached through the tunnel.
func reachesNodesByTunnel(f table.Family, s *nodestate.State) bool {
	for p := range s.Settings.NodeRoutes {
		if f.Has(p.Addr()) {
			return true
		}
	}
	return false
}

// addRemote adds the elements of a block, or of a pod outside of its node's blocks.
func addRemote(f table.Family, t *table.Table, s *nodestate.State, n *marks.Numbers, kind string, base, node netip.Addr, sameLink, tunnel bool) {
	at := s.Addrs[node]
	switch {
	case sameLink && at.Kind == nodestate.AddrNode && at.MAC != [6]byte{}:
		t.Add(kind+setLinked, table.Key(base, table.MACText(at.MAC)), "")
	case sameLink || !tunnel:
		t.Add(kind+setRoutable, base.String(), "")
	default:
		t.Add(kind+setTunnelled, base.String(), "")
	}
	if num, ok := n.Of(node); ok {
		t.Add(kind+setWithMark, table.Key(base, strconv.Itoa(num<<marks.NodeShift)), "")
	}
}

// renderRemote makes the elements of blocks on other nodes.
func renderRemote(f table.Family, t *table.Table, s *nodestate.State, n *marks.Numbers) {
	for p, r := range s.Routes {
		if f.Has(p.Addr()) && r.Node.IsValid() {
			addRemote(f, t, s, n, ofPodBlocks, p.Masked().Addr(), r.Node, r.SameLink, r.Tunnel)
		}
	}
}
