// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"testing"
)

// TestPeerOf: a socket's peer is found by its local port, in the tables of both families.
func TestPeerOf(t *testing.T) {
	const sockets = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0200F40A:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0000000000000000 100 0 0 10 0
   1: 0200F40A:9C40 0A00600A:1F90 06 00000000:00000000 03:000016F3 00000000     0        0 0 3 0000000000000000
  sl  local_address                         remote_address                        st
   0: 0000000000000000FFFF00000200F40A:9C41 0000000000000000FFFF00000301F40A:1F90 06 00000000:00000000 03:000016F3 00000000
`
	for port, want := range map[uint16]string{40000: "10.96.0.10", 40001: "10.244.1.3"} {
		if got, ok := peerOf(sockets, port); !ok || got != netip.MustParseAddr(want) {
			t.Errorf("the socket at %d is connected to %v (%v), want %s", port, got, ok, want)
		}
	}
	if got, ok := peerOf(sockets, 40002); ok {
		t.Errorf("nothing is at 40002, but %v is said to be its peer", got)
	}
}
