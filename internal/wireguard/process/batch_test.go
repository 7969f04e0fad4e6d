// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// valid reports whether the checksum of a datagram is right, word by word.
func valid(p []byte) bool {
	head, from := 20, 12
	if p[0]>>4 == 6 {
		head, from = 40, 8
	}
	s := uint32(17 + len(p) - head)
	for i := from; i < len(p); i += 2 {
		s += uint32(p[i]) << 8
		if i+1 < len(p) {
			s += uint32(p[i+1])
		}
		s = s&0xffff + s>>16
	}
	return s == 0xffff
}

// datagram is one of UDP without a checksum.
func datagram(six bool, payload []byte) []byte {
	udp := binary.BigEndian.AppendUint16([]byte{0x12, 0xb5, 0x12, 0xb5}, uint16(len(payload)+8))
	udp = append(append(udp, 0, 0), payload...)
	if six {
		p := append([]byte{0x60, 0, 0, 0, byte(len(udp) >> 8), byte(len(udp)), unix.IPPROTO_UDP, 64}, bytes.Repeat([]byte{0xfd, 1}, 16)...)
		return append(p, udp...)
	}
	n := len(udp) + 20
	p := []byte{0x45, 0, byte(n >> 8), byte(n), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}
	return append(p, udp...)
}

func TestChecksum(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 1500 {
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(r.Uint32())
		}
		for _, six := range []bool{false, true} {
			p := datagram(six, payload)
			before := bytes.Clone(p)
			addChecksum(p)
			head := len(p) - n - 8
			if !valid(p) || p[head+6] == 0 && p[head+7] == 0 {
				t.Fatalf("IPv6 %t, %d bytes: the checksum is %x", six, n, p[head+6:head+8])
			}
			p[head+6], p[head+7] = 0, 0
			if !bytes.Equal(p, before) {
				t.Fatalf("IPv6 %t, %d bytes: something else is changed", six, n)
			}
		}
	}
	// A sum that comes out as none is written as 0xffff, which is the same.
	zero := datagram(false, []byte{0, 0})
	addChecksum(zero)
	rest := ^binary.BigEndian.Uint16(zero[26:])
	binary.BigEndian.PutUint16(zero[28:], ^rest)
	zero[26], zero[27] = 0, 0
	if addChecksum(zero); zero[26] != 0xff || zero[27] != 0xff {
		t.Errorf("the checksum is %x", zero[26:28])
	}
}

// What is no datagram without a checksum stays as it is.
func TestChecksumOfOthers(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(p []byte, head int) []byte{
		"with a checksum": func(p []byte, head int) []byte { p[head+7] = 1; return p },
		"TCP": func(p []byte, _ int) []byte {
			p[map[byte]int{4: 9, 6: 6}[p[0]>>4]] = unix.IPPROTO_TCP
			return p
		},
		"another length":        func(p []byte, head int) []byte { p[head+5]++; return p },
		"cut":                   func(p []byte, _ int) []byte { return p[:len(p)-1] },
		"a head":                func(p []byte, head int) []byte { return p[:head+4] },
		"nothing":               func(p []byte, _ int) []byte { return p[:0] },
		"neither IPv4 nor IPv6": func(p []byte, _ int) []byte { p[0] = 0x55; return p },
	} {
		for _, six := range []bool{false, true} {
			p := datagram(six, []byte("payload"))
			p = change(p, len(p)-15)
			before := bytes.Clone(p)
			if addChecksum(p); !bytes.Equal(p, before) {
				t.Errorf("%s, IPv6 %t: %x is %x now", what, six, before, p)
			}
		}
	}
	fragment := datagram(false, []byte("payload"))
	fragment[6] = 0x20
	before := bytes.Clone(fragment)
	if addChecksum(fragment); !bytes.Equal(fragment, before) {
		t.Error("a fragment gets a checksum")
	}
}

// queue is a TUN device with packets in it: a pipe says whether there are any.
type queue struct {
	tun.Device
	r, w *os.File
	fail bool
}

func (q *queue) File() *os.File { return q.r }

func (q *queue) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	n, err := q.r.Read(bufs[0][offset : offset+1])
	if q.fail {
		return 0, errors.New("bad packet")
	}
	sizes[0] = n
	return n, err
}

func TestReadsWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ there, want, left int }{{1, 1, 0}, {5, 5, 0}, {200, 128 - room + 1, 200 - (128 - room + 1)}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		q := &queue{r: r, w: w}
		if _, err := w.Write(make([]byte, c.there)); err != nil {
			t.Fatal(err)
		}
		b, err := newBatched(q)
		if err != nil {
			t.Fatal(err)
		}
		bufs, sizes := make([][]byte, 128), make([]int, 128)
		for i := range bufs {
			bufs[i] = make([]byte, 16)
		}
		n, err := b.Read(bufs, sizes, 4)
		if err != nil || n != c.want {
			t.Errorf("%d packets: %d are read, %v", c.there, n, err)
		}
		for _, size := range sizes[:n] {
			if size != 1 {
				t.Errorf("%d packets: sizes %v", c.there, sizes[:n])
				break
			}
		}
		if b.more() != (c.left > 0) {
			t.Errorf("%d packets: some are left: %t", c.there, b.more())
		}
		// An error of the first read is that of the call.
		q.fail = true
		if _, err := w.Write([]byte{0}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(bufs, sizes, 4); err == nil {
			t.Error("an error is not passed on")
		}
		r.Close()
		w.Close()
	}
}
