// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"

	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/dataplane/nft/names"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/dataplane/shape"
)

// Remove takes away what drivers left in the kernel: tables, routes to other nodes, routing rules,
// and entries by which neighbours are answered. Devices, and routes of weir0, stay, which another
// data plane uses.
func Remove(ctx context.Context) error {
	if err := conntrack.Release(); err != nil { // by it programs let pass what the tables evaluate: it goes first
		return err
	}
	if err := table.DeleteTables(); err != nil {
		return err
	}
	return errors.Join(names.Remove(), hostnet.Remove(), shape.Remove(shape.IFB), ctx.Err())
}

// Restore gives interfaces back the settings that they had before, where they are as this data
// plane set them. Reverse-path checks that were strict stay loose: eBPF's data plane wants that,
// too.
func Restore(stateDir string) error { return hostnet.RestoreSettings(stateDir) }

// There reports whether a driver's table of a family is in the kernel.
func There() (bool, error) { return table.There() }
