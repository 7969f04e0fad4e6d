// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/egress"
	"github.com/weir-net/weir/internal/dataplane/nft/events"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/dataplane/nft/limits"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/names"
	"github.com/weir-net/weir/internal/dataplane/nft/policy"
	"github.com/weir-net/weir/internal/dataplane/nft/records"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/dataplane/shape"
	"github.com/weir-net/weir/internal/nodestate"
)

// Options say how a driver works.
type Options struct {
	Logger *slog.Logger
	// Tables gives the interface to the tables of a family; nil = the nft program.
	Tables func(knftables.Family) (knftables.Interface, error)
	// Before is called once, before the first table is written: connection tracking begins with it.
	Before func()
	// StateDir is a directory that survives a reboot: what of the kernel's settings was changed is
	// remembered there; "" = nowhere.
	StateDir string
	// Connections takes the place of nf_conntrack_max, of which pods have shares; 0 = the kernel's.
	Connections uint32
	// FlowRecords is how often open flows are reported; 0 = flows are not accounted for.
	FlowRecords time.Duration
	// Beside has the node work together with others that still have the network plugin in whose
	// place it comes, and says at which MAC address a node takes frames of the tunnel; nil = all
	// nodes have Weir.
	Beside func(node string) ([6]byte, error)
	// NoMachine leaves devices, routes and settings of the kernel alone: tables only, for tests.
	NoMachine bool
}

// Driver is the nftables data plane. It works in the network namespace of the process.
type Driver struct {
	opts Options
	log  *slog.Logger

	live bool // tables are the kernel's

	mu      sync.Mutex
	state   *nodestate.State // nil before the first Apply
	tables  map[table.Family]*familyTable
	network hostnet.Network
	queues  *shape.Queues // of pods whose bandwidth is limited

	tunnelTable *chains.TunnelTable
	arpTable    *chains.ArpTable
	limits      *limits.Table // of pods that may send and get so much
	overLimits  *familyTable  // what it dropped
	names       *names.Plane  // of domain names; nil = none, for tests
	namesMade   uint32        // familyTable.Made of both when names were written last
	problems    []string
	noIPIP      string // why IP in IP, which the state has, is not in force; empty = it is, or it has none
	ipipLacks   error  // the kernel has no IP in IP
	count       counters
	listening   bool // somebody wants to know of every flow that is evaluated
	held        []dataplane.HeldPod
	left        bool // Leave was called: devices, routes and settings of the kernel are another's

	view atomic.Pointer[events.View]
	lost atomic.Uint64

	reading sync.Mutex // held while records are read
	records *records.Reader
	retry   time.Time // when to try to open records again
}

// table is what a driver keeps of a family.
type familyTable struct {
	*table.State
	numbers   *marks.Numbers // nil while the table is the one of a family that the node does not carry
	services  *services.Follower
	policy    *policy.State
	led       *egress.Flows    // by egress gateways
	tallies   map[string]tally // by chain
	last      *nodestate.State // that was rendered, whole
	setSize   uint64           // of SetSizeFor
	indexes   chains.Indexes   // of FindIndexes
	refreshed time.Time        // at interfaces
	// inForce says that a table with our rules was in the kernel once: what comes is evaluated, if
	// by an older state.
	inForce    bool
	err        error                 // of the last try to write it
	shares     map[netip.Addr]string // of setShares
	neighbours map[netip.Addr]bool   // of FindNeighbours
	// uncounted says that the kernel does not count connections: no pod is held to its share of the
	// ports for source NAT.
	uncounted bool
}

var (
	_ dataplane.Driver   = (*Driver)(nil)
	_ dataplane.Reporter = (*Driver)(nil)
)

