package ebpf

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/nodestate"
)

// tables are all maps that a state is written to, without anything that is attached: those that both families share,
// and those of each.
type tables struct {
	policy   *table[weirPolicyKey, weirPolicyValue]
	ports    *ports
	families []family
	counts   *counts
	temps    []weirPolicyKey // of bridges that are not crossed yet

	policyFresh bool // policy was read from the map and not compared with a state yet
	seenPolicy  nodestate.Map[nodestate.PolicyKey, nodestate.PolicyValue]
}

// counts are of writes.
type counts struct {
	judged uint64 // that may change what becomes of an existing flow
	quiet  uint64 // others
	epochs uint64 // of the epoch alone
	ended  uint64 // not writes: UDP sockets of host processes, whose backends went
}

// family are the tables of IPv4 or of IPv6.
type family interface {
	load() error
	desire(s *nodestate.State, changed nodestate.Keys, ifindex func(nodestate.Addr) int)
	writeSettings(s *nodestate.State, m machine)
	writeClasses()
	changeClasses()
	// writeEndpoints writes addresses, of endpoints those whose verdicts are ready. held says that something is left.
	writeEndpoints(ready func(ingress, egress uint64) error) (held bool)
	writeRoutes()
	surveySets(*survey)
	surveyClasses(*survey)
	interimClasses(via map[change]uint64)
	interimSets(between func(dir int, c change) uint64, ready func(ingress, egress uint64) error)
	observe(after func())
	writeServices()
	removeServices()
	removeJudged()
	servicesPending() bool
	nextEpoch() error
	listen(on bool) error
	epoch() uint32
	errors() []error
	entries() map[string]int
	fallen() (walk func(now uint32) ([]fallenClient, error), done func() error, err error)
	// endpoint returns the interface of the endpoint that has an address; ok is false when the address is of the
	// other family.
	endpoint(a netip.Addr) (ifindex int, ok bool)
	read(s *nodestate.State) error
	readPolicy(s *nodestate.State) error
}

// newTables returns the tables of the loaded families; those that are shared are the first one's.
func newTables(families ...*loaded) *tables {
	shared := families[0].Maps
	t := &tables{counts: &counts{}}
	t.policy = newTable[weirPolicyKey, weirPolicyValue]("weir_policy", shared["weir_policy"], showPolicy, &t.counts.judged)
	t.ports = newPorts(shared["weir_ports"], &t.counts.quiet)
	for _, l := range families {
		t.families = append(t.families, l.tables(t.counts))
	}
	return t
}

func (t *tables) each(do func(family)) {
	for _, f := range t.families {
		do(f)
	}
}

// load reads what the maps hold.
func (t *tables) load() error {
	t.policyFresh = true
	errs := []error{t.policy.load(), t.ports.load()}
	t.each(func(f family) { errs = append(errs, f.load()) })
	return errors.Join(errs...)
}

// desire sets what the maps should hold, for the tables that may have changed.
func (t *tables) desire(s *nodestate.State, changed nodestate.Keys, ifindex func(nodestate.Addr) int) {
	if changed.Has(nodestate.TablePolicy) {
		t.followPolicy(s)
	}
	if changed.Has(nodestate.TableServices) || changed.Has(nodestate.TableAddrs) {
		t.ports.desire(s, changed.Has(nodestate.TableAddrs))
	}
	t.each(func(f family) { f.desire(s, changed, ifindex) })
}

// write makes all pending writes, in an order in which no packet is allowed that both the state before
// and the state after deny: verdicts before the classes that lead to them, both before the endpoints
// that are isolated by them, and where that is not enough, by a bridge. Entries by port come before the heads that
// point to them.
func (t *tables) write(s *nodestate.State, m machine) {
	t.each(func(f family) { f.writeSettings(s, m) })
	b := t.bridge()
	t.policy.write(func(k weirPolicyKey, _ weirPolicyValue) error {
		if k.Head != 0 {
			return errLater
		}
		return nil
	})
	t.policy.write(nil)
	t.cross(b)
	t.each(family.writeRoutes)
	t.ports.grow()
	t.each(family.writeServices)
}

var errLater = errors.New("not written yet")

// verdictsReady holds back an endpoint's isolation while part of its policy set could not be written:
// the endpoint keeps what it had, and a new endpoint stays unreachable, rather than be judged by half a set.
func (t *tables) verdictsReady(ingress, egress uint64) error {
	if ingress == 0 && egress == 0 {
		return nil
	}
	for k, err := range t.policy.tracker.Failures() {
		if k.Set == ingress || k.Set == egress {
			return errors.Join(errors.New("waits for its policy"), err)
		}
	}
	return nil
}

// grace is how long a program that has read a count may take to look its slot up, or a class its verdict.
const grace = time.Millisecond

// remove makes all pending deletes but those of verdicts, in the opposite order of write.
func (t *tables) remove() {
	if slices.ContainsFunc(t.families, family.servicesPending) {
		time.Sleep(grace)
	}
	t.each(family.removeServices)
	t.ports.settle()
	t.each(family.removeJudged)
}

// removeVerdicts makes the deletes that are left, once every flow that is judged again is judged by what is there to stay. Of a set
// that goes, what counts for everybody else goes first: a packet that is being judged by it finds a denial.
func (t *tables) removeVerdicts() {
	if t.policy.tracker.PendingDeletes() == 0 {
		return
	}
	time.Sleep(grace)
	t.policy.remove(func(k weirPolicyKey) error {
		if k.Head == 0 || k.Peer != 0 || k.Sources != 0 {
			return errLater
		}
		return nil
	})
	t.policy.remove(nil)
}

// nextEpoch makes every flow judge itself again.
func (t *tables) nextEpoch() error {
	var errs []error
	t.each(func(f family) { errs = append(errs, f.nextEpoch()) })
	return errors.Join(errs...)
}

// errors returns what could not be written.
func (t *tables) errors() []error {
	errs := t.policy.errors()
	errs = slices.AppendSeq(errs, maps.Values(t.ports.errs))
	t.each(func(f family) { errs = append(errs, f.errors()...) })
	return errs
}

// entries counts what each table holds, both families together.
func (t *tables) entries() map[string]int {
	sum := map[string]int{"policy": t.policy.tracker.Len()}
	t.each(func(f family) {
		for name, n := range f.entries() {
			sum[name] += n
		}
	})
	return sum
}

// epoch is that of the first family; all are raised together.
func (t *tables) epoch() uint32 { return t.families[0].epoch() }

// endpoint reports whether an address is that of the endpoint behind an interface, or of a family that is not
// carried.
func (t *tables) endpoint(a netip.Addr, ifindex int) bool {
	for _, f := range t.families {
		if index, ok := f.endpoint(a); ok {
			return index == ifindex
		}
	}
	return true
}
