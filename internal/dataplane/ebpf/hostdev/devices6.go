// SPDX-License-Identifier: Apache-2.0

package hostdev

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/weir-net/weir/internal/kernel"
)

// Sysctl6 is a setting of one interface for IPv6. "all" and "default" are no interfaces.
func Sysctl6(ifname, setting string) []string {
	return []string{"net", "ipv6", "conf", ifname, setting}
}

// CarryIPv6 lets IPv6 pass one of our devices. It gets no address, sends nothing of its own but
// reports of multicast listeners, which end at its other side, and believes no router.
func CarryIPv6(name string) error {
	for _, s := range []struct {
		setting string
		value   int
	}{{"accept_ra", 0}, {"addr_gen_mode", 1}, {"disable_ipv6", 0}, {"forwarding", 1}} {
		if _, err := kernel.SetSysctl(s.value, Sysctl6(name, s.setting)...); err != nil {
			return err
		}
	}
	return nil
}

// ForwardIPv6 makes the node a router of IPv6: the programs' look-ups in the kernel's routes
// (bpf_fib_lookup) fail on an interface that does not forward. A router takes no router
// advertisements unless it is told to (accept_ra 2), so those interfaces that took them before are
// told to: their routes and addresses stay. Not told are those named in except.
func ForwardIPv6(uplinks map[int]string, except map[string]bool) (kept []string, err error) {
	all, err := kernel.Sysctl(Sysctl6("all", "forwarding")...)
	if err != nil {
		return nil, err
	}
	if all != 1 {
		entries, err := os.ReadDir("/proc/sys/net/ipv6/conf")
		if err != nil {
			return nil, fmt.Errorf("looking for interfaces with IPv6: %w", err)
		}
		for _, e := range entries {
			name := e.Name()
			if name == "all" || name == "default" || name == "lo" || except[name] {
				continue
			}
			if kept, err = keepAdvertisements(kept, name); err != nil && Exists6(name) {
				return kept, err
			}
		}
		// Interfaces that come later are given "default", which "all" sets too: it stays what it
		// was, or an uplink that comes later would forward before it could be told to go on taking
		// advertisements.
		later, err := kernel.Sysctl(Sysctl6("default", "forwarding")...)
		if err != nil {
			return kept, err
		}
		if _, err := kernel.SetSysctl(1, Sysctl6("all", "forwarding")...); err != nil {
			return kept, err
		}
		if _, err := kernel.SetSysctl(later, Sysctl6("default", "forwarding")...); err != nil {
			return kept, err
		}
	}
	for _, name := range uplinks { // somebody may have set one apart
		own, err := kernel.Sysctl(Sysctl6(name, "forwarding")...)
		if err == nil && own == 1 || !Exists6(name) {
			continue
		}
		if kept, err = keepAdvertisements(kept, name); err != nil {
			return kept, err
		}
		if _, err := kernel.SetSysctl(1, Sysctl6(name, "forwarding")...); err != nil {
			return kept, err
		}
	}
	return kept, nil
}

// keepAdvertisements adds an interface that takes router advertisements, as a host does, to those
// that go on when it forwards.
func keepAdvertisements(kept []string, name string) ([]string, error) {
	forwards, err := kernel.Sysctl(Sysctl6(name, "forwarding")...)
	if err != nil {
		return kept, err
	}
	accepts, err := kernel.Sysctl(Sysctl6(name, "accept_ra")...)
	if err != nil || forwards != 0 || accepts != 1 {
		return kept, err
	}
	if _, err := kernel.SetSysctl(2, Sysctl6(name, "accept_ra")...); err != nil {
		return kept, err
	}
	return append(kept, name), nil
}

// Exists6 reports whether an interface can have IPv6: it exists, and its MTU is not too small for
// it.
func Exists6(name string) bool {
	_, err := os.Stat("/proc/sys/net/ipv6/conf/" + name)
	return err == nil
}

// OfFamily returns the prefixes of one family.
func OfFamily(all map[netip.Prefix]int, six bool) map[netip.Prefix]int {
	out := map[netip.Prefix]int{}
	for p, mtu := range all {
		if p.Addr().Is6() == six {
			out[p] = mtu
		}
	}
	return out
}
