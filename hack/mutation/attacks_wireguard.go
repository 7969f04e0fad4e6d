// SPDX-License-Identifier: Apache-2.0

package main

// attacksWireGuard are the guards of what is encrypted between nodes.
var attacksWireGuard = []mutant{
	{fault: fault{"a node's published key is deleted, so that others send in clear", "internal/model/wireguard.go",
		"ok && known.UID == n.UID {", "ok && known.UID == n.UID && n.UID == n.Name {"},
		pkg: "./internal/calc", run: "^TestHostileWireGuardDowngrade$"},
	{fault: fault{"a node publishes the key of another one", "internal/calc/route/wireguard.go", "if holders[p.Key].Name != p.Node {", "if holders[p.Key].Name == \"\" {"},
		pkg: "./internal/calc", run: "^TestHostileWireGuardKeyOfAnother$"},
	{fault: fault{"a node publishes the key of another one as its next", "internal/calc/route/wireguard.go", "next[p.Next] > 1 || holder != nil {", "next[p.Next] > 1 && holder != nil {"},
		pkg: "./internal/calc", run: "^TestHostileWireGuardNextKeyOfAnother$"},
	{fault: fault{"pools ask for IP in IP where nodes encrypt, so that packets pass by WireGuard", "internal/calc/route/ipip.go",
		"if !asksForIPIP(c, pool) || c.Settings.WireGuard.IPv4.Enabled {", "if !asksForIPIP(c, pool) {"},
		pkg: "./internal/calc", run: "^TestHostileWireGuardIPIP$"},
	{fault: fault{"a node bears the address of another one, to get what nodes send there", "internal/calc/route/wireguard.go",
		"ok && olderNode(c.Nodes[have.Node], n) {", "ok && olderNode(n, c.Nodes[have.Node]) {"},
		pkg: "./internal/calc", run: "^TestHostileWireGuardHosts$"},
	{fault: fault{"a node bears an address of a machine outside, and has what is sent there follow it elsewhere", "internal/wireguard/guard.go",
		"%[3]s saddr != @%[3]s-nodes counter drop", "%[3]s saddr != @%[3]s-nodes counter accept"},
		pkg: "./internal/wireguard", run: "^TestHostileGuardTakesOuterPacketsOfNodesAlone$"},
}