// New looks for what the driver needs. Nothing is written before the first Apply.
func New(o Options) (*Driver, error) {
	live := o.Tables == nil
	if live {
		o.Tables = func(f knftables.Family) (knftables.Interface, error) { return knftables.New(f, table.Name) }
	}
	d := &Driver{opts: o, live: live, log: o.Logger, tables: map[table.Family]*familyTable{}, network: hostnet.New(o.Logger, o.StateDir), queues: shape.New(shape.IFB)}
	if o.Beside != nil {
		d.network.Beside(o.Beside)
	}
	for _, f := range table.Families {
		n, err := o.Tables(f.NFT())
		if err != nil {
			return nil, fmt.Errorf("nftables of %s: %w", f, err)
		}
		d.tables[f] = &familyTable{State: table.NewState(n, f)}
		if !live {
			continue
		}
		if err := chains.CountsConnections(f); err != nil {
			d.tables[f].uncounted = true
			o.Logger.Warn("the kernel does not count connections (nft_connlimit): no pod is held to its share of the ports for source NAT", "family", f, "error", err)
		}
	}
	n, err := o.Tables(knftables.NetDevFamily)
	if err != nil {
		return nil, fmt.Errorf("nftables of devices: %w", err)
	}
	d.tunnelTable = chains.NewTunnelTable(n)
	if n, err = o.Tables(knftables.ARPFamily); err != nil {
		return nil, fmt.Errorf("nftables of ARP: %w", err)
	}
	d.arpTable = chains.NewARPTable(n)
	if n, err = o.Tables(knftables.InetFamily); err != nil {
		return nil, fmt.Errorf("nftables of both families: %w", err)
	}
	d.limits = limits.New(n, d.tracked)
	d.overLimits = &familyTable{State: d.limits.State}
	if live && !o.NoMachine {
		if d.names, err = names.New(o.Logger); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Apply implements dataplane.Driver.
func (d *Driver) Apply(ctx context.Context, s *nodestate.State, _ nodestate.Keys) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil && d.opts.Before != nil {
		d.opts.Before()
	}
	d.state = d.openIPIP(s)
	return d.reconcile(ctx)
}

// Leave implements handover.Predecessor. What somebody else changes is not repaired from then on.
func (d *Driver) Leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = true
}

// reconcile makes the kernel equal to the state: devices, then tables, then routes, which lead
// packets to what the tables have evaluated.
func (d *Driver) reconcile(ctx context.Context) error {
	var errs []error
	machine := !d.opts.NoMachine && !d.left
	if machine {
		errs = append(errs, d.network.Prepare(d.state)...)
		errs = append(errs, d.queues.Add(d.state.QoS)...)
		errs = append(errs, d.queues.Remove(d.state.QoS)...)
	}
	errs = append(errs, d.limits.Apply(ctx, d.state), d.adoptNames())
	d.view.Store(d.newView())
	for _, f := range table.Families {
		t := d.tables[f]
		if d.live {
			if err := t.refresh(d.state, d.connections, d.log); err != nil {
				d.log.Debug("which indexes interfaces have is not known; the last ones stay", "error", err)
			}
		}
		if t.err = t.apply(ctx, d.state, d.listening); t.err != nil {
			errs = append(errs, t.err)
		}
		t.inForce = t.inForce || t.err == nil
		if t.err == nil && t.services != nil && !d.opts.NoMachine {
			errs = append(errs, t.services.EndFlows(), t.led.End())
		}
	}
	errs = append(errs, d.applyNames())
	if machine {
		d.arpTable.Apply(ctx, d.state, d.log)
		errs = append(errs, d.tunnelTable.Apply(ctx, d.network.TunnelIndex() != 0, d.network.TunnelRemade())...)
		errs = append(errs, d.network.Open(d.state, func(f table.Family) bool { return d.tables[f].inForce },
			func(f table.Family) *marks.Numbers { return d.tables[f].numbers })...)
	}
	d.problems = d.problems[:0]
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	for _, err := range errs {
		d.problems = append(d.problems, err.Error())
	}
	return errors.Join(errs...)
}

