// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/model"
)

// counters are what the driver repaired.
type counters struct {
	repairs map[string]uint64
	last    time.Time
}

func (c *counters) repaired(what string) {
	if c.repairs == nil {
		c.repairs = map[string]uint64{}
	}
	c.repairs[what]++
	c.last = time.Now()
}

// Status implements dataplane.Reporter. Entries are those of sets by "family set"; announced are
// entries for neighbours. Writes are operations of nftables, Endpoints pods' addresses.
func (d *Driver) Status() dataplane.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := dataplane.Status{Tunnel: d.network.TunnelIndex() != 0 || d.network.IPIPIndex() != 0, Problems: slices.Clone(d.problems), Entries: map[string]int{},
		Repairs: maps.Clone(d.count.repairs), Repaired: d.count.last, NoIPIP: d.noIPIP}
	if d.noIPIP == "" && d.ipipLacks != nil {
		st.NoIPIP = d.ipipLacks.Error()
	}
	for f, t := range d.tables {
		st.Writes += t.Writes
		for name, tracked := range t.Elements {
			st.Entries[fmt.Sprintf("%s %s", f.NFT(), name)] = tracked.Len()
		}
		st.Entries[fmt.Sprintf("%s announced", f.NFT())] = d.network.Answered(f)
		if n := t.Elements[expr.MapSenders]; n != nil {
			for _, to := range n.All() {
				if strings.HasPrefix(to, "goto "+chains.SenderPrefix) {
					st.Endpoints++
				}
			}
		}
	}
	return st
}

// Enforced says what is missing for an endpoint to be enforced: its interface and addresses are
// in the kernel's sets, so that nothing from it or to it goes by the rules.
func (d *Driver) Enforced(ep model.LocalEndpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left {
		return errors.New("another data plane is taking this one's place: routes are not made until it has")
	}
	for _, a := range ep.Addrs {
		t := d.tables[table.FamilyOf(a)]
		if t.err != nil {
			return fmt.Errorf("address %s: %w", a, t.err) // policy and addresses are those of before
		}
		if t.Elements[expr.MapSenders] == nil {
			return fmt.Errorf("address %s is in no table: the node does not carry its family", a)
		}
		if to, _ := t.Elements[expr.MapSenders].Actual(a.String()); to != "goto "+chains.SenderChain(ep.Interface) {
			return fmt.Errorf("address %s is not in the map of senders with interface %s", a, ep.Interface)
		}
	}
	return nil
}

// Pressures implements dataplane.Reporter: there are no tables of a fixed size.
func (d *Driver) Pressures() []dataplane.Pressure { return nil }

// errPrograms is the answer to what only programs can be asked.
var errPrograms = errors.New("this node has the data plane nftables (bpfEnabled: false), which cannot be asked this; see its rules with nft list table ip weir")

// Answers implements dataplane.Reporter: the kernel answers, and does not count by what.
func (d *Driver) Answers() (map[string]uint64, error) { return nil, errPrograms }
