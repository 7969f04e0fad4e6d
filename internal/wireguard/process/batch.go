// SPDX-License-Identifier: Apache-2.0

package process

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// batched is a TUN device that hands on many packets at a time. Those of a tunnel come from kernels
// before Linux 6.17 (tunnelled) one by one, even where one TCP connection sends all of them:
// wireguard-go would encrypt and send each on its own.
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
	head := 0
	switch {
	case len(p) >= 28 && p[0] == 0x45 && p[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[6:])&0x3fff == 0 && int(binary.BigEndian.Uint16(p[2:])) == len(p):
		head = 20
	case len(p) >= 48 && p[0]>>4 == 6 && p[6] == unix.IPPROTO_UDP && int(binary.BigEndian.Uint16(p[4:]))+40 == len(p):
		head = 40
	default:
		return
	}
	udp := p[head:]
	if int(binary.BigEndian.Uint16(udp[4:])) != len(udp) || udp[6] != 0 || udp[7] != 0 {
		return
	}
	setUDPSum(p, udp)
}

// sum adds the 16-bit words of b to s, modulo 1<<16 - 1 (RFC 1071).
func sum(s uint64, b []byte) uint64 {
	var c uint64
	for len(b) >= 32 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), 0)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[8:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[16:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[24:]), c)
		s, c = bits.Add64(s, 0, c)
		s += c
		b = b[32:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), 0)
		s, c = bits.Add64(s, 0, c)
		s += c
		b = b[8:]
	}
	var last [8]byte
	copy(last[:], b)
	s, c = bits.Add64(s, binary.BigEndian.Uint64(last[:]), 0)
	return s + c
}
