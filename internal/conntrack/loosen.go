// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// LoosenAll lets windows of all TCP connections to and from some addresses be not looked at any
// more, but for those that are translated. It is for connections that the kernel saw begin, and
// whose packets then went by without it: what comes next would be invalid for it, and rules drop
// what is invalid, as kube-proxy's do.
func LoosenAll(of func(netip.Addr) bool) error {
	t, err := Open()
	if err != nil {
		return err
	}
	defer t.Close()
	var some Some
	for _, six := range []bool{false, true} {
		var all []Entry
		some.Add(t.Each(six, func(e Entry) {
			if e.Orig.Proto == unix.IPPROTO_TCP && !e.Translated() && (of(e.Orig.Src) || of(e.Orig.Dst)) {
				all = append(all, e)
			}
		}))
		for _, e := range all {
			some.Add(t.In(e.Zone).Loosen(e.Orig))
		}
	}
	return some.Err()
}
