// SPDX-License-Identifier: Apache-2.0

package load

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/nettest"
)

// TestMain runs the tests in a network namespace of their own, where nobody else has the ports.
func TestMain(m *testing.M) {
	nettest.Main(m, 0, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
}
