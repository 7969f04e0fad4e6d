// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nfnetlink.h and nfnetlink_log.h.
const (
	nflogSubsystem = 4 << 8
	nflogPacket    = nflogSubsystem
	nflogConfig    = nflogSubsystem | 1

	nflogConfigCommand   = 1
	nflogConfigMode      = 2
	nflogConfigThreshold = 5
	nflogBind            = 1
	nflogCopyPacket      = 2

	nflogAttrHeader  = 1
	nflogAttrMark    = 2
	nflogAttrIn      = 4
	nflogAttrOut     = 5
	nflogAttrPayload = 9
	nflogAttrPrefix  = 10
)

// Logged is a packet that a log statement of netfilter handed over.
type Logged struct {
	Prefix  string
	Hook    uint8  // enum nf_inet_hooks: 0 prerouting, 1 input, 2 forward, 3 output, 4 postrouting
	Mark    uint32 // of the packet
	In, Out int    // interface indexes, 0 = none
	Packet  []byte // from its IP header on, as much as was asked for
}

// PacketLog receives what the log statements of one group hand over in one network namespace.
type PacketLog struct {
	fd  int
	buf []byte
	got []Logged // read and not handed on yet
}

// OpenPacketLog listens to a group of the calling thread's network namespace; each packet is handed
// over at once, with at most the given number of bytes. One socket of a namespace can have a group.
func OpenPacketLog(group uint16, bytes uint32) (*PacketLog, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a socket for logged packets: %w", err)
	}
	l := &PacketLog{fd: fd, buf: make([]byte, 1<<18)}
	// A larger buffer is better, and not needed.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20)
	mode := append(binary.BigEndian.AppendUint32(nil, bytes), nflogCopyPacket, 0)
	for _, attr := range [][]byte{
		netlinkAttr(nflogConfigCommand, []byte{nflogBind}),
		netlinkAttr(nflogConfigMode, mode),
		netlinkAttr(nflogConfigThreshold, binary.BigEndian.AppendUint32(nil, 1)),
	} {
		if err := l.configure(group, attr); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("listen to packets that are logged to group %d: %w", group, err)
		}
	}
	return l, nil
}

// configure sends one request and reads its acknowledgement. Packets that come in between are kept.
func (l *PacketLog) configure(group uint16, attr []byte) error {
	m := make([]byte, unix.NLMSG_HDRLEN, 64)
	m = append(m, unix.AF_UNSPEC, 0)
	m = binary.BigEndian.AppendUint16(m, group)
	m = append(m, attr...)
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint16(m[4:], nflogConfig)
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := unix.Sendto(l.fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		answered, err := l.receive()
		if answered || err != nil && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}

// Close ends it.
func (l *PacketLog) Close() error { return unix.Close(l.fd) }

// Fd is for poll: it is readable when Waiting has something to return.
func (l *PacketLog) Fd() int { return l.fd }

// Waiting returns what was logged and not read yet, without waiting for more. The error is
// unix.ENOBUFS where the kernel had to drop some.
func (l *PacketLog) Waiting() ([]Logged, error) {
	for {
		_, err := l.receive()
		if errors.Is(err, unix.EAGAIN) {
			got := l.got
			l.got = nil
			return got, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("read logged packets: %w", err)
		}
	}
}

// receive reads one datagram. answered: it held the acknowledgement of a request, whose error is
// returned.
func (l *PacketLog) receive() (answered bool, _ error) {
	n, _, err := unix.Recvfrom(l.fd, l.buf, 0)
	if err != nil {
		return false, err
	}
	for b := l.buf[:n]; len(b) >= unix.NLMSG_HDRLEN; {
		size, kind := int(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint16(b[4:])
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return answered, errors.New("a netlink message of a wrong length")
		}
		body := b[unix.NLMSG_HDRLEN:size]
		switch {
		case kind == unix.NLMSG_ERROR && len(body) >= 4:
			answered = true
			if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
				err = unix.Errno(-code)
			}
		case kind == nflogPacket && len(body) >= 4:
			l.got = append(l.got, logged(body[4:]))
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return answered, err
}

// logged reads the attributes of a packet.
func logged(b []byte) Logged {
	var p Logged
	number := func(v []byte) int {
		if len(v) < 4 {
			return 0
		}
		return int(binary.BigEndian.Uint32(v))
	}
	for len(b) >= 4 {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])&0x3fff
		if size < 4 || size > len(b) {
			break
		}
		v := b[4:size]
		switch kind {
		case nflogAttrHeader:
			if len(v) > 2 {
				p.Hook = v[2]
			}
		case nflogAttrMark:
			p.Mark = uint32(number(v))
		case nflogAttrIn:
			p.In = number(v)
		case nflogAttrOut:
			p.Out = number(v)
		case nflogAttrPayload:
			p.Packet = bytes.Clone(v)
		case nflogAttrPrefix:
			p.Prefix = string(bytes.TrimRight(v, "\x00"))
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return p
}

func netlinkAttr(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}
