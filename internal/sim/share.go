// SPDX-License-Identifier: Apache-2.0

package sim

import "net/netip"

// all stands in Node.shares for everybody.
func all(of netip.Addr) netip.Addr {
	if of.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// take counts the entries of a flow that is established now: f, of the direction of k, and other,
// which may be nil.
func (n *Node) take(f *flow, k flowKey, other *flow) {
	entries, pod := 1, netip.Addr{}
	if other != nil {
		entries = 2
	}
	switch {
	case !f.reply && f.iif != 0:
		pod = k.src
	case f.reply && other != nil && other.iif != 0:
		pod = f.dst
	}
	if pod.IsValid() {
		n.shares[pod] += entries
	}
	n.shares[all(k.src)] += entries
}

// spent reports whether a pod has an eighth of the table, of which no more than a sixteenth is
// free. Nothing counts the entries that end: the oracle has no sweep.
func (n *Node) spent(pod netip.Addr) bool {
	room := n.state.Settings.MaxFlows
	return n.shares[pod] > room/8 && n.shares[all(pod)] > room-room/16
}
