// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
	"github.com/weir-net/weir/internal/dataplane/ebpf/maptable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/dataplane/ebpf/services"
	"github.com/weir-net/weir/internal/nodestate"
)

// Node are all maps that a state is written to, without anything that is attached: those that
// both families share, and those of each.
type Node struct {
	policy       *maptable.Table[abi.WeirPolicyKey, abi.WeirPolicyValue]
	hosts        *maptable.Table[abi.WeirHostKey, abi.WeirHostValue]
	would        *maptable.Table[abi.WeirHostKey, abi.WeirHostValue] // of host endpoints, with the staged policies in force
	ports        *services.Ports
	names        *nameTables
	families     []Family
	counts       *counts
	temps        map[abi.WeirPolicyKey]struct{} // of transition that are not crossed yet
	interims     map[uint64]interim             // what their classes and sets stand between
	held         bool                           // what was is still needed: the last change is not crossed
	policies     uint64                         // counts what verdicts should be, as it changes
	inPlace      map[setClass]bool              // what must not be written in any order
	inPlaceErr   error                          // why it is not
	graceDue     bool                           // programs may have read something that was written since
	inPlaceCount InPlaceChanges

	policyFresh bool // policy was read from the map and not compared with a state yet
	seenPolicy  nodestate.Map[nodestate.PolicyKey, nodestate.PolicyValue]
}

// counts are of writes.
type counts struct {
	reevaluated uint64 // that may change what becomes of an existing flow
	quiet       uint64 // others
	epochs      uint64 // of the epoch alone
	ended       uint64 // not writes: UDP sockets of host processes, whose backends went
}

// New returns the tables of the loaded families; those that are shared are the first one's.
func New(families ...*object.Collection) *Node {
	shared := families[0].Maps
	t := &Node{counts: &counts{}}
	t.policy = maptable.New[abi.WeirPolicyKey, abi.WeirPolicyValue]("weir_policy", shared["weir_policy"], abi.ShowPolicy, &t.counts.reevaluated)
	t.hosts = maptable.New[abi.WeirHostKey, abi.WeirHostValue]("weir_hosts", shared["weir_hosts"], abi.ShowHost, &t.counts.reevaluated)
	t.would = maptable.New[abi.WeirHostKey, abi.WeirHostValue]("weir_hosts_staged", shared["weir_hosts_staged"], abi.ShowHost, &t.counts.quiet)
	t.ports = services.NewPorts(shared["weir_ports"], &t.counts.quiet)
	t.names = newNames(shared, t.counts)
	for _, l := range families {
		t.Add(t.FamilyOf(l))
	}
	return t
}

// Add adds the tables of a family that the node carries now.
func (t *Node) Add(f Family) { t.families = append(t.families, f) }

// RemoveIPv6 forgets the tables of IPv6.
func (t *Node) RemoveIPv6() { t.families = t.families[:1] }

// FamilyOf returns the tables of a family, which count their writes with these. Of them nothing is
// known before their Load.
func (t *Node) FamilyOf(l *object.Collection) Family {
	if l.Family == bpffs.IPv6 {
		return newFamily[abi.Ip6](l.Maps, t.counts)
	}
	return newFamily[abi.Ip4](l.Maps, t.counts)
}

func (t *Node) each(do func(Family)) {
	for _, f := range t.families {
		do(f)
	}
}

// all does something with every family, and reports whether it succeeded with all.
func (t *Node) all(do func(Family) bool) bool {
	ok := true
	t.each(func(f Family) { ok = do(f) && ok })
	return ok
}

// Load reads what the maps hold. The errors are the kernel's.
func (t *Node) Load() error {
	t.policyFresh = true
	errs := []error{t.policy.Load(), t.hosts.Load(), t.would.Load(), t.ports.Load(), t.names.load()}
	t.each(func(f Family) { errs = append(errs, f.Load()) })
	return errors.Join(errs...)
}

// Begins reports whether programs of an earlier run begin flows.
func (t *Node) Begins() bool { return slices.ContainsFunc(t.families, Family.begins) }

// Desire sets what the maps should hold, for the tables that may have changed. ifindex returns the
// interface of an endpoint, 0 = it is not there.
func (t *Node) Desire(s *nodestate.State, changed nodestate.Keys, ifindex func(nodestate.Addr) int) {
	if changed.Has(nodestate.TablePolicy) {
		t.desirePolicy(s)
	}
	if changed.Has(nodestate.TablePolicy) || changed.Has(nodestate.TableStaged) {
		t.hosts.Desire(renderHosts(s.HostEndpoints, s.HostStaged))
		t.would.Desire(renderHosts(s.HostStaged, nil))
	}
	if changed.Has(nodestate.TableServices) || changed.Has(nodestate.TableAddrs) {
		t.ports.Desire(s, changed.Has(nodestate.TableAddrs))
	}
	t.names.desire(s, changed, ifindex)
	t.each(func(f Family) { f.desire(s, changed, ifindex) })
}

