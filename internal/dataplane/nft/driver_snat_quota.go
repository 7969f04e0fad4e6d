// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
)

// spentRecent is for how long a pod counts as one that goes on.
const spentRecent = time.Minute

// ExhaustedPod is a pod that had used up its ports for source NAT towards a destination.
type ExhaustedPod struct {
	Addr    netip.Addr
	Refused uint64 // packets that were dropped
	Recent  bool   // it goes on
}

// ExhaustedPods reads which pods used up their ports, by their addresses.
func (d *Driver) ExhaustedPods() ([]ExhaustedPod, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("opening nftables: %w", err)
	}
	var out []ExhaustedPod
	var errs []error
	for _, f := range table.Families {
		_, found, err := table.Elements(conn, f, chains.SetSpent)
		errs = append(errs, err)
		for _, e := range found {
			if a, ok := netip.AddrFromSlice(e.Key); ok && e.Counter != nil {
				out = append(out, ExhaustedPod{Addr: a, Refused: e.Counter.Packets, Recent: chains.SpentKept-e.Expires < spentRecent})
			}
		}
	}
	slices.SortFunc(out, func(a, b ExhaustedPod) int { return a.Addr.Compare(b.Addr) })
	return out, errors.Join(errs...)
}
