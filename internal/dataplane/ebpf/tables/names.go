// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/maptable"
	"github.com/weir-net/weir/internal/nodestate"
)

// nameTables are the maps of policy by domain name that a state is written to, of both families.
// What pods were told (weir_names) only programs write.
type nameTables struct {
	patterns *maptable.Table[abi.WeirNameKey, abi.WeirNameMatch]
	sets     *maptable.Table[abi.WeirNameSetKey, uint64]
	pods     *maptable.Table[uint32, abi.WeirNamePod]
	servers  *maptable.Table[abi.WeirNameAddr, uint8]
}

func newNames(m map[string]*ebpf.Map, c *counts) *nameTables {
	return &nameTables{
		patterns: maptable.New[abi.WeirNameKey, abi.WeirNameMatch]("weir_name_patterns", m["weir_name_patterns"], describePattern, &c.quiet),
		sets: maptable.New[abi.WeirNameSetKey, uint64]("weir_name_sets", m["weir_name_sets"], func(k abi.WeirNameSetKey) string {
			return fmt.Sprintf("set %016x name %016x", k.Set, k.Pattern)
		}, &c.reevaluated),
		pods:    maptable.New[uint32, abi.WeirNamePod]("weir_name_pods", m["weir_name_pods"], func(i uint32) string { return fmt.Sprint("interface ", i) }, &c.reevaluated),
		servers: maptable.New[abi.WeirNameAddr, uint8]("weir_name_servers", m["weir_name_servers"], func(a abi.WeirNameAddr) string { return abi.Unwiden(a.Addr).String() }, &c.quiet),
	}
}

func (t *nameTables) load() error {
	return errors.Join(t.patterns.Load(), t.sets.Load(), t.pods.Load(), t.servers.Load())
}

func (t *nameTables) desire(s *nodestate.State, changed nodestate.Keys, ifindex func(nodestate.Addr) int) {
	if changed.Has(nodestate.TableNames) {
		t.patterns.Desire(renderPatterns(&s.Names))
		t.sets.Desire(renderNameSets(&s.Names))
		t.servers.Desire(renderServers(&s.Names))
	}
	if changed.Has(nodestate.TableNames) || changed.Has(nodestate.TableAddrs) || changed.Has(nodestate.TableStaged) {
		t.pods.Desire(maps.All(renderNamePods(s, ifindex)))
	}
}

// write leads names to sets whose verdicts are all there.
func (t *nameTables) write(policy *maptable.Table[abi.WeirPolicyKey, abi.WeirPolicyValue]) {
	failed := map[uint64]error{}
	for k, err := range policy.Tracker.Failures() {
		failed[k.Set] = err
	}
	t.sets.Write(func(_ abi.WeirNameSetKey, set uint64) error {
		if err := failed[set]; err != nil {
			return errors.Join(errors.New("waits for its policy"), err)
		}
		return nil
	})
	t.patterns.Write(nil)
	t.servers.Write(nil)
	t.pods.Write(nil)
}

func (t *nameTables) remove() {
	t.pods.Remove(nil)
	t.servers.Remove(nil)
	t.patterns.Remove(nil)
	t.sets.Remove(nil)
}

func (t *nameTables) pending() bool { return t.sets.Pending() || t.pods.Pending() }

func (t *nameTables) errors() []error {
	return slices.Concat(t.patterns.Errors(), t.sets.Errors(), t.pods.Errors(), t.servers.Errors())
}

// survey notes the sets that names lead to as those of the endpoints whose sets have the names: so
// they get what classes and sets of a transition say, too.
func (t *nameTables) survey(s *survey) {
	note := func(in map[uint64]bool, of, set uint64) {
		if in[of] {
			in[set], s.rules[set] = true, s.rules[of]
			s.users[set] |= 1 << dirEgress
		}
	}
	for k, set := range t.sets.Tracker.All() {
		note(s.old, k.Set, set)
		if is, stays := t.sets.Tracker.Desired(k); stays {
			note(s.new, k.Set, is)
		}
	}
	for k, set := range t.sets.Tracker.Writes() {
		note(s.new, k.Set, set)
	}
}

func (t *nameTables) setsInUse(in map[uint64]bool) {
	for k, set := range t.sets.Tracker.All() {
		if in[k.Set] {
			in[set] = true
		}
	}
}

// read adds what the maps hold to a state.
func (t *nameTables) read(s *nodestate.State) {
	readPatterns(t.patterns.Tracker.All(), s.Names.Patterns)
	for k, set := range t.sets.Tracker.All() {
		s.Names.Sets[nodestate.NameKey{Set: nodestate.SetID(k.Set), Name: nodestate.NameID(k.Pattern)}] = nodestate.SetID(set)
	}
	for a := range t.servers.Tracker.All() {
		s.Names.Servers = append(s.Names.Servers, abi.Unwiden(a.Addr))
	}
	slices.SortFunc(s.Names.Servers, netip.Addr.Compare)
	for _, v := range t.pods.Tracker.All() {
		s.Names.ExtraTTL = v.Extra
	}
}

func renderNameSets(n *nodestate.Names) iter.Seq2[abi.WeirNameSetKey, uint64] {
	return func(yield func(abi.WeirNameSetKey, uint64) bool) {
		for k, set := range n.Sets {
			if !yield(abi.WeirNameSetKey{Set: uint64(k.Set), Pattern: uint64(k.Name)}, uint64(set)) {
				return
			}
		}
	}
}

func renderServers(n *nodestate.Names) iter.Seq2[abi.WeirNameAddr, uint8] {
	return func(yield func(abi.WeirNameAddr, uint8) bool) {
		for _, a := range n.Servers {
			if !yield(abi.WeirNameAddr{Addr: abi.Widen(a)}, 1) {
				return
			}
		}
	}
}

// renderNamePods returns the pods whose answers are read, by interface.
func renderNamePods(s *nodestate.State, ifindex func(nodestate.Addr) int) map[uint32]abi.WeirNamePod {
	out := map[uint32]abi.WeirNamePod{}
	if len(s.Names.Sets) == 0 {
		return out
	}
	named := s.Names.SetsWithNames()
	ofNames := func(set nodestate.SetID) uint64 {
		if !named[set] {
			return 0
		}
		return uint64(set)
	}
	for addr, a := range s.Addrs {
		set, staged := ofNames(a.Egress.Set), ofNames(s.Staged[addr].Egress.Set)
		if a.Kind != nodestate.AddrEndpoint || set|staged == 0 {
			continue
		}
		index := uint32(ifindex(a))
		if index == 0 {
			continue
		}
		v := out[index]
		v.Extra = s.Names.ExtraTTL
		six := 0
		if addr.Is6() {
			six = 1
		}
		v.Sets[six], v.Staged[six] = set, staged
		out[index] = v
	}
	return out
}
