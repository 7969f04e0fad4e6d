// SPDX-License-Identifier: Apache-2.0

package fib

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// Adopt makes the routes of another BGP program, which has ended on this machine, those of a
// process before: they stay until peers have said what they know. from is their protocol number.
// Routes without a router, as those that drop what no pod has, are left alone.
func Adopt(from netlink.RouteProtocol) error {
	var errs []error
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := kernel.Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(f, &netlink.Route{Protocol: from}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("listing the routes of protocol %d: %w", from, err))
			continue
		}
		for i := range found {
			r := &found[i]
			if r.Type != unix.RTN_UNICAST || len(r.MultiPath) == 0 && r.Gw == nil {
				continue
			}
			p := kernel.RoutePrefix(r.Dst, f)
			// The copy first, so that there is a route at any time.
			if err := (route{hops: hopsOf(*r)}).put(p, true); err != nil {
				errs = append(errs, fmt.Errorf("taking route %s over: %w", p, err))
				continue
			}
			errs = append(errs, drop(p, *r))
		}
	}
	return errors.Join(errs...)
}

// Left reports whether there are routes that an earlier process learned.
func Left() (bool, error) {
	have, err := listed()
	return len(have) > 0, err
}
