// SPDX-License-Identifier: Apache-2.0

package process

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// batched is a TUN device that hands on many packets at a time. Those of a tunnel come from the
// kernel one by one, even where one TCP connection sends all of them: wireguard-go would encrypt
// and send each on its own.
type batched struct {
	tun.Device
	raw syscall.RawConn
}

// room is what has to be left for one more read: what may be cut into as many packets.
const room = 64

func newBatched(t tun.Device) (*batched, error) {
	raw, err := t.File().SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("reaching the TUN device: %w", err)
	}
	return &batched{Device: t, raw: raw}, nil
}

// Read waits for a packet, and takes those that have come with it.
func (b *batched) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	n, err := b.Device.Read(bufs, sizes, offset)
	for err == nil && n > 0 && len(bufs)-n >= room && b.more() {
		var k int
		// Who reads is alone: what is there does not go before it is read.
		if k, err = b.Device.Read(bufs[n:], sizes[n:], offset); err != nil {
			return n, nil // the next call meets it, too, or it was that packet's
		}
		n += k
	}
	return n, err
}

// more reports whether there is a packet.
func (b *batched) more() (is bool) {
	err := b.raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		is = err == nil && n == 1 && p[0].Revents == unix.POLLIN
	})
	return err == nil && is
}

// Write gives the kernel packets that have come. Those of a tunnel have no checksum, by which
// wireguard-go takes them for damaged and does not put them together: they get one.
func (b *batched) Write(bufs [][]byte, offset int) (int, error) {
	if len(bufs) > 1 {
		for _, p := range bufs {
			addChecksum(p[offset:])
		}
	}
	return b.Device.Write(bufs, offset)
}

// addChecksum gives a UDP datagram its checksum where it has none.
func addChecksum(p []byte) {
	head, from := 0, 0
	switch {
	case len(p) >= 28 && p[0] == 0x45 && p[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[6:])&0x3fff == 0 && int(binary.BigEndian.Uint16(p[2:])) == len(p):
		head, from = 20, 12
	case len(p) >= 48 && p[0]>>4 == 6 && p[6] == unix.IPPROTO_UDP && int(binary.BigEndian.Uint16(p[4:]))+40 == len(p):
		head, from = 40, 8
	default:
		return
	}
	udp := p[head:]
	if int(binary.BigEndian.Uint16(udp[4:])) != len(udp) || udp[6] != 0 || udp[7] != 0 {
		return
	}
	s := sum(uint64(unix.IPPROTO_UDP)+uint64(len(udp)), p[from:])
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	if s = ^s & 0xffff; s == 0 {
		s = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], uint16(s))
}

// sum adds the 16-bit words of b to s, of a packet: the sum has room for all of them.
func sum(s uint64, b []byte) uint64 {
	for len(b) >= 8 {
		v := binary.BigEndian.Uint64(b)
		s += v>>32 + v&0xffffffff
		b = b[8:]
	}
	for len(b) >= 2 {
		s += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}
