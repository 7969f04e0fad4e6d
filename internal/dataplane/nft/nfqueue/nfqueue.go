// SPDX-License-Identifier: Apache-2.0

// Package nfqueue reads packets that rules lead to a queue of netfilter (nfnetlink_queue), and lets
// them go on. Nothing waits for a reader that is not there: rules have to bypass an empty queue, and
// one that is full lets packets pass. Verdicts are given for all packets up to one, so that a
// reader takes several, does what it does for all of them at once, and lets them go on together.
package nfqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Packet is one that waits, from its IP header on. Data is the buffer's that it was read into.
type Packet struct {
	ID   uint32
	Data []byte
}

// Queue is a queue of this process. It is for one goroutine.
type Queue struct {
	fd  int
	num uint16
	seq uint32
}

// linux/netfilter/nfnetlink_queue.h
const (
	msgPacket, msgConfig, msgVerdicts = 0, 2, 3

	configCommand, configParams, configMaxLen, configMask, configFlags = 1, 2, 3, 4, 5

	commandBind, copyPacket = 1, 2
	failOpen, wholeGSO      = 1, 4

	attrHeader, attrVerdict, attrPayload = 1, 2, 10
)

// bytesWaiting bounds what the kernel keeps for the socket.
const bytesWaiting = 4 << 20

// Open takes a queue of the network namespace, in which so many packets wait at most. It fails where
// somebody else has the queue.
func Open(num uint16, waiting uint32) (_ *Queue, err error) {
	q := &Queue{num: num}
	if q.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER); err != nil {
		return nil, fmt.Errorf("opening a socket of netfilter: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(q.fd)
		}
	}()
	if err := errors.Join(unix.Bind(q.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytesWaiting),
		unix.SetsockoptInt(q.fd, unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 1)); err != nil {
		return nil, fmt.Errorf("setting up a socket of netfilter: %w", err)
	}
	be := binary.BigEndian
	params := append(be.AppendUint32(nil, 0xffff), copyPacket)
	for _, attrs := range [][]*nl.RtAttr{
		{nl.NewRtAttr(configCommand, []byte{commandBind, 0, 0, 0})},
		{nl.NewRtAttr(configParams, params), nl.NewRtAttr(configMaxLen, be.AppendUint32(nil, waiting)),
			nl.NewRtAttr(configMask, be.AppendUint32(nil, failOpen|wholeGSO)), nl.NewRtAttr(configFlags, be.AppendUint32(nil, failOpen|wholeGSO))},
	} {
		if err := q.configure(attrs); err != nil {
			return nil, fmt.Errorf("taking queue %d of netfilter: %w", num, err)
		}
	}
	return q, nil
}

// Close gives the queue back. Packets that wait in it are lost.
func (q *Queue) Close() error { return unix.Close(q.fd) }

// send sends a message of the queue.
func (q *Queue) send(kind, flags uint16, attrs ...*nl.RtAttr) error {
	body := []byte{unix.AF_UNSPEC, 0}
	body = binary.BigEndian.AppendUint16(body, q.num)
	for _, a := range attrs {
		body = append(body, a.Serialize()...)
	}
	q.seq++
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_QUEUE<<8|kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, q.seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return unix.Sendto(q.fd, append(b, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// configure sends a request and waits for its answer: the first has no packets before it, and those
// that come before the answer to a later one are let go.
func (q *Queue) configure(attrs []*nl.RtAttr) error {
	if err := q.send(msgConfig, unix.NLM_F_ACK, attrs...); err != nil {
		return err
	}
	buf := make([]byte, 1<<17)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		if err := q.Wait(time.Second); err != nil {
			return err
		}
		n, _, err := unix.Recvfrom(q.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return err
		}
		for b := buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
			m, rest := message(b)
			if m == nil {
				break
			}
			if binary.NativeEndian.Uint16(m[4:]) == unix.NLMSG_ERROR && len(m) >= 20 && binary.NativeEndian.Uint32(m[8:]) == q.seq {
				if code := int32(binary.NativeEndian.Uint32(m[16:])); code != 0 {
					return unix.Errno(-code)
				}
				return nil
			}
			if p, ok := packet(m); ok {
				if err := q.AcceptTo(p.ID); err != nil {
					return err
				}
			}
			b = rest
		}
	}
	return errors.New("the kernel did not answer")
}

// message cuts the first message of netlink off; nil = there is none.
func message(b []byte) (m, rest []byte) {
	size := int(binary.NativeEndian.Uint32(b))
	if size < unix.SizeofNlMsghdr || size > len(b) {
		return nil, nil
	}
	return b[:size], b[min((size+3)&^3, len(b)):]
}

// packet reads a message about a packet.
func packet(m []byte) (p Packet, ok bool) {
	if binary.NativeEndian.Uint16(m[4:]) != unix.NFNL_SUBSYS_QUEUE<<8|msgPacket || len(m) < unix.SizeofNlMsghdr+nl.SizeofNfgenmsg {
		return p, false
	}
	for b := m[unix.SizeofNlMsghdr+nl.SizeofNfgenmsg:]; len(b) >= 4; {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])&0x3fff
		if size < 4 || size > len(b) {
			break
		}
		switch value := b[4:size]; {
		case kind == attrHeader && len(value) >= 4:
			p.ID, ok = binary.BigEndian.Uint32(value), true
		case kind == attrPayload:
			p.Data = value
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return p, ok
}

// Wait waits until there may be something to read, for so long at most.
func (q *Queue) Wait(most time.Duration) error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(q.fd), Events: unix.POLLIN}}, int(most/time.Millisecond))
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// Read reads a packet into a buffer, and does not wait. ok = there was something; a packet without
// data has none that could be read.
func (q *Queue) Read(buf []byte) (p Packet, ok bool, err error) {
	n, _, err := unix.Recvfrom(q.fd, buf, 0)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return p, false, nil
	}
	if err != nil {
		return p, false, fmt.Errorf("reading queue %d of netfilter: %w", q.num, err)
	}
	if n < unix.SizeofNlMsghdr {
		return p, true, nil
	}
	m, _ := message(buf[:n]) // the kernel sends one packet in a message
	if m == nil {
		return p, true, nil
	}
	p, _ = packet(m)
	return p, true, nil
}

// AcceptTo lets all packets that were read go on, up to one and with it.
func (q *Queue) AcceptTo(id uint32) error {
	const accept = 1
	v := binary.BigEndian.AppendUint32(nil, accept)
	if err := q.send(msgVerdicts, 0, nl.NewRtAttr(attrVerdict, binary.BigEndian.AppendUint32(v, id))); err != nil {
		return fmt.Errorf("letting packets of queue %d of netfilter go on: %w", q.num, err)
	}
	return nil
}
