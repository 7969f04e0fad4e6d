// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

// DSRFallback are the outside clients that get their answers by the node that they ask, the latest
// first, and how many times one fell back since the driver's start, or, where the table is older,
// since that was made.
func (d *Driver) DSRFallback() (dataplane.DSRFallback, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out dataplane.DSRFallback
	conn, err := nftables.New()
	if err != nil {
		return dataplane.DSRFallback{}, fmt.Errorf("opening nftables: %w", err)
	}
	type client struct {
		addr netip.Addr
		left time.Duration
	}
	var all []client
	for _, f := range table.Families {
		_, found, err := table.Elements(conn, f, chains.SetDSRFallback)
		if err != nil {
			return dataplane.DSRFallback{}, err
		}
		for _, e := range found {
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				all = append(all, client{a, e.Expires})
			}
		}
		n, err := d.tables[f].count(f, chains.DsrFallbackChain)
		if err != nil {
			return dataplane.DSRFallback{}, err
		}
		out.Total += n[0]
	}
	slices.SortFunc(all, func(a, b client) int { return cmp.Or(cmp.Compare(b.left, a.left), a.addr.Compare(b.addr)) })
	for _, c := range all {
		out.Clients = append(out.Clients, c.addr)
	}
	return out, nil
}
