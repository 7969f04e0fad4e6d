// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"

	"golang.org/x/sys/unix"
)

// LacksNFTables reports whether a kernel's answer to a question about tables says that it has no
// nftables: no netlink family, or no such part of it (nfnetlink_rcv_msg).
func LacksNFTables(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}
