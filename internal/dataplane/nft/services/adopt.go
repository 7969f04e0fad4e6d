// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nodestate"
)

// What an earlier run wrote is gone on with: numbers are in open flows, and slots are not moved for
// nothing.

// Adopt takes the numbers of lists and the slots of backends that are in the kernel.
func (v *Follower) Adopt(w *table.State, s *nodestate.State) {
	slots := map[uint32]map[int]netip.AddrPort{}
	note := func(list string, slot string, b netip.AddrPort, ok bool) {
		n, okList := parseList(list)
		i, err := strconv.Atoi(slot)
		if !ok || !okList || err != nil {
			return
		}
		if slots[n] == nil {
			slots[n] = map[int]netip.AddrPort{}
		}
		slots[n][i] = b
	}
	for k, value := range w.Tracker(MapBackends).All() {
		list, slot, _ := strings.Cut(k, " . ")
		b, ok := parseBackend(value)
		note(list, slot, b, ok)
	}
	for k, value := range w.Tracker(MapSlots).All() {
		list, slot, _ := strings.Cut(k, " . ")
		live, _ := w.Tracker(MapLive).Actual(list + " . " + value)
		b, ok := parseBackend(live)
		note(list, slot, b, ok)
	}
	homes := adoptRemote(w)
	for f, svc := range s.Frontends.All() {
		if !v.renders(f) || v.ports[svc.ID] != nil {
			continue
		}
		at, k := []string{MapServices, MapServicesOutside}, table.Key(f.Addr, f.Proto, f.Port) // the latter alone alongside a kube-proxy
		switch {
		case f.Addr.IsLoopback():
			at = []string{MapLoopback}
		case f.Addr.IsUnspecified():
			at, k = []string{MapPorts, MapPortsOutside}, table.Key(f.Proto, f.Port)
			if svc.LocalOnly {
				at = []string{MapHostPorts}
			}
		}
		text, ok := "", false
		for _, name := range at {
			if text, ok = w.Tracker(name).Actual(k); ok {
				break
			}
		}
		if !ok {
			continue
		}
		n, ok := parseList(text)
		n &^= listBits
		if _, taken := v.taken[n]; !ok || taken || n == 0 {
			continue
		}
		v.taken[n] = svc.ID
		p := &port{number: n, faces: map[nodestate.Frontend]nodestate.Service{}, cluster: inOrder(slots[n]), local: inOrder(slots[n|LocalList]), live: map[netip.AddrPort]bool{}}
		for _, b := range slices.Concat(p.cluster, p.local) {
			p.live[b] = true
		}
		p.remote = homes[n]
		v.ports[svc.ID] = p
	}
}

// adoptRemote returns on which nodes backends were that flows were handed on to, by the number of
// their port.
func adoptRemote(w *table.State) map[uint32]map[netip.AddrPort]int {
	out := map[uint32]map[netip.AddrPort]int{}
	for k, value := range w.Tracker(MapRemote).All() {
		list, _, _ := strings.Cut(k, " . ")
		n, ok := parseList(list)
		mark, err := strconv.ParseUint(value, 10, 32)
		if !ok || err != nil || mark&marks.NodeMask == 0 {
			continue
		}
		text, ok := w.Tracker(MapBackends).Actual(k)
		if !ok {
			text, _ = w.Tracker(MapLive).Actual(k)
		}
		b, ok := parseBackend(text)
		if !ok {
			continue
		}
		if n &^= listBits; out[n] == nil {
			out[n] = map[netip.AddrPort]int{}
		}
		out[n][b] = int(mark&marks.NodeMask) >> marks.NodeShift
	}
	return out
}

// inOrder returns slots from 0 on without a gap.
func inOrder(slots map[int]netip.AddrPort) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range len(slots) {
		b, ok := slots[i]
		if !ok || slices.Contains(out, b) && len(out) < 1000 {
			break
		}
		out = append(out, b)
	}
	return out
}

// parseList reads what listText writes.
func parseList(text string) (uint32, bool) {
	major, minor, ok := strings.Cut(text, ":")
	a, err := strconv.ParseUint(major, 16, 16)
	b, err2 := strconv.ParseUint(minor, 16, 16)
	return uint32(a<<16 | b), ok && err == nil && err2 == nil
}

func parseBackend(text string) (netip.AddrPort, bool) {
	addr, port, ok := strings.Cut(text, " . ")
	a, err := netip.ParseAddr(addr)
	p, err2 := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(a, uint16(p)), ok && err == nil && err2 == nil
}
