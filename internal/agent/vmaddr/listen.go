// SPDX-License-Identifier: Apache-2.0

package vmaddr

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/model"
)

// A machine that was moved says so by its first frames: the guest by a gratuitous ARP and an
// unsolicited neighbour advertisement, where its driver is told (virtio's GUEST_ANNOUNCE), QEMU by
// a RARP request with the guest's MAC address.

// announced is a machine that is waited for.
type announced struct {
	of    model.Name
	mac   [6]byte // zero = not known
	addrs []netip.Addr
}

const (
	etherARP, etherRARP, etherIPv6 = unix.ETH_P_ARP, unix.ETH_P_RARP, unix.ETH_P_IPV6

	ethernetLen   = 14
	arpLen        = 28 // of Ethernet and IPv4
	ipv6Len       = 40
	advertisement = 136
	naLen         = 24
	rarpRequest   = 3
)

// onlyAnnouncements is the filter of the socket: what a guest sends otherwise wakes nobody up.
var onlyAnnouncements = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 12, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherARP, SkipTrue: 6},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherRARP, SkipTrue: 5},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherIPv6, SkipTrue: 5},
	bpf.LoadAbsolute{Off: ethernetLen + 6, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 3},
	bpf.LoadAbsolute{Off: ethernetLen + ipv6Len, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: advertisement, SkipTrue: 1},
	bpf.RetConstant{Val: 256},
	bpf.RetConstant{Val: 0},
}

// listen returns when the machine announced itself by an interface. It sees what comes in before
// the data plane does, which drops it: the address is not that interface's yet.
func (w announced) listen(ctx context.Context, ifindex int) error {
	f, err := open(ifindex)
	if err != nil {
		return fmt.Errorf("listen at interface %d: %w", ifindex, err)
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })()
	frame := make([]byte, 256)
	for {
		n, err := f.Read(frame)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENETDOWN):
		case err != nil:
			return fmt.Errorf("listen at interface %d: %w", ifindex, err)
		case w.by(frame[:n]):
			return nil
		}
	}
}

// open returns a socket that receives the announcements that come in by an interface.
func open(ifindex int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // 0: nothing before it is bound
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "announcements")
	raw, err := bpf.Assemble(onlyAnnouncements)
	if err == nil {
		filter := make([]unix.SockFilter, len(raw))
		for i, r := range raw {
			filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
		}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ifindex, Protocol: uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8})
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// by reports whether a frame announces the machine.
func (w announced) by(frame []byte) bool {
	if len(frame) < ethernetLen {
		return false
	}
	body := frame[ethernetLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherARP: // RFC 5227, section 3: sender and target are the address
		return len(body) >= arpLen && bytes.Equal(body[14:18], body[24:28]) && w.has(body[14:18])
	case etherRARP:
		return len(body) >= arpLen && binary.BigEndian.Uint16(body[6:]) == rarpRequest && (w.mac == [6]byte{} || bytes.Equal(body[8:14], w.mac[:]))
	case etherIPv6: // RFC 4861, section 7.2.6: not solicited, from the link
		if len(body) < ipv6Len+naLen || body[7] != 255 {
			return false
		}
		na := body[ipv6Len:]
		return na[0] == advertisement && na[4]&0x40 == 0 && w.has(na[8:24])
	}
	return false
}

func (w announced) has(addr []byte) bool {
	a, ok := netip.AddrFromSlice(addr)
	return ok && slices.Contains(w.addrs, a)
}
