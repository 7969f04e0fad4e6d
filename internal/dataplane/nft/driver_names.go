// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/events"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

// adoptNames reads, before the first table is written, what pods were told.
func (d *Driver) adoptNames() error {
	if d.names == nil || d.namesMade > 0 {
		return nil
	}
	d.namesMade = 1
	return d.names.Adopt()
}

// applyNames has the tables, whose policy is in force, know what pods were told, and leads answers
// of DNS servers to the agent.
func (d *Driver) applyNames() error {
	if d.names == nil {
		return nil
	}
	made := uint32(1)
	for _, f := range table.Families {
		made += d.tables[f].Made
	}
	remade := made != d.namesMade
	d.namesMade = made
	return d.names.Apply(d.state, remade)
}

// Names implements dataplane.Reporter.
func (d *Driver) Names() (map[string]uint64, error) {
	if d.names == nil {
		return nil, errPrograms
	}
	return d.names.Counts()
}

// NamesOf returns the patterns of domain names that led the pod at an interface to an address.
func (d *Driver) NamesOf(ifindex int, a netip.Addr) ([]dataplane.NamedBy, error) {
	if d.names == nil {
		return nil, nil
	}
	return d.names.NamesOf(ifindex, a), nil
}

// Learn has pods know what another data plane's pods were told.
func (d *Driver) Learn(all []conntrack.Told) error {
	if d.names == nil {
		return nil
	}
	return d.names.Learn(all)
}

// newView is what events and records are made from.
func (d *Driver) newView() *events.View {
	v := events.NewView(d.state, d.network.HostIndex(), d.listening)
	if d.names != nil {
		v.Named, v.Began, v.Asked = d.names.NamesOf, d.names.BeganBy, d.names.AskedName
	}
	return v
}

// namesLack says why names are not in force; empty = they are.
func (d *Driver) namesLack() string {
	if d == nil || d.names == nil {
		return "no answers of DNS servers are looked at"
	}
	if err := d.names.Lacks(); err != nil {
		return err.Error()
	}
	return ""
}