// apply writes what differs from a state.
func (t *familyTable) apply(ctx context.Context, s *nodestate.State, listening bool) error {
	static := table.New(t.Family.NFT())
	if !t.Family.Carried(s) {
		return t.applyDisabled(ctx, static, s)
	}
	if t.last != nil && t.Current() && t.policy.Listening == listening && sameButServices(t.last, s) {
		t.services.Follow(s, t)
		return t.Write(ctx)
	}
	t.last = nil
	first := t.numbers == nil
	if first {
		t.Reset()
		t.numbers, t.policy = marks.NewNumbers(), policy.New()
		t.services, t.led = services.New(t.Family, t.numbers), egress.NewFlows(t.Family)
	}
	t.policy.Listening = listening
	epoch, hosts := policy.Render(t.Family, static, s, t.policy)
	t.setSize = chains.SetSizeFor(t.Family, s, t.setSize)
	chains.RenderChains(t.Family, static, s, epoch, hosts, t.setSize, t.indexes)
	if !t.Loaded {
		t.Define(static)
		if err := t.Load(ctx); err != nil {
			return err
		}
		if room := static.SetSizeIn(t.Found, t.setSize); !t.Present() && room > t.setSize { // what an earlier run needed
			t.setSize = room
			t.Define(static)
			if err := t.Load(ctx); err != nil {
				return err
			}
		}
		t.inForce = t.inForce || t.Present()
		if first {
			t.numbers.Adopt(t.Tracker(expr.MapNodes).All())
			t.services.Adopt(t.State, s)
		}
	}
	chains.RenderElements(t.Family, static, s, t.numbers, t.indexes)
	if t.uncounted {
		chains.WithoutPortShares(static)
		policy.WithoutCounts(static)
	}
	t.led.Follow(static, s, t.numbers)
	t.addShares(static, s)
	for a := range t.neighbours {
		static.Add(chains.SetNeighbours, a.String(), "")
	}
	t.Desire(static, stateSets(static), func(chain string) bool { return strings.HasPrefix(chain, "pick-") })
	t.services.Follow(s, t)
	t.last = s
	return t.Write(ctx)
}

// refresh finds out which interfaces indexes identify, when a state may have others, or the last
// look is long ago.
func (t *familyTable) refresh(s *nodestate.State, connections func() (uint32, error), log *slog.Logger) error {
	if t.last != nil && time.Since(t.refreshed) < lookEvery/2 && sameButServices(t.last, s) {
		return nil
	}
	t.refreshed = time.Now()
	t.refreshNeighbours(s, log)
	at, err := chains.FindIndexes(t.Family, s)
	if err == nil {
		at.Connections, err = connections()
	}
	if err == nil && at != t.indexes {
		t.indexes, t.last = at, nil
	}
	return err
}

// sameButServices reports whether two states differ in Services alone. Most changes of a cluster
// are of endpoints, and all else is rendered as a whole.
func sameButServices(a, b *nodestate.State) bool {
	return sameMap(a.Addrs, b.Addrs) && sameMap(a.Held, b.Held) && sameMap(a.Routes, b.Routes) && sameMap(a.PeerCIDRs, b.PeerCIDRs) && sameMap(a.HostEndpoints, b.HostEndpoints) && maps.EqualFunc(a.Sources, b.Sources, slices.Equal) && sameMap(a.Floating, b.Floating) &&
		maps.EqualFunc(a.Gateways, b.Gateways, slices.Equal) && a.Egress.Equal(&b.Egress) && maps.Equal(a.Names.Sets, b.Names.Sets) && nodestate.EqualMaps(a.Policy, b.Policy) && nodestate.EqualMaps(a.Peers, b.Peers) && reflect.DeepEqual(a.Settings, b.Settings)
}

// sameMap compares maps, which states often share.
func sameMap[K, V comparable](a, b map[K]V) bool {
	return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer() || maps.Equal(a, b)
}

// stateSets are the sets of a table whose elements are rendered as a whole; those of Services are
// followed.
func stateSets(t *table.Table) []string {
	var out []string
	for name, s := range t.Sets {
		if !s.Learned && !services.SetNames[name] {
			out = append(out, name)
		}
	}
	return out
}

// applyDisabled writes the table of a family that the node does not carry.
func (t *familyTable) applyDisabled(ctx context.Context, static *table.Table, s *nodestate.State) error {
	if t.numbers != nil {
		t.Reset()
		t.numbers, t.services, t.policy, t.last = nil, nil, nil, nil
	}
	chains.RenderDisabled(t.Family, static, s)
	if !t.Loaded {
		t.Define(static)
		if err := t.Load(ctx); err != nil {
			return err
		}
	}
	t.Desire(static, stateSets(static), func(string) bool { return false })
	return t.Write(ctx)
}

// Close lets go. What was written goes on working.
func (d *Driver) Close() error {
	if d.names != nil {
		d.names.Close()
	}
	return d.closeRecords()
}
