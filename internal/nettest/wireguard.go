// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// KernelHasWireGuard reports whether the kernel makes devices of WireGuard. Where it does, tests
// use these in place of wireguard-go.
func KernelHasWireGuard(t testing.TB) (has bool) {
	t.Helper()
	New(t, "a try").Do(t, "a device of WireGuard", func() error {
		err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "try"}})
		has = err == nil
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		return err
	})
	return has
}
