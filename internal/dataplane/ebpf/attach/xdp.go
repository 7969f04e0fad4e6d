// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// attachXDP attaches in the driver where it can, in the stack's generic way where it cannot.
func attachXDP(s Site, prog *ebpf.Program) (attachment, error) {
	var errs []error
	for _, mode := range []link.XDPAttachFlags{link.XDPDriverMode, link.XDPGenericMode} {
		l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: s.Ifindex, Flags: mode})
		if err == nil {
			return BpfLink{Link: l}, nil
		}
		if errors.Is(err, unix.ENODEV) {
			return nil, ErrAbsent
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("attaching to XDP of interface %d: %w", s.Ifindex, errors.Join(errs...))
}
