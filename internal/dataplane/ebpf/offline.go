// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/eventring"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// Offline are the programs and maps in the kernel, attached to nothing and pinned nowhere: for runs
// of BPF_PROG_TEST_RUN. Load them with LoadForTest, write a state with Apply, and run
//
//	o.Programs["weir_from_workload"].Run(&ebpf.RunOptions{Data: frame, DataOut: out, Context: skb, ContextOut: skb})
//
// with a context that is a struct __sk_buff whose ifindex and ingress_ifindex name an interface of
// the calling thread's network namespace. With Trace each program leaves its decision in cb (see
// trace_enabled in bpf/maps.h).
type Offline struct {
	*ebpf.Collection
	IPv6    *ebpf.Collection // the programs that those of IPv4 call for it
	loaded  *object.Collection
	six     *object.Collection
	tables  *tables
	machine machine
	state   *nodestate.State
	bump    bool // flows are to be evaluated again

	guards, guards6 *object.Untracked
}

// TestOptions are for LoadForTest.
type TestOptions struct {
	Trace bool
	Sizes map[string]uint32 // Entries, by the name of the map; 0 or absent = as compiled
	// HostDevice and Tunnel are the interface indexes of weir0 and of the VXLAN device as the
	// programs are told them.
	HostDevice, Tunnel int
	// Answers are how many packets a CPU may answer by itself in a second, Burst how many at once;
	// 0 = as compiled.
	Answers, Burst uint32
	// EventInterval is the time between two events of a CPU in the long run; 0 = every event is
	// told.
	EventInterval time.Duration
	// Listening makes the programs tell every evaluated flow.
	Listening bool
	HostNetns uint64 // cookie of the network namespace that counts as the node's; 0 = the caller's
}

