// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"iter"
	"maps"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/maptable"
	"github.com/weir-net/weir/internal/nodestate"
)

// sides are the places of what a host endpoint evaluates, by enum host_set of the programs.
func sides(h *nodestate.HostEndpoint) map[int]*nodestate.Isolation {
	return map[int]*nodestate.Isolation{
		abi.HostIngress: &h.HostIngress, abi.HostEgress: &h.HostEgress, abi.HostForwardIngress: &h.ForwardIngress, abi.HostForwardEgress: &h.ForwardEgress,
		abi.HostPreDNAT: &h.PreDNAT, abi.HostUntrackedIngress: &h.UntrackedIngress, abi.HostUntrackedEgress: &h.UntrackedEgress,
	}
}

// renderHosts are the entries of host endpoints; staged are what these would evaluate with the
// staged policies in force.
func renderHosts(hosts, staged map[nodestate.HostInterface]nodestate.HostEndpoint) iter.Seq2[abi.WeirHostKey, abi.WeirHostValue] {
	return func(yield func(abi.WeirHostKey, abi.WeirHostValue) bool) {
		for k, h := range hosts {
			key, value := abi.WeirHostKey{Ifindex: uint32(k.IfIndex), Family: 4}, abi.WeirHostValue{}
			if k.IPv6 {
				key.Family = 6
			}
			for i, iso := range sides(&h) {
				value.Sides[i].Set, value.Sides[i].Rule = uint64(iso.Set), uint32(iso.Rule)
			}
			if would, ok := staged[k]; ok {
				for i, iso := range sides(&would) {
					// Of what has no flow nothing is staged.
					if alone := i == abi.HostUntrackedIngress || i == abi.HostUntrackedEgress; !alone && (iso.Set != 0 || value.Sides[i].Set != 0) {
						value.Sides[i].Flags = abi.HostStaged
					}
				}
			}
			if !yield(key, value) {
				return
			}
		}
	}
}

// readHosts leaves out the names.
func readHosts(s *nodestate.State, t *Node) {
	for of, to := range map[*maptable.Table[abi.WeirHostKey, abi.WeirHostValue]]map[nodestate.HostInterface]nodestate.HostEndpoint{t.hosts: s.HostEndpoints, t.would: s.HostStaged} {
		for k, v := range of.Tracker.All() {
			var h nodestate.HostEndpoint
			for i, iso := range sides(&h) {
				*iso = nodestate.Isolation{Set: nodestate.SetID(v.Sides[i].Set), Rule: nodestate.RuleID(v.Sides[i].Rule)}
			}
			to[nodestate.HostInterface{IfIndex: int(k.Ifindex), IPv6: k.Family == 6}] = h
		}
	}
}

// hostKeys are the places for which there is or is to be an entry.
func (t *Node) hostKeys() []abi.WeirHostKey {
	all := map[abi.WeirHostKey]bool{}
	for k := range t.hosts.Tracker.All() {
		all[k] = true
	}
	for k := range t.hosts.Tracker.Writes() {
		all[k] = true
	}
	return slices.Collect(maps.Keys(all))
}

// hostWas and hostIs return what evaluates at an interface by what the map holds, and by what it
// should hold.
func (t *Node) hostWas(k abi.WeirHostKey) abi.WeirHostValue {
	return hostAt(k, t.hosts.Tracker.Actual)
}

func (t *Node) hostIs(k abi.WeirHostKey) abi.WeirHostValue {
	return hostAt(k, t.hosts.Tracker.Desired)
}

func hostAt(k abi.WeirHostKey, get func(abi.WeirHostKey) (abi.WeirHostValue, bool)) abi.WeirHostValue {
	v, ok := get(k)
	if !ok {
		v, _ = get(abi.WeirHostKey{Family: k.Family})
	}
	return v
}

// surveyHosts notes the sets of host endpoints, and what becomes of them.
func (t *Node) surveyHosts(s *survey) {
	for _, k := range t.hostKeys() {
		was, is := t.hostWas(k), t.hostIs(k)
		for i := range was.Sides {
			s.noteHost(was.Sides[i], is.Sides[i])
		}
	}
}

// hostSets adds the sets that host endpoints have in the map.
func (t *Node) hostSets(in map[uint64]bool) {
	for _, v := range t.hosts.Tracker.All() {
		for _, side := range v.Sides {
			in[side.Set] = true
		}
	}
}

// partHosts gives each interface that is to have an entry one that says what evaluates there now:
// from then on each is changed by itself. False: not all have one.
func (t *Node) partHosts() bool {
	fresh := map[abi.WeirHostKey]abi.WeirHostValue{}
	for k := range t.hosts.Tracker.Writes() {
		if _, ok := t.hosts.Tracker.Actual(k); !ok {
			fresh[k] = t.hostWas(k)
		}
	}
	made := true
	for k, v := range fresh {
		made = t.hosts.Interim(k, v) && made
	}
	return made
}

// interimHosts gives host endpoints the sets between. Without room for these they keep what they
// have: a node is never cut off from those who run it. False: not all have them.
func (t *Node) interimHosts(b *transition) bool {
	if b.deny != 0 {
		return true
	}
	made := true
	for _, k := range t.hostKeys() {
		v, is := t.hostWas(k), t.hostIs(k)
		for i := range v.Sides {
			set := b.interimSet(0, change{v.Sides[i].Set, is.Sides[i].Set})
			if set != v.Sides[i].Set {
				v.Sides[i] = abi.WeirHostSide{Set: set, Rule: is.Sides[i].Rule}
			}
		}
		made = t.hostReady(v) == nil && t.hosts.Interim(k, v) && made
	}
	return made
}

// writeHosts gives host endpoints the sets that they should have, and those that are to go what
// evaluates there after them. held says that one has not got it.
func (t *Node) writeHosts() (held bool) {
	t.hosts.Write(func(_ abi.WeirHostKey, v abi.WeirHostValue) error { return t.hostReady(v) })
	gone := map[abi.WeirHostKey]abi.WeirHostValue{}
	for k := range t.hosts.Tracker.Deletes() {
		gone[k] = t.hostIs(k)
	}
	for k, v := range gone {
		held = t.hostReady(v) != nil || !t.hosts.Interim(k, v) || held
	}
	return held || t.hosts.Tracker.PendingWrites() > 0
}

// EvaluatesUntracked reports whether an entry of the map asks for each packet to be evaluated by
// itself.
func (t *Node) EvaluatesUntracked() bool {
	for _, v := range t.hosts.Tracker.All() {
		if v.Sides[abi.HostUntrackedIngress].Set|v.Sides[abi.HostUntrackedEgress].Set != 0 {
			return true
		}
	}
	return false
}

// hostReady holds a host endpoint back while part of one of its sets could not be written.
func (t *Node) hostReady(v abi.WeirHostValue) error {
	for i := 0; i < len(v.Sides); i += 2 {
		if err := t.verdictsReady(v.Sides[i].Set, v.Sides[i+1].Set); err != nil {
			return err
		}
	}
	return nil
}
