// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/counters"
	"github.com/weir-net/weir/internal/dataplane/ebpf/dryrun"
	"github.com/weir-net/weir/internal/dataplane/ebpf/eventring"
	"github.com/weir-net/weir/internal/dataplane/ebpf/maptable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/dataplane/ebpf/tables"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
)

// Node are the programs and maps in the kernel, attached to nothing and pinned nowhere: for runs
// of BPF_PROG_TEST_RUN. Load them with Load, write a state with Apply, and run
//
//	o.Programs["weir_from_workload"].Run(&ebpf.RunOptions{Data: frame, DataOut: out, Context: skb, ContextOut: skb})
//
// with a context that is a struct __sk_buff whose ifindex and ingress_ifindex name an interface of
// the calling thread's network namespace. With Trace each program leaves its decision in cb (see
// trace_enabled in bpf/maps.h).
type Node struct {
	*ebpf.Collection
	IPv6    *ebpf.Collection // the programs that those of IPv4 call for it
	loaded  *object.Collection
	six     *object.Collection
	Tables  *tables.Node
	machine tables.Machine
	state   *nodestate.State
	bump    bool // flows are to be evaluated again

	guards, guards6 *object.Untracked
}

// Options are for Load.
type Options struct {
	Trace bool
	// Programs are the names of those to load, of which the kernel verifies no others, which takes
	// a second of a CPU for all; nil = all.
	Programs []string
	Sizes    map[string]uint32 // Entries, by the name of the map; 0 or absent = as compiled
	// HostDevice and Tunnel are the interface indexes of weir0 and of the VXLAN device as the
	// settings have them.
	HostDevice, Tunnel int
	// Answers are how many packets a CPU may answer by itself in a second, Burst how many at once;
	// 0 = as compiled.
	Answers, Burst uint32
	// EventInterval is the time between two events of a CPU in the long run; 0 = every event is
	// reported.
	EventInterval time.Duration
	// Listening makes the programs report every evaluated flow.
	Listening bool
	// Gateways: pods may leave the cluster by egress gateways.
	Gateways bool
	// AccountInterval is that of flow records, units of the programs' clock; 0 = there are none.
	AccountInterval uint32
	HostNetns       uint64 // cookie of the network namespace that counts as the node's; 0 = the caller's
}

