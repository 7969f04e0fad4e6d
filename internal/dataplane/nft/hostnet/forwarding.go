// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"os"

	"github.com/weir-net/weir/internal/kernel"
)

// forwardIPv6 makes the node a router of IPv6. A router accepts no router advertisements unless it
// is set to (accept_ra 2), so interfaces that accepted them are set to: their routes and addresses
// stay.
func forwardIPv6() error {
	all, err := kernel.Sysctl("net", "ipv6", "conf", "all", "forwarding")
	if err != nil || all == 1 {
		return err
	}
	entries, err := os.ReadDir("/proc/sys/net/ipv6/conf")
	if err != nil {
		return fmt.Errorf("looking for interfaces with IPv6: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if name == "all" || name == "default" || name == "lo" {
			continue
		}
		forwards, err := kernel.Sysctl("net", "ipv6", "conf", name, "forwarding")
		if err != nil {
			continue // it is gone
		}
		accepts, err := kernel.Sysctl("net", "ipv6", "conf", name, "accept_ra")
		if err != nil || forwards != 0 || accepts != 1 {
			continue
		}
		if _, err := kernel.SetSysctl(2, "net", "ipv6", "conf", name, "accept_ra"); err != nil {
			return err
		}
	}
	// Interfaces that come later are given "default", which "all" sets too: it stays what it was,
	// or an uplink that comes later would forward before it could be set to go on accepting
	// advertisements.
	later, err := kernel.Sysctl("net", "ipv6", "conf", "default", "forwarding")
	if err != nil {
		return err
	}
	if _, err := kernel.SetSysctl(1, "net", "ipv6", "conf", "all", "forwarding"); err != nil {
		return err
	}
	_, err = kernel.SetSysctl(later, "net", "ipv6", "conf", "default", "forwarding")
	return err
}
