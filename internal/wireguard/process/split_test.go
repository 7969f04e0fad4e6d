// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// segment is a packet of TCP with its checksums.
func segment(six bool, number uint16, seq uint32, flags byte, payload []byte) []byte {
	t := []byte{0x9c, 0x40, 0, 80, 0, 0, 0, 0, 1, 2, 3, 4, 0x80, flags, 1, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	binary.BigEndian.PutUint32(t[4:], seq)
	p := []byte{0x45, 0, 0, 0, byte(number >> 8), byte(number), 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	if six {
		p = append([]byte{0x60, 0, 0, 0, 0, 0, unix.IPPROTO_TCP, 64}, bytes.Repeat([]byte{0xfd, 2}, 16)...)
	}
	from := len(p)
	p = append(append(p, t...), payload...)
	setIP(p, len(p))
	binary.BigEndian.PutUint16(p[from+16:], ^fold(sum(pseudo(p, unix.IPPROTO_TCP, len(p)-from), p[from:])))
	return p
}

// wrap puts a packet into VXLAN.
func wrap(six bool, number uint16, inner []byte, csum bool) []byte {
	p := datagram(six, append([]byte{8, 0, 0, 0, 0, 16, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}, inner...))
	if !six {
		binary.BigEndian.PutUint16(p[4:], number)
		setIP(p, len(p))
	}
	if csum {
		addChecksum(p)
	}
	return p
}

func payload(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// cut returns what a splitter makes of a packet.
func cut(v vnet, p []byte) (out [][]byte, err error) {
	var s splitter
	if err := s.begin(v, p); err != nil {
		return nil, err
	}
	b := make([]byte, 1<<16)
	for s.left() {
		n, err := s.next(b)
		if err != nil {
			return out, err
		}
		out = append(out, bytes.Clone(b[:n]))
	}
	return out, nil
}

// A tunnel's packet is cut into the packets that its sender would have sent one by one.
func TestSplitsTunnels(t *testing.T) {
	t.Parallel()
	const size = 1001
	all := payload(5*size + 17)
	for _, outerSix := range []bool{false, true} {
		for _, innerSix := range []bool{false, true} {
			for _, csum := range []bool{false, true} {
				what := fmt.Sprintf("IPv6 outside %t, inside %t, outer checksum %t", outerSix, innerSix, csum)
				var want [][]byte
				for i := 0; i*size < len(all); i++ {
					flags, end := byte(0x10), min((i+1)*size, len(all))
					if end == len(all) {
						flags = 0x19
					}
					want = append(want, wrap(outerSix, 0xfffe+uint16(i), segment(innerSix, 0xfffd+uint16(i), 0xfffffff0+uint32(i*size), flags, all[i*size:end]), csum))
				}
				p := wrap(outerSix, 0xfffe, segment(innerSix, 0xfffd, 0xfffffff0, 0x19, all), csum)
				v := vnet{flags: unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, gso: unix.VIRTIO_NET_HDR_GSO_TCPV4 | gsoTunnel4, segment: size, csumOffset: 16, outer: 20}
				if innerSix {
					v.gso = unix.VIRTIO_NET_HDR_GSO_TCPV6 | gsoTunnel4
				}
				if outerSix {
					v.gso, v.outer = v.gso&^gsoTunnel4|gsoTunnel6, 40
				}
				if csum {
					v.flags |= flagTunnelCsum
				}
				v.inner = v.outer + 30
				v.csumStart = v.inner + ipHead(p[v.inner:])
				b := make([]byte, vnetLen)
				v.encode(b)
				var read vnet
				if err := read.decode(b); err != nil || read != v {
					t.Fatalf("%s: %+v is read as %+v, %v", what, v, read, err)
				}
				got, err := cut(read, p)
				if err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
					t.Errorf("%s: %d packets of %d, %v", what, len(got), len(want), err)
				}
			}
		}
	}
}

// The kernel may leave the checksum of a packet that is not cut.
func TestSplitsNothing(t *testing.T) {
	t.Parallel()
	for _, six := range []bool{false, true} {
		want := segment(six, 1, 2, 0x18, payload(99))
		p, head := bytes.Clone(want), len(want)-99-32
		binary.BigEndian.PutUint16(p[head+16:], fold(pseudo(p, unix.IPPROTO_TCP, len(p)-head)))
		got, err := cut(vnet{flags: unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, csumStart: head, csumOffset: 16}, p)
		if err != nil || len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Errorf("IPv6 %t: %x is %x, %v", six, want, got, err)
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(uint8(1), uint8(0x21), uint16(50), uint16(20), uint16(50), uint16(70), uint16(16), wrap(false, 1, segment(false, 1, 1, 0x10, payload(300)), true))
	f.Add(uint8(9), uint8(0x45), uint16(50), uint16(40), uint16(70), uint16(110), uint16(6), wrap(true, 1, segment(true, 1, 1, 0x10, payload(300)), true))
	f.Add(uint8(1), uint8(0), uint16(0), uint16(0), uint16(0), uint16(20), uint16(16), segment(false, 1, 1, 0x10, nil))
	f.Fuzz(func(t *testing.T, flags, gso uint8, size, outer, inner, start, offset uint16, p []byte) {
		v := vnet{flags: flags, gso: gso, segment: int(size), outer: int(outer), inner: int(inner), csumStart: int(start), csumOffset: int(offset)}
		out, err := cut(v, bytes.Clone(p))
		n := 0
		for _, o := range out {
			n += len(o)
		}
		if err == nil && n < len(p) {
			t.Errorf("%d bytes of %d are left", n, len(p))
		}
	})
}
