// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/nettest"
)

// TestRemoveTables: our tables, and what holds packets back, are gone afterwards; others stay.
func TestRemoveTables(t *testing.T) {
	nettest.Run(t, func(string) error { return removeTables() })
}

func removeTables() error {
	if there, err := There(); there || err != nil {
		return fmt.Errorf("in an empty namespace our tables are there: %v, %w", there, err)
	}
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		conn.AddTable(&nftables.Table{Name: table.Name, Family: family}) // of the family bridge it is not ours
	}
	if err := conn.Flush(); err != nil {
		return err
	}
	if _, err := conntrack.Hold(context.Background(), conntrack.HoldOptions{InterfacePrefix: "cali"}); err != nil {
		return err
	}
	if there, err := There(); !there || err != nil {
		return fmt.Errorf("our tables are there: %v, %w", there, err)
	}
	if err := Remove(context.Background()); err != nil {
		return err
	}
	if there, err := There(); there || err != nil {
		return fmt.Errorf("after they were removed our tables are there: %v, %w", there, err)
	}
	left, err := conn.ListTables()
	if err == nil && (len(left) != 1 || left[0].Name != table.Name || left[0].Family != nftables.TableFamilyBridge) {
		err = fmt.Errorf("%d tables are left, want somebody else's alone", len(left))
	}
	return err
}