// LoadForTest loads the programs without attaching or pinning anything. Flow tables are small.
func LoadForTest(o TestOptions) (*Offline, error) {
	sizes := map[string]uint32{"weir_flows": 16384, "weir_flows_new": 4096, "weir_affinity": 4096, "weir_sockets": 4096}
	for name, n := range o.Sizes {
		sizes[name] = n
	}
	c := object.Constants{Trace: o.Trace, SetRetval: true, Answers: o.Answers, Burst: o.Burst, Unlimited: true, EventInterval: o.EventInterval}
	l, err := object.Load(nil, "", sizes, c, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	six, err := object.Load(l, "", sizes, c, slog.New(slog.DiscardHandler))
	if err != nil {
		l.Close()
		return nil, err
	}
	out := &Offline{Collection: l.Collection, IPv6: six.Collection, loaded: l, six: six, tables: newTables(l, six)}
	closeAll := out.Close
	if err := out.guard(); err != nil {
		closeAll()
		return nil, err
	}
	hz, err := kernel.HZ()
	if err != nil {
		closeAll()
		return nil, err
	}
	if o.HostNetns == 0 {
		if o.HostNetns, err = kernel.NetnsCookie(); err != nil {
			closeAll()
			return nil, err
		}
	}
	out.machine = machine{clock: clock{hz}, hostNetns: o.HostNetns, host: o.HostDevice, tunnel: o.Tunnel, listening: o.Listening}
	return out, nil
}

// guard loads the programs that evaluate each packet by itself, which a node has only while it asks
// for them.
func (o *Offline) guard() error {
	for _, x := range []struct {
		l    *object.Collection
		to   **object.Untracked
		into map[string]*ebpf.Program
	}{{o.loaded, &o.guards, o.Programs}, {o.six, &o.guards6, o.IPv6.Programs}} {
		g, err := object.LoadUntracked(x.l)
		*x.to = g
		if err != nil {
			return err
		}
		if g.ArriveErr != nil {
			return g.ArriveErr
		}
		x.into[object.ArriveProgram], x.into[object.EachProgram] = g.Arrive, g.Each
	}
	return nil
}

// EvaluatesUntracked reports whether the settings say that host endpoints evaluate each packet by
// itself.
func (o *Offline) EvaluatesUntracked() bool { return o.tables.untrackedSet() }

// SetUplinks tells the MAC addresses of uplinks by interface index; the next Apply writes them.
func (o *Offline) SetUplinks(macs map[int][6]byte) {
	o.machine.uplinks = map[uint32]abi.WeirLinkKey{}
	for index, mac := range macs {
		o.machine.uplinks[uint32(index)] = abi.WeirLinkKey{Mac: mac}
	}
}

// Apply makes the maps equal to a state, with the driver's own code. Flows stay; the epoch moves on
// when something changed.
func (o *Offline) Apply(s *nodestate.State) error { return o.ApplyChanged(s, nodestate.All()) }

// Writes counts the entries that were written and removed since the maps were made.
func (o *Offline) Writes() uint64 { return o.tables.written() }

// ApplyChanged is Apply for a state of which is known what changed.
func (o *Offline) ApplyChanged(s *nodestate.State, changed nodestate.Keys) error {
	if o.state == nil {
		if err := o.tables.load(); err != nil {
			return err
		}
	}
	before := o.tables.reevaluated()
	o.tables.desire(s, changed, func(a nodestate.Addr) int { return a.IfIndex })
	o.tables.write(s, o.machine)
	o.tables.remove(s, o.machine)
	o.state = s
	var errs []error
	six := o.six
	if !s.Settings.IPv6 {
		six = nil
	}
	_, err := o.loaded.CallIPv6(six)
	if six == nil {
		err = errors.Join(err, o.loaded.CallUntracked(nil, nil))
	} else {
		err = errors.Join(err, o.loaded.CallUntracked(o.guards6.Arrive, o.guards6.Each))
	}
	errs = append(errs, err)
	o.bump = o.bump || o.tables.reevaluated() != before || o.tables.stale()
	err = nil
	if o.bump {
		err = o.tables.nextEpoch()
	} else {
		err = o.tables.settle()
	}
	if err == nil {
		if o.bump = o.tables.removeVerdicts(); o.bump {
			err = o.tables.nextEpoch()
			o.bump = err != nil
		}
	}
	errs = append(errs, err)
	return errors.Join(append(errs, o.tables.errors()...)...)
}

// AfterEachWrite makes Apply call a function after each change of a map that policy is in; nil ends
// that. fail, if not nil, is called before each write of an entry, which fails by its error.
func (o *Offline) AfterEachWrite(f func(), fail func() error) {
	o.tables.observe(f, fail)
}

// Temporary counts the verdicts that are there for a change of policy that is not over.
func (o *Offline) Temporary() int { return o.tables.temporary() }

// ChangedInPlace counts what of sets that keep their numbers became something else.
func (o *Offline) ChangedInPlace() InPlaceChanges { return o.tables.changedInPlace() }

// Policy reads back what of the maps decides about policy, of IPv4.
func (o *Offline) Policy() (*nodestate.State, error) {
	return readPolicyState(o.loaded)
}

// Epoch is that of flows: it moves on when they are to be evaluated again.
func (o *Offline) Epoch() uint32 { return o.tables.epoch() }

// Listen is Driver.Listen.
func (o *Offline) Listen(on bool) error {
	o.machine.listening = on
	return o.tables.listen(on)
}

// Load reads the maps back as a state: see readState.
func (o *Offline) Load() (*nodestate.State, error) {
	if o.state == nil || !o.state.Settings.IPv6 {
		return readState(o.loaded)
	}
	return readState(o.loaded, o.six)
}

// ResetFlows forgets every flow, affinity and socket, and the counts of drops.
func (o *Offline) ResetFlows() error {
	for _, name := range []string{"weir_flows", "weir_flows_new", "weir_affinity", "weir_sockets", "weir_drops", "weir_frags",
		"weir_dsr_tries", "weir_dsr_fallen", "weir_shares", "weir_spent", "weir_resolves"} {
		for _, maps := range []map[string]*ebpf.Map{o.Maps, o.IPv6.Maps} {
			if err := clearMap(maps[name]); err != nil {
				return fmt.Errorf("emptying map %s: %w", name, err)
			}
		}
	}
	return errors.Join(zeroMap(o.Maps["weir_frag_rings"]), zeroMap(o.Maps["weir_frag_slots"]),
		zeroMap(o.IPv6.Maps["weir_frag_rings"]), zeroMap(o.IPv6.Maps["weir_frag_slots"]))
}

// zeroMap writes zeros over the entries of an array that are something else.
func zeroMap(m *ebpf.Map) error {
	zero := make([]byte, m.ValueSize())
	for i := range m.MaxEntries() {
		value, err := m.LookupBytes(i)
		if err != nil {
			return fmt.Errorf("reading map %s: %w", m, err)
		}
		if bytes.Equal(value, zero) {
			continue
		}
		if err := m.Put(i, zero); err != nil {
			return fmt.Errorf("emptying map %s: %w", m, err)
		}
	}
	return nil
}

// Close unloads everything.
func (o *Offline) Close() {
	o.loaded.Close()
	o.six.Close()
	o.guards.Close()
	o.guards6.Close()
}

// clearMap deletes every entry, whatever the types.
func clearMap(m *ebpf.Map) error {
	for {
		key, err := m.NextKeyBytes(nil)
		if err != nil || key == nil {
			return err
		}
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
}

// Drops reads the counts of dropped packets, sorted by reason and rule.
func (o *Offline) Drops() ([]Drop, error) { return readDrops(o.Maps["weir_drops"]) }

// Events begins to read events.
func (o *Offline) Events() (*EventReader, error) { return eventring.NewReader(o.Maps["weir_events"]) }

// Answers is Driver.Answers.
func (o *Offline) Answers() (map[string]uint64, error) { return readReplies(o.Maps["weir_answers"]) }

// NewDryRun is Driver.NewDryRun for programs that are attached to nothing themselves.
func (o *Offline) NewDryRun(programs []string) (*DryRun, error) {
	six := o.six
	if o.state == nil || !o.state.Settings.IPv6 {
		six = nil
	}
	r := &DryRun{}
	err := r.cloneMaps(o.loaded, six)
	if err == nil {
		err = r.load(programs, object.Constants{SetRetval: true})
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}
