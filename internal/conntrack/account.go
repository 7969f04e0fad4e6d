// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/kernel"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h and nfnetlink_compat.h that package nl has not.
const (
	ctaID                               = 12
	ctaTimestamp                        = 20
	ctaTimestampStart, ctaTimestampStop = 1, 2

	msgGetZero   = 3 // IPCTNL_MSG_CT_GET_CTRZERO
	groupDestroy = 3 // NFNLGRP_CONNTRACK_DESTROY
)

// Carried is what one direction of a connection carried; bytes are of IP packets.
type Carried struct{ Packets, Bytes uint64 }

// Accounted is a connection with what it carried since it was asked for last.
type Accounted struct {
	Entry
	Sent, Received Carried // of the original direction, of the answers
	// Started and Stopped are zero where the kernel has no time stamps, or had none at that time.
	Started, Stopped time.Time
	// ID is the kernel's number of the connection, as rules of nftables know it (ct id).
	ID uint32
}

// Account has the kernel count packets and bytes of connections that begin, and note when they do,
// in this network namespace (nf_conntrack_acct, nf_conntrack_timestamp).
func Account() error {
	_, err1 := kernel.SetSysctl(1, "net", "netfilter", "nf_conntrack_acct")
	_, err2 := kernel.SetSysctl(1, "net", "netfilter", "nf_conntrack_timestamp")
	return errors.Join(err1, err2)
}

// TakeCounters hands on every connection of a family with its counters, and sets these to 0 in the
// same step.
func (t *Table) TakeCounters(six bool, f func(Accounted)) error {
	return dump(t, msgGetZero, six, decodeAccounted, f)
}

// decodeAccounted is decode, with the counters and the time stamps.
func decodeAccounted(msg []byte) (a Accounted, err error) {
	if a.Entry, err = decode(msg); err != nil {
		return a, err
	}
	err = each(msg[nl.SizeofNfgenmsg:], func(kind uint16, data []byte) error {
		switch kind {
		case nl.CTA_COUNTERS_ORIG:
			return a.Sent.decode(data)
		case nl.CTA_COUNTERS_REPLY:
			return a.Received.decode(data)
		case ctaID:
			if len(data) < 4 {
				return errShort
			}
			a.ID = binary.NativeEndian.Uint32(data)
		case ctaTimestamp:
			return each(data, func(kind uint16, data []byte) error {
				if len(data) < 8 {
					return errShort
				}
				at := time.Unix(0, int64(binary.BigEndian.Uint64(data)))
				switch kind {
				case ctaTimestampStart:
					a.Started = at
				case ctaTimestampStop:
					a.Stopped = at
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return a, fmt.Errorf("reading what a tracked connection carried: %w", err)
	}
	return a, nil
}

func (c *Carried) decode(b []byte) error {
	return each(b, func(kind uint16, data []byte) error {
		if len(data) < 8 {
			return errShort
		}
		switch kind {
		case nl.CTA_COUNTERS_PACKETS:
			c.Packets = binary.BigEndian.Uint64(data)
		case nl.CTA_COUNTERS_BYTES:
			c.Bytes = binary.BigEndian.Uint64(data)
		}
		return nil
	})
}

const (
	// destroyedRoom is how much of what ended waits to be read: bytes of the socket, some 20,000
	// connections.
	destroyedRoom = 16 << 20
	// destroyedMost is how many datagrams are read at once: what comes meanwhile is read later.
	destroyedMost = 1 << 15
)

// Destroyed tells of connections that the kernel forgets. It is for one goroutine.
type Destroyed struct {
	fd  int
	buf []byte
}

// WatchDestroyed begins to tell, of the network namespace in which it is called.
func WatchDestroyed() (*Destroyed, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a socket for connections that end: %w", err)
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, destroyedRoom),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (groupDestroy - 1)}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening for connections that end: %w", err), unix.Close(fd))
	}
	return &Destroyed{fd, make([]byte, 64<<10)}, nil
}

// Close ends it.
func (d *Destroyed) Close() error { return unix.Close(d.fd) }

// Each hands on what ended since it was called last, and does not wait. lost says that there was no
// room for some: how many is not known.
func (d *Destroyed) Each(f func(Accounted)) (lost bool, err error) {
	var errs []error
	for range destroyedMost {
		n, from, err := unix.Recvfrom(d.fd, d.buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return lost, errors.Join(errs...)
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			lost = true
			continue
		case err != nil:
			return lost, errors.Join(append(errs, fmt.Errorf("reading connections that ended: %w", err))...)
		}
		if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != 0 {
			continue // not of the kernel
		}
		if err := messages(d.buf[:n], f); err != nil && len(errs) < 3 {
			errs = append(errs, err)
		}
	}
	return lost, errors.Join(errs...)
}

// messages hands on the connections of a datagram of netlink.
func messages(b []byte, f func(Accounted)) error {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return errShort
		}
		if binary.NativeEndian.Uint16(b[4:]) == unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_DELETE {
			e, err := decodeAccounted(b[unix.SizeofNlMsghdr:size])
			if err != nil {
				return err
			}
			f(e)
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}
