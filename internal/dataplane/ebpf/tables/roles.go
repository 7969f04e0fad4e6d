// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/nodestate"
)

// Family are the tables of IPv4 or of IPv6, in the roles that they have for those who use them.
// Others than Node import into them, and read what programs fill.
type Family interface {
	ImportTables
	FlowTables
	// Load reads what the maps hold. The error is the kernel's.
	Load() error
	// Entries counts what the tables hold, by the names of the maps without "weir_".
	Entries() map[string]int
	roles
}

// roles are those for Node.
type roles interface {
	stateTables
	settingsTable
	policyTables
	policyUses
	serviceTables
	stateReader
}

// stateTables take a state and say what is not as it should be.
type stateTables interface {
	desire(s *nodestate.State, changed nodestate.Keys, ifindex func(nodestate.Addr) int)
	// pending reports whether anything is to be written or removed on which open flows depend.
	pending() bool
	writeRoutes()
	errors() []error
	// endpoint returns the interface of the endpoint that has an address; ok is false when the
	// address is of the other family.
	endpoint(a netip.Addr) (ifindex int, ok bool)
	observe(after func(), fail func() error)
}

// settingsTable is the map of settings, with the epoch and the note that a change is under way.
type settingsTable interface {
	// writeSettings makes the settings equal to what the state says. While a change is made, strict
	// keeps what they say of the node's own traffic. pending says that other tables change, too;
	// any change is noted in them.
	writeSettings(s *nodestate.State, m Machine, strict, pending bool)
	changeFlags(set, clear uint32) error
	changing() bool
	settle() error
	nextEpoch() error
	epoch() uint32
	listen(on bool) error
	begins() bool
	marks() bool
	devices() (host, tunnel int) // by the settings
	evaluatesHosts() bool        // by the settings
	evaluatesUntracked() bool
}

// policyTables are classes and endpoints, which a policy transition leads from one state to the
// next.
type policyTables interface {
	writeClasses() (all bool)
	changeClasses() (all bool)
	// writeEndpoints writes addresses, of endpoints those whose verdicts are ready. held says that
	// an endpoint has sets still that it should not have.
	writeEndpoints(ready func(ingress, egress uint64) error) (held bool)
	writeOthers()
	removeEndpoints()
	interimClasses(via map[change]uint64) (all bool)
	interimSets(between func(dir int, c change) uint64, ready func(ingress, egress uint64) error) (all bool)
	// removeEvaluated makes deletes; held keeps classes. left says that some class is still to
	// change.
	removeEvaluated(held bool) (left bool)
}

// policyUses says which policy sets and classes the tables lead to, and will.
type policyUses interface {
	surveySets(*survey)
	surveyClasses(*survey)
	classesInUse(map[uint64]bool)
	holdsClass(class uint64) int
	classUses(more map[uint64]int)
	setsInUse(map[uint64]bool)
}

// serviceTables are frontends, backends and what is announced.
type serviceTables interface {
	writeServices()
	removeServices()
	servicesPending() bool
}

// ImportTables import what another data plane knows of connections.
type ImportTables interface {
	// ImportConnection writes a tracked connection of another data plane into the flow maps, wholly
	// or not at all, and reports whether it is there. now is the programs' clock, in its units of
	// 256 jiffies. With begun programs begin flows: one that has the answers already is theirs.
	ImportConnection(from flowhandover.Importer, e conntrack.Entry, now uint32, begun bool) (bool, error)
	// ForgetImported deletes a connection that was imported, by its tuples of both directions.
	ForgetImported(orig, answers conntrack.Tuple) error
	// Knows reports whether the flow maps have a tuple.
	Knows(of conntrack.Tuple) bool
	// FlowsOf hands on the established flows that have an end at an address, and PutFlow writes one
	// that another node has seen begin; with over it replaces what is there of it. now is as in
	// ImportConnection.
	FlowsOf(a netip.Addr, now uint32, f func(conntrack.Entry)) error
	PutFlow(from flowhandover.Importer, e conntrack.Entry, now uint32, over bool) error
	// ImportAffinity remembers which backend a client had, unless it is known to have one. now is
	// as in ImportConnection.
	ImportAffinity(from flowhandover.Importer, a conntrack.Affinity, now uint32) error
}

// FlowTables say what is needed to read tables that programs fill.
type FlowTables interface {
	// DSRFallback returns what walks through the clients that fell back, without those that are due
	// to be tried again, and what ends it. now is the programs' clock.
	DSRFallback() (walk func(now uint32) ([]DSRClient, error), done func() error, err error)
	// ShareLimits are the settings by which pods are held to their share of the table of
	// connections, in entries: of each pod, and from how many in all on.
	ShareLimits() (each, most uint32)
}

// stateReader reads a state back.
type stateReader interface {
	read(s *nodestate.State) error
	readPolicy(s *nodestate.State) error
}
