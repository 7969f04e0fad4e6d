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
}
