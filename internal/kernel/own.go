// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// OwnMark is the mark of the agent's own sockets towards the API server (MARK_OWN of bpf/abi.h),
// within OwnMask. No Service, policy, flow or routing rule of Weir applies to what has it: so an
// agent that finds wrong tables reaches the API, and repairs them. It is a mark of the node's
// network namespace alone: packets lose theirs when they leave a pod's.
const (
	OwnMark = 0x0be00000
	OwnMask = 0x0ff00000
)

// MarkOwn gives a socket OwnMark before it connects; it is a net.Dialer's Control. Without the
// right to (CAP_NET_ADMIN, since Linux 5.17 also CAP_NET_RAW, see socket(7) on SO_MARK) the socket
// stays as it is, and is treated as those of any other process of the node.
func MarkOwn(_, _ string, raw syscall.RawConn) error {
	var set error
	err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, OwnMark)
	})
	if errors.Is(set, unix.EPERM) {
		set = nil
	}
	if err = errors.Join(err, set); err != nil {
		return fmt.Errorf("marking a socket: %w", err)
	}
	return nil
}
