// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/nodestate"
)

// family are the tables of IPv4 or of IPv6, in the roles that they have for those who use them.
type family interface {
	stateTables
	settingsTable
	policyTables
	policyUses
	serviceTables
	importTables
	flowTables
	stateReader
}

// stateTables take a state and say what is not as it should be.
type stateTables interface {
	load() error
	desire(s *nodestate.State, changed nodestate.Keys, ifindex func(nodestate.Addr) int)
	// pending reports whether anything is to be written or removed on which open flows depend.
	pending() bool
	writeRoutes()
	errors() []error
	entries() map[string]int
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
	writeSettings(s *nodestate.State, m machine, strict, pending bool)
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

// importTables take over what another data plane knows of connections.
type importTables interface {
	// importConnection takes a tracked connection over from another data plane; it reports whether
	// it is one that this one carries.
	importConnection(from flowhandover.Importer, e conntrack.Entry, now uint32, begun bool) (bool, error)
	forgetImported(orig, answers conntrack.Tuple) error
	knows(of conntrack.Tuple) bool
	// importAffinity remembers which backend a client had, unless it is known to have one.
	importAffinity(from flowhandover.Importer, a conntrack.Affinity, now uint32) error
}

// flowTables say what is needed to read tables that programs fill.
type flowTables interface {
	dsrFallback() (walk func(now uint32) ([]dsrFallbackClient, error), done func() error, err error)
	shareLimits() (each, most uint32)
}

// stateReader reads a state back.
type stateReader interface {
	read(s *nodestate.State) error
	readPolicy(s *nodestate.State) error
}
