// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"net/netip"
)

const (
	// snatTries is how many ports are looked at for a free one.
	snatTries = 32
	// snatGroups is how many groups of windows the range of ports is cut into, and how many windows
	// each has.
	snatGroups = 11
	// snatLeast is the least size of a window: below it the range is not divided.
	snatLeast = 16
	// snatOutside is how many groups, the first, those outside have.
	snatOutside = 5
)

// portsFor are the ports that are looked at for a flow, in their order: of a pod those of its
// windows, of those outside those of the first groups, of others (no pod) those of the range.
func (n *Node) portsFor(first, last uint16, pod netip.Addr, outside bool) []uint16 {
	total := int(last) - int(first) + 1
	if outside && total >= snatGroups*snatGroups*snatLeast {
		total = total / (snatGroups * snatGroups) * snatGroups * snatOutside
	}
	at, size := n.opts.Port(first, total), total
	var windows []int
	if pod.IsValid() && total >= snatGroups*snatGroups*snatLeast {
		size = total / (snatGroups * snatGroups)
		windows = windowsOf(pod)
	}
	begin := 0 // the window of the first try
	for i, w := range windows {
		if w == at/size {
			begin = i
		}
	}
	step := max(size/snatTries, 1)
	out := make([]uint16, 0, snatTries)
	for i := range snatTries {
		window, round := 0, i
		if windows != nil {
			window, round = windows[(begin+i)%len(windows)], i/len(windows)
		}
		out = append(out, first+uint16(window*size+(at%size+round*step)%size))
	}
	return out
}

// windowsOf are the windows of a pod: one of each group, the values of the polynomial that its
// address names.
func windowsOf(pod netip.Addr) []int {
	b := pod.AsSlice()
	last := binary.BigEndian.Uint32(b[len(b)-4:])
	others := last >> 10
	for at := 0; at < len(b)-4; at += 4 {
		others ^= binary.BigEndian.Uint32(b[at:])
	}
	number := int((last ^ others*0x9e3779b1>>22) % 1024)
	var out []int
	for x := range snatGroups {
		value := (number + number/snatGroups%snatGroups*x + number/(snatGroups*snatGroups)*x*x) % snatGroups
		out = append(out, x*snatGroups+value)
	}
	return out
}

// all is the key of everybody in Node.shares.
func all(of netip.Addr) netip.Addr {
	if of.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// countEstablished counts the entries of a flow that is established now: f, of the direction of k,
// and other, which may be nil.
func (n *Node) countEstablished(f *flow, k flowKey, other *flow) {
	entries, pod := 1, netip.Addr{}
	if other != nil {
		entries = 2
	}
	switch {
	case f.granted || other != nil && other.granted: // no pod's alone
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