// Write makes all pending writes, in an order in which no packet is allowed that both the state
// before and the state after deny: verdicts before the classes that lead to them, both before the
// endpoints that are isolated by them, and where that is not enough, by a transition. Entries by
// port come before the heads that point to them. First of all the settings note that a change is
// under way; NextEpoch or Settle takes that back. An agent that finds the note when it starts does
// what the one before it did not come to: it moves the epoch on.
func (t *Node) Write(s *nodestate.State, m Machine) {
	pending := t.policy.Pending() || t.hosts.Pending() || t.names.pending()
	t.each(func(f Family) { pending = f.pending() || pending })
	t.each(func(f Family) { f.writeSettings(s, m, true, pending) })
	t.each(Family.removeEndpoints)
	b := t.planTransition()
	if t.inPlace, t.inPlaceErr = nil, nil; b != nil && len(b.inPlace) > 0 {
		t.inPlace = map[setClass]bool{}
		for _, x := range b.inPlace {
			t.inPlace[x.at] = true
		}
	}
	t.writeVerdicts()
	t.names.write(t.policy)
	t.would.Write(nil)
	t.held = !t.applyTransition(b)
	t.each(Family.writeRoutes)
	t.ports.Grow()
	t.each(Family.writeServices)
}

// setsInUse adds the sets that endpoints have in the maps.
func (t *Node) setsInUse(in map[uint64]bool) {
	t.hostSets(in)
	t.each(func(f Family) { f.setsInUse(in) })
	t.names.setsInUse(in)
}

// writeVerdicts writes entries by port, then the heads of source ports, then the heads that lead to
// both. No head is written that leads to something that could not be.
func (t *Node) writeVerdicts() {
	for pass := range 3 {
		broken := map[setClass]bool{}
		for k := range t.policy.Tracker.FailedKeys() {
			if _, write := t.policy.Tracker.Desired(k); write && rank(k) < pass {
				broken[setClass{k.Set, k.Peer}] = true
			}
		}
		t.policy.Write(func(k abi.WeirPolicyKey, _ abi.WeirPolicyValue) error {
			switch {
			case rank(k) != pass, len(t.inPlace) > 0 && t.inPlace[setClass{k.Set, k.Peer}]:
				return maptable.ErrLater
			case broken[setClass{k.Set, k.Peer}]:
				return errors.New("waits for entries of its own that could not be written")
			}
			return nil
		})
	}
}

// rank orders verdicts: those of a higher one lead to those of a lower one.
func rank(k abi.WeirPolicyKey) int {
	switch {
	case k.Head == 0:
		return 0
	case k.Sources != 0:
		return 1
	}
	return 2
}

// verdictsReady holds back an endpoint's isolation while part of its policy set could not be
// written: the endpoint keeps what it had, and a new endpoint stays unreachable, rather than be
// evaluated by half a set.
func (t *Node) verdictsReady(ingress, egress uint64) error {
	if ingress == 0 && egress == 0 {
		return nil
	}
	for k, err := range t.policy.Tracker.Failures() {
		if k.Set == ingress || k.Set == egress {
			return errors.Join(errors.New("waits for its policy"), err)
		}
	}
	return nil
}

// Remove makes all pending deletes but those of verdicts, in the opposite order of Write.
func (t *Node) Remove(s *nodestate.State, m Machine) {
	if slices.ContainsFunc(t.families, Family.servicesPending) {
		waitGrace()
	}
	t.each(Family.removeServices)
	t.ports.Settle()
	t.would.Remove(nil)
	if !t.held {
		t.names.remove()
		t.hosts.Remove(nil)
		m.hostPolicy, m.untracked = t.hosts.Tracker.Len() > 0, t.EvaluatesUntracked()
		t.each(func(f Family) { f.writeSettings(s, m, false, false) })
	}
	t.each(func(f Family) { t.held = f.removeEvaluated(t.held) || t.held })
}

// Stale reports whether flows are to be evaluated again although no table that evaluates changed:
// verdicts are to go.
func (t *Node) Stale() bool { return !t.held && t.policy.Tracker.PendingDeletes() > 0 }

// RemoveVerdicts makes the deletes that are left, once every flow that is evaluated again is
// evaluated by what is there to stay. Of a set that goes, what counts for everybody else goes
// first: a packet that is being evaluated by it finds a denial. Then go the heads of classes, and
// last what heads lead to: a program that has read a head and finds no entry does as the head says,
// so entries stay for a grace after it, and for as long as it cannot be deleted. While a change is
// held, only what nobody uses goes. again reports whether something went of a set that is in use:
// flows that began meanwhile are to be evaluated again.
func (t *Node) RemoveVerdicts() (again bool) {
	if t.policy.Tracker.PendingDeletes() == 0 {
		return false
	}
	used := map[uint64]bool{}
	t.setsInUse(used)
	wait := true
	for _, due := range []func(abi.WeirPolicyKey) bool{
		func(k abi.WeirPolicyKey) bool { return rank(k) == 2 && k.Peer == 0 },
		func(k abi.WeirPolicyKey) bool { return rank(k) == 2 },
		func(k abi.WeirPolicyKey) bool { return !t.headGoes(setClass{k.Set, k.Peer}) },
	} {
		if wait {
			waitGrace()
			wait = false
		}
		t.policy.Remove(func(k abi.WeirPolicyKey) error {
			if t.held && used[k.Set] || !due(k) {
				return maptable.ErrLater
			}
			wait = wait || used[k.Set]
			return nil
		})
		again = again || wait
	}
	return again
}

