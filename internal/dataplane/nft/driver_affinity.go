// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/conntrack"
)

// Remember lets clients stay with the backends that they had in another data plane, but for those
// that have one here.
func (d *Driver) Remember(all []conntrack.Affinity) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("opening nftables: %w", err)
	}
	var errs []error
	for f, t := range d.tables {
		if t.services == nil {
			continue
		}
		errs = append(errs, t.services.Remember(conn, f, all))
	}
	return errors.Join(errs...)
}
