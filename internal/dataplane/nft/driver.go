package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/nodestate"
)

// Options say how a driver works.
type Options struct {
	Logger *slog.Logger
	// Tables gives the interface to the tables of a family; nil = the nft program.
	Tables func(knftables.Family) (knftables.Interface, error)
	// NoMachine leaves devices, routes and settings of the kernel alone: tables only, for tests.
	NoMachine bool
}

// Driver is the data plane of standard Linux. It works in the network namespace of the process.
type Driver struct {
	opts Options
	log  *slog.Logger

	mu      sync.Mutex
	state   *nodestate.State // nil before the first Apply
	tables  map[family]*table
	machine machine

	tunnelTable *tunnelTable
	problems    []string
	count       counters
}

// table is what a driver keeps of a family.
type table struct {
	*written
	numbers  *numbers
	services *services
	policy   *policy
}

var _ dataplane.Driver = (*Driver)(nil)

// New looks for what the driver needs. Nothing is written before the first Apply.
func New(o Options) (*Driver, error) {
	if o.Tables == nil {
		o.Tables = func(f knftables.Family) (knftables.Interface, error) { return knftables.New(f, tableName) }
	}
	d := &Driver{opts: o, log: o.Logger, tables: map[family]*table{}, machine: machine{log: o.Logger}}
	for _, f := range families {
		n, err := o.Tables(f.nft())
		if err != nil {
			return nil, fmt.Errorf("nftables of %s: %w", f, err)
		}
		d.tables[f] = &table{written: newWritten(n, f)}
	}
	n, err := o.Tables(knftables.NetDevFamily)
	if err != nil {
		return nil, fmt.Errorf("nftables of devices: %w", err)
	}
	d.tunnelTable = &tunnelTable{nft: n}
	return d, nil
}

// Apply implements dataplane.Driver.
func (d *Driver) Apply(ctx context.Context, s *nodestate.State, _ nodestate.Keys) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = s
	return d.reconcile(ctx)
}

// reconcile makes the kernel equal to the state: devices, then tables, then routes, which lead packets to what the tables
// have judged.
func (d *Driver) reconcile(ctx context.Context) error {
	var errs []error
	if !d.opts.NoMachine {
		errs = append(errs, d.machine.prepare(d.state)...)
	}
	for _, f := range families {
		if err := d.tables[f].apply(ctx, d.state); err != nil {
			errs = append(errs, err)
		}
	}
	if !d.opts.NoMachine {
		errs = append(errs, d.tunnelTable.apply(ctx, d.machine.tunnel != nil, d.machine.remade)...)
		errs = append(errs, d.machine.open(d.state)...)
	}
	d.problems = d.problems[:0]
	for _, err := range errs {
		d.problems = append(d.problems, err.Error())
	}
	return errors.Join(errs...)
}

// apply writes what differs from a state.
func (t *table) apply(ctx context.Context, s *nodestate.State) error {
	if !t.family.carried(s) {
		return t.leave(ctx)
	}
	first := t.numbers == nil
	if first {
		t.numbers, t.services, t.policy = newNumbers(), newServices(t.family), newPolicy()
	}
	static := newTable(t.family.nft())
	t.family.renderChains(static, s)
	if !t.loaded {
		t.sets, t.layout = static.Sets, static.layout()
		if err := t.load(ctx); err != nil {
			return err
		}
		if first {
			t.numbers.adopt(t.written)
			t.services.adopt(t.written, s)
		}
	}
	t.family.renderAddrs(static, s, t.numbers)
	t.family.renderRoutes(static, s)
	t.family.renderPolicy(static, s, t.policy)
	t.desire(static, t.stateSets(), func(chain string) bool { return strings.HasPrefix(chain, "pick-") })
	t.services.follow(s, t)
	return t.write(ctx)
}

// stateSets are the sets whose elements are rendered as a whole; those of Services are followed.
func (t *table) stateSets() []string {
	var out []string
	for name, s := range t.sets {
		if !s.Learned && !serviceSets[name] {
			out = append(out, name)
		}
	}
	return out
}

// leave removes the table of a family that the node no longer carries.
func (t *table) leave(ctx context.Context) error {
	if t.numbers == nil && t.loaded {
		return nil
	}
	if err := t.load(ctx); err != nil {
		return err
	}
	if t.there {
		if err := t.remove(ctx); err != nil {
			return err
		}
	}
	n := t.nft
	t.written = newWritten(n, t.family)
	t.loaded, t.numbers, t.services = true, nil, nil
	return nil
}

// Close lets go. What was written goes on working.
func (d *Driver) Close() error { return nil }
