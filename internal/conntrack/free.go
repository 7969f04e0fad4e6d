// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Free forgets TCP connections to the given addresses and ports whose destination is translated,
// and returns how many these were: a new connection from the same port would be translated as they
// are, whatever is in force now, until they time out (5 days where nobody answers).
func Free(to []netip.AddrPort) (int, error) {
	if len(to) == 0 {
		return 0, nil
	}
	t, err := Open()
	if err != nil {
		return 0, err
	}
	defer t.Close()
	var found []Entry
	var errs []error
	for _, six := range []bool{false, true} {
		if !slices.ContainsFunc(to, func(a netip.AddrPort) bool { return a.Addr().Is6() == six }) {
			continue
		}
		errs = append(errs, t.Each(six, func(e Entry) {
			asked, got := netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort), netip.AddrPortFrom(e.Reply.Src, e.Reply.SrcPort)
			if e.Orig.Proto == unix.IPPROTO_TCP && asked != got && slices.Contains(to, asked) {
				found = append(found, e)
			}
		}))
	}
	freed := 0
	for _, e := range found {
		if err := t.In(e.Zone).Delete(e.Orig); err != nil {
			errs = append(errs, err)
			continue
		}
		freed++
	}
	return freed, errors.Join(errs...)
}
