// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/dataplane/ebpf/attach"
	"github.com/weir-net/weir/internal/dataplane/ebpf/counters"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/tables"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Status implements dataplane.Reporter.
func (d *Driver) Status() dataplane.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := dataplane.Status{
		Uplinks: slices.Sorted(maps.Values(d.uplinks)), Tunnel: d.devices.tunnel != nil,
		Epoch: d.tables.Epoch(), Writes: d.tables.Written() + d.tables.Epochs(),
		Repairs: maps.Clone(d.count.repairs), Repaired: d.count.last, Problems: slices.Clone(d.problems),
		Entries: d.tables.Entries(), Arrival: d.arrival(),
	}
	for _, l := range d.both() {
		if n, err := counters.Read(l.Maps["weir_counts"], abi.CountUntracked); err == nil {
			st.Late += n
		}
	}
	for s := range d.programs.At {
		if s.Hook == attach.FromWorkload {
			st.Endpoints++
		}
	}
	return st
}

// Drops reads the counts of dropped packets, sorted by reason and rule.
func (d *Driver) Drops() ([]dataplane.Drop, error) {
	return counters.Drops(d.loaded.Maps["weir_drops"])
}

// Enforced says what is missing for an endpoint to be enforced: its programs are attached and in
// effect, and its addresses are in the maps.
func (d *Driver) Enforced(ep model.LocalEndpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range []attach.Hook{attach.FromWorkload, attach.ToWorkload} {
		s := attach.Site{Ifindex: ep.IfIndex, Hook: h}
		at, ok := d.programs.At[s]
		if !ok {
			return fmt.Errorf("no program %s is attached to interface %s (%d)", h.Name, ep.Interface, ep.IfIndex)
		}
		if err := at.Check(s, d.programs.ID(s)); err != nil {
			return fmt.Errorf("program %s of interface %s: %w", h.Name, ep.Interface, err)
		}
	}
	for _, a := range ep.Addrs {
		if !d.tables.Endpoint(a, ep.IfIndex) {
			return fmt.Errorf("address %s is not in the map of addresses with interface %s", a, ep.Interface)
		}
	}
	return nil
}

// Load reads the maps back as a state: see ReadState.
func (d *Driver) Load() (*nodestate.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return tables.ReadState(d.both()...)
}

// Answers counts the packets that the programs answered by themselves (ICMP errors), by what they
// sent; "limited" are those that went without one because of the limit on answers.
func (d *Driver) Answers() (map[string]uint64, error) {
	return counters.Answers(d.loaded.Maps["weir_answers"])
}

// Names implements dataplane.Reporter.
func (d *Driver) Names() (map[string]uint64, error) {
	out, err := counters.Names(d.loaded.Maps["weir_name_counts"])
	d.mu.Lock()
	r := d.nameReader
	d.mu.Unlock()
	if err == nil && r != nil {
		r.Counts(out)
	}
	return out, err
}

// NamesOf returns the patterns of domain names that led the pod at an interface to an address, as
// far as they count.
func (d *Driver) NamesOf(ifindex int, a netip.Addr) ([]dataplane.NamedBy, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return flowtable.NamesOf(d.loaded.Maps["weir_names"], ifindex, a)
}
