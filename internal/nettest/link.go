// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link connects the test's namespace, by the interface name, with another one, where it is "up".
func Link(t *testing.T, name string, other *Namespace, here, there []netip.Prefix) {
	t.Helper()
	Must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "up", PeerNamespace: netlink.NsFd(other.FD)}))
	Must(t, Address(name, here...))
	other.Do(t, "addresses", func() error { return Address("up", there...) })
}

// Address puts a link up, with addresses.
func Address(name string, addrs ...netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	for _, p := range addrs {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
	}
	return nil
}
