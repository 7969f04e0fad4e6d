// SPDX-License-Identifier: Apache-2.0

package nft

import "github.com/weir-net/weir/internal/nodestate"

// ipipNotInForce is what a node says whose pools ask for IP in IP.
const ipipNotInForce = "ipipMode of a pool is not in force on this node, which has nftables: it sends VXLAN in its place, and does not take IP in IP of nodes with eBPF; set vxlanMode, or give all nodes eBPF"

// withoutIPIP is a state in which VXLAN has the place of IP in IP, and whether it was there.
func withoutIPIP(s *nodestate.State) (*nodestate.State, bool) {
	if !s.Settings.IPIP.Accept {
		return s, false
	}
	out := *s
	out.Settings.IPIP = nodestate.IPIP{}
	out.Routes, out.Addrs = withoutFlag(s.Routes, func(r *nodestate.Route) *bool { return &r.IPIP }), withoutFlag(s.Addrs, func(a *nodestate.Addr) *bool { return &a.IPIP })
	return &out, true
}

// withoutFlag is a table in which no entry has a flag: the same one where none had it.
func withoutFlag[K comparable, V any](have map[K]V, flag func(*V) *bool) map[K]V {
	out := make(map[K]V, len(have))
	changed := false
	for k, v := range have {
		changed = changed || *flag(&v)
		*flag(&v) = false
		out[k] = v
	}
	if !changed {
		return have
	}
	return out
}