// Load loads the programs without attaching or pinning anything. Flow tables are small.
func Load(o Options) (*Node, error) {
	sizes := map[string]uint32{"weir_flows": 16384, "weir_flows_new": 4096, "weir_affinity": 4096, "weir_sockets": 4096, "weir_records": 1 << 20}
	for name, n := range o.Sizes {
		sizes[name] = n
	}
	c := object.Constants{Trace: o.Trace, SetRetval: true, Answers: o.Answers, Burst: o.Burst, Unlimited: true, EventInterval: o.EventInterval, AccountInterval: o.AccountInterval, Gateways: o.Gateways}
	l, err := load(nil, sizes, c, o.Programs)
	if err != nil {
		return nil, err
	}
	six, err := load(l, sizes, c, o.Programs)
	if err != nil {
		l.Close()
		return nil, err
	}
	out := &Node{Collection: l.Collection, IPv6: six.Collection, loaded: l, six: six, Tables: tables.New(l, six)}
	closeAll := out.Close
	if o.Programs == nil {
		if err := out.guard(); err != nil {
			closeAll()
			return nil, err
		}
	}
	for _, each := range []*object.Collection{l, six} {
		if _, err := each.CallSlow(); err != nil {
			closeAll()
			return nil, err
		}
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
	out.machine = tables.Machine{Clock: tables.Clock{HZ: hz}, HostNetns: o.HostNetns, Host: o.HostDevice, Tunnel: o.Tunnel, Listening: o.Listening}
	return out, nil
}

// load loads the programs of a family, of IPv6 with four.
func load(four *object.Collection, sizes map[string]uint32, c object.Constants, only []string) (*object.Collection, error) {
	l, err := object.OpenMaps(four, "", sizes, c, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	var programs *ebpf.Collection
	if only == nil {
		programs, err = l.Verify()
	} else {
		programs, err = l.VerifyOnly(only...)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	l.Install(programs)
	return l, nil
}

// guard loads the programs that evaluate each packet by itself, which a node has only while it asks
// for them.
func (o *Node) guard() error {
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

// LoadLimited loads the programs at limited pods of both families, which the caller closes.
func (o *Node) LoadLimited() (four, six *object.Programs, err error) {
	if four, err = object.LoadLimited(o.loaded); err != nil {
		return nil, nil, err
	}
	if six, err = object.LoadLimited(o.six); err != nil {
		four.Close()
		return nil, nil, err
	}
	return four, six, nil
}

// EvaluatesUntracked reports whether the settings say that host endpoints evaluate each packet by
// itself.
func (o *Node) EvaluatesUntracked() bool { return o.Tables.UntrackedSet() }

// SetUplinks sets the MAC addresses of uplinks by interface index; the next Apply writes them.
func (o *Node) SetUplinks(macs map[int][6]byte) {
	o.machine.Uplinks = map[uint32]abi.WeirLinkKey{}
	for index, mac := range macs {
		o.machine.Uplinks[uint32(index)] = abi.WeirLinkKey{Mac: mac}
	}
}

// Apply makes the maps equal to a state, with the driver's own code. Flows stay; the epoch moves on
// when something changed.
func (o *Node) Apply(s *nodestate.State) error { return o.ApplyChanged(s, nodestate.All()) }

// Writes counts the entries that were written and removed since the maps were made.
func (o *Node) Writes() uint64 { return o.Tables.Written() }

// ApplyChanged is Apply for a state of which is known what changed.
func (o *Node) ApplyChanged(s *nodestate.State, changed nodestate.Keys) error {
	if o.state == nil {
		if err := o.Tables.Load(); err != nil {
			return err
		}
	}
	before := o.Tables.Reevaluated()
	o.Tables.Desire(s, changed, func(a nodestate.Addr) int { return a.IfIndex })
	o.Tables.Write(s, o.machine)
	o.Tables.Remove(s, o.machine)
	o.state = s
	var errs []error
	six := o.six
	if !s.Settings.IPv6 {
		six = nil
	}
	_, err := o.loaded.CallIPv6(six)
	if six == nil || o.guards6 == nil {
		err = errors.Join(err, o.loaded.CallUntracked(nil, nil))
	} else {
		err = errors.Join(err, o.loaded.CallUntracked(o.guards6.Arrive, o.guards6.Each))
	}
	_, ipipErr := o.loaded.CallIPIP(s.Settings.IPIP.Accept)
	_, namesErr := o.loaded.CallNames(len(s.Names.Sets) > 0)
	errs = append(errs, err, ipipErr, namesErr)
	o.bump = o.bump || o.Tables.Reevaluated() != before || o.Tables.Stale()
	if o.bump {
		err = o.Tables.NextEpoch()
	} else {
		err = o.Tables.Settle()
	}
	if err == nil {
		if o.bump = o.Tables.RemoveVerdicts(); o.bump {
			err = o.Tables.NextEpoch()
			o.bump = err != nil
		}
	}
	errs = append(errs, err)
	return errors.Join(append(errs, o.Tables.Errors()...)...)
}

// AfterEachWrite makes Apply call a function after each change of a map that policy is in; nil ends
// that. fail, if not nil, is called before each write of an entry, which fails by its error.
func (o *Node) AfterEachWrite(f func(), fail func() error) {
	o.Tables.Observe(f, fail)
}

// Temporary counts the verdicts that are there for a change of policy that is not over.
func (o *Node) Temporary() int { return o.Tables.Temporary() }

// ChangedInPlace counts what of sets that keep their numbers became something else.
func (o *Node) ChangedInPlace() tables.InPlaceChanges { return o.Tables.ChangedInPlace() }

// Policy reads back what of the maps decides about policy, of IPv4.
func (o *Node) Policy() (*nodestate.State, error) {
	return tables.ReadPolicyState(o.loaded)
}

// Epoch is that of flows: it moves on when they are to be evaluated again.
func (o *Node) Epoch() uint32 { return o.Tables.Epoch() }

// Listen makes the programs report every evaluated flow, or only what is denied or to be logged.
func (o *Node) Listen(on bool) error {
	o.machine.Listening = on
	return o.Tables.Listen(on)
}

// Load reads the maps back as a state: see ReadState.
func (o *Node) Load() (*nodestate.State, error) {
	if o.state == nil || !o.state.Settings.IPv6 {
		return tables.ReadState(o.loaded)
	}
	return tables.ReadState(o.loaded, o.six)
}

// ResetFlows forgets every flow, affinity and socket, and the counts of drops.
func (o *Node) ResetFlows() error {
	for _, name := range []string{"weir_flows", "weir_flows_new", "weir_affinity", "weir_sockets", "weir_drops", "weir_frags",
		"weir_dsr_tries", "weir_dsr_fallen", "weir_shares", "weir_spent", "weir_resolves", "weir_names", "weir_name_used", "weir_name_asked"} {
		for _, maps := range []map[string]*ebpf.Map{o.Maps, o.IPv6.Maps} {
			if err := maptable.Clear(maps[name]); err != nil {
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
func (o *Node) Close() {
	o.loaded.Close()
	o.six.Close()
	o.guards.Close()
	o.guards6.Close()
}

// Drops reads the counts of dropped packets, sorted by reason and rule.
func (o *Node) Drops() ([]dataplane.Drop, error) { return counters.Drops(o.Maps["weir_drops"]) }

// Events begins to read events.
func (o *Node) Events() (*eventring.Reader, error) {
	return eventring.NewReader(o.Maps["weir_events"])
}

// Answers counts the packets that the programs answered by themselves: see counters.Answers.
func (o *Node) Answers() (map[string]uint64, error) { return counters.Answers(o.Maps["weir_answers"]) }

// NewDryRun loads the programs of some hooks a second time, on the tables of these. Close it before
// them.
func (o *Node) NewDryRun(programs []string) (*dryrun.Instance, error) {
	six := o.six
	if o.state == nil || !o.state.Settings.IPv6 {
		six = nil
	}
	r := &dryrun.Instance{}
	err := r.Share(o.loaded, six)
	if err == nil {
		err = r.Load(programs, object.Constants{SetRetval: true})
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Teacher loads a copy of the program that reads answers of DNS servers: see object.LoadTeacher.
func (o *Node) Teacher() (*object.Programs, error) { return object.LoadTeacher(o.loaded) }
