// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// DSRClient is an outside client that fell back from direct server return.
type DSRClient struct {
	Addr netip.Addr
	Age  int32 // clock units
}

// DSRFallback returns what walks through the clients, without those that are due to be tried again,
// and what ends it.
func (t *familyTables[A]) DSRFallback() (walk func(now uint32) ([]DSRClient, error), done func() error, err error) {
	m, err := t.dsrFallbackMap.Clone()
	if err != nil {
		return nil, nil, fmt.Errorf("opening map weir_dsr_fallen: %w", err)
	}
	retry := int32(t.current.Timeouts[abi.TimeoutDSRRetry])
	return func(now uint32) ([]DSRClient, error) {
		var out []DSRClient
		it := m.Iterate()
		var client A
		for since := uint32(0); it.Next(&client, &since); {
			if age := int32(now - since); age <= retry {
				out = append(out, DSRClient{abi.FromAddr(client), age})
			}
		}
		if err := it.Err(); err != nil {
			return nil, fmt.Errorf("reading map weir_dsr_fallen: %w", err)
		}
		return out, nil
	}, m.Close, nil
}
