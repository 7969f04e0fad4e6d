// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpTries bounds how often a dump is repeated while the network's configuration keeps changing.
const dumpTries = 10

// Dump asks the kernel for a list by netlink, and again when it changed while it was read
// (NLM_F_DUMP_INTR): such a list may lack what was there all the time. On a node where pods come
// and go that is common.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	var out []T
	var err error
	for range dumpTries {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}