// headGoes reports whether a head is there that is to go.
func (t *Node) headGoes(at setClass) bool {
	_, there := t.policy.Tracker.Actual(at.key(headKey))
	_, stays := t.policy.Tracker.Desired(at.key(headKey))
	return there && !stays
}

// NextEpoch makes every flow evaluate itself again. The errors are dataplane.KeyErrors.
func (t *Node) NextEpoch() error {
	var errs []error
	t.each(func(f Family) { errs = append(errs, f.nextEpoch()) })
	return errors.Join(errs...)
}

// Changing reports whether a change was written, in part or as a whole, and the epoch not moved on.
func (t *Node) Changing() bool {
	return slices.ContainsFunc(t.families, Family.changing)
}

// Settle notes that no change is under way, where flows need not evaluate themselves again. The
// errors are the kernel's.
func (t *Node) Settle() error {
	var errs []error
	t.each(func(f Family) { errs = append(errs, f.settle()) })
	return errors.Join(errs...)
}

// Errors returns what could not be written, as dataplane.KeyErrors.
func (t *Node) Errors() []error {
	errs := slices.Concat(t.policy.Errors(), t.hosts.Errors(), t.would.Errors())
	if t.inPlaceErr != nil && len(errs) == 0 {
		errs = append(errs, t.inPlaceErr)
	}
	errs = append(errs, t.ports.Errors()...)
	errs = append(errs, t.names.errors()...)
	t.each(func(f Family) { errs = append(errs, f.errors()...) })
	return errs
}

// Entries counts what each table holds, both families together, by the names of the maps without
// "weir_".
func (t *Node) Entries() map[string]int {
	sum := map[string]int{"policy": t.policy.Tracker.Len()}
	t.each(func(f Family) {
		for name, n := range f.Entries() {
			sum[name] += n
		}
	})
	return sum
}

// Epoch is that of the first family; all are raised together.
func (t *Node) Epoch() uint32 { return t.families[0].epoch() }

// Endpoint reports whether an address is that of the endpoint behind an interface, or of a family
// that is not carried.
func (t *Node) Endpoint(a netip.Addr, ifindex int) bool {
	for _, f := range t.families {
		if index, ok := f.endpoint(a); ok {
			return index == ifindex
		}
	}
	return true
}

// ChangeFlags changes flags of the settings (abi.Set…) for which no flow has to be evaluated again.
func (t *Node) ChangeFlags(set, clear uint32) error {
	var errs []error
	t.each(func(f Family) { errs = append(errs, f.changeFlags(set, clear)) })
	return errors.Join(errs...)
}

// Listen makes the programs report every evaluated flow, or only what is denied or to be logged.
func (t *Node) Listen(on bool) error {
	var errs []error
	t.each(func(f Family) { errs = append(errs, f.listen(on)) })
	return errors.Join(errs...)
}

// Marks reports whether the settings make programs mark what they translate.
func (t *Node) Marks() bool { return slices.ContainsFunc(t.families, Family.marks) }

// Devices returns the interface indexes of weir0 and of the VXLAN device by the settings of IPv4.
func (t *Node) Devices() (host, tunnel int) { return t.families[0].devices() }

// Verdicts returns how many verdicts the map holds.
func (t *Node) Verdicts() int { return t.policy.Tracker.Len() }

// Written counts the entries that were written and deleted, without the epoch alone.
func (t *Node) Written() uint64 { return t.counts.reevaluated + t.counts.quiet }

// Reevaluated counts those of them that may change what becomes of an existing flow.
func (t *Node) Reevaluated() uint64 { return t.counts.reevaluated }

// Epochs counts the writes of the epoch alone.
func (t *Node) Epochs() uint64 { return t.counts.epochs }

// UntrackedSet reports whether the settings say that host endpoints evaluate each packet by itself.
func (t *Node) UntrackedSet() bool { return t.families[0].evaluatesUntracked() }

// Observe calls after after each change of a map that policy is in, and fail before each write of
// an entry there, which fails by its error; nil = nothing is called. It is for tests.
func (t *Node) Observe(after func(), fail func() error) {
	t.policy.After, t.policy.Fail = after, fail
	t.hosts.After, t.hosts.Fail = after, fail
	t.each(func(f Family) { f.observe(after, fail) })
}

// Temporary counts the verdicts that are there for a change of policy that is not over.
func (t *Node) Temporary() int { return len(t.temps) }

// ChangedInPlace counts what of sets that keep their numbers became something else.
func (t *Node) ChangedInPlace() InPlaceChanges { return t.inPlaceCount }

// Families returns the tables of the families that the node carries, IPv4 first.
func (t *Node) Families() []Family { return t.families }
