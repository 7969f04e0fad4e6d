// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

// spentRecent is for how long a pod counts as one that goes on.
const spentRecent = time.Minute

// ExhaustedPods reads which pods used up their ports, by their addresses.
func (d *Driver) ExhaustedPods() ([]dataplane.ExhaustedPod, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("opening nftables: %w", err)
	}
	var out []dataplane.ExhaustedPod
	var errs []error
	for _, f := range table.Families {
		_, found, err := table.Elements(conn, f, chains.SetSpent)
		errs = append(errs, err)
		for _, e := range found {
			if a, ok := netip.AddrFromSlice(e.Key); ok && e.Counter != nil {
				out = append(out, dataplane.ExhaustedPod{Addr: a, Refused: e.Counter.Packets, Recent: chains.SpentKept-e.Expires < spentRecent})
			}
		}
	}
	slices.SortFunc(out, func(a, b dataplane.ExhaustedPod) int { return a.Addr.Compare(b.Addr) })
	return out, errors.Join(errs...)
}
