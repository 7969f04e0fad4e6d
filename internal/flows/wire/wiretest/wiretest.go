// SPDX-License-Identifier: Apache-2.0

// Package wiretest makes of records what arrives of them, for tests of those who take them: they
// are written as messages, and read.
package wiretest

import (
	"bytes"
	"testing"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/wire"
)

// Rows are records as they arrive from a node's agent. They fit in one batch.
func Rows(t testing.TB, node string, records ...*flows.Flow) *wire.Rows {
	t.Helper()
	var sent bytes.Buffer
	if n, err := wire.NewWriter(&sent).Write("test", 0, nil, records); err != nil || n != len(records) {
		t.Fatalf("%d of %d records are written: %v", n, len(records), err)
	}
	b, err := wire.NewReader(&sent).Next()
	if err != nil {
		t.Fatal(err)
	}
	rows, err := b.Rows(node)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}
