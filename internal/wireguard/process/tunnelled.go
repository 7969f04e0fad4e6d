// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// tunnelled is a TUN device that is given what a TCP connection in a tunnel sends up to 64 KiB at a
// time, as wireguard-go's is for one without a tunnel (Linux 6.17). The other way the kernel gets
// a tunnel's packets as datagrams, many at a time: it refuses them as a tunnel's, as up to Linux
// 6.18 it wants to see an Ethernet header before them, which TUN has not.
type tunnelled struct {
	*batched
	rest   splitter
	in     []byte
	write  coalescer
	closed atomic.Bool // what is read has another struct before it
}

// newTunnelled returns errors.ErrUnsupported where the kernel does not hand over packets of tunnels
// at once; the device is then as wireguard-go has it.
func newTunnelled(b *batched) (*tunnelled, error) {
	if err := b.offloads(vnetLen, tunUDPTunnelGSO|tunUDPTunnelGSOCsum); err != nil {
		if errors.Is(err, unix.EINVAL) {
			err = errors.ErrUnsupported
		}
		return nil, errors.Join(err, b.offloads(plainVnetLen, 0))
	}
	return &tunnelled{batched: b, in: make([]byte, vnetLen+0xffff)}, nil
}

// offloads sets the length of the struct before packets, and what the kernel may leave to us
// besides what wireguard-go takes.
func (b *batched) offloads(length, more int) error {
	var set error
	err := b.raw.Control(func(fd uintptr) {
		if set = unix.IoctlSetPointerInt(int(fd), unix.TUNSETVNETHDRSZ, length); set != nil {
			return
		}
		const plain = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
		set = unix.IoctlSetInt(int(fd), unix.TUNSETOFFLOAD, plain|unix.TUN_F_USO4|unix.TUN_F_USO6|more)
		if set != nil && more == 0 { // before Linux 6.2
			set = unix.IoctlSetInt(int(fd), unix.TUNSETOFFLOAD, plain)
		}
	})
	if err = errors.Join(err, set); err != nil {
		return fmt.Errorf("setting what the TUN device hands over at once: %w", err)
	}
	return nil
}

// Close leaves the device, which outlives the process, as an earlier version takes it over.
func (t *tunnelled) Close() error {
	t.closed.Store(true)
	return errors.Join(ignoreGone(t.offloads(plainVnetLen, 0)), t.batched.Close())
}

// ignoreGone is err unless the device was deleted, or closed before.
func ignoreGone(err error) error {
	if errors.Is(err, unix.EBADFD) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Read waits for a packet, and takes those that have come with it. One that is cut into more than
// there is room for goes on with the next call.
func (t *tunnelled) Read(bufs [][]byte, sizes []int, offset int) (n int, err error) {
	for n < len(bufs) {
		if !t.rest.left() {
			if n > 0 && !t.more() {
				break
			}
			k, err := t.File().Read(t.in)
			if t.closed.Load() {
				err = os.ErrClosed
			}
			if err != nil {
				if errors.Is(err, syscall.EBADFD) {
					err = os.ErrClosed
				}
				if n > 0 {
					break // the next call meets it, too
				}
				return 0, err
			}
			var v vnet
			if err := v.decode(t.in[:k]); err != nil {
				continue
			}
			// What is no packet is lost; an error would end the device.
			if err := t.rest.begin(v, t.in[vnetLen:k]); err != nil {
				continue
			}
		}
		if k, err := t.rest.next(bufs[n][offset:]); err == nil {
			sizes[n] = k
			n++
		}
	}
	return n, nil
}

// Write gives the kernel packets that have come.
func (t *tunnelled) Write(bufs [][]byte, offset int) (int, error) {
	defer t.write.reset()
	for _, b := range bufs {
		if len(bufs) > 1 {
			addChecksum(b[offset:])
		}
		t.write.add(b[offset:])
	}
	var errs error
	total := 0
	for i := range t.write.piles[:t.write.n] {
		iov, n := t.write.render(&t.write.piles[i]), 0
		var err error
		if ctl := t.raw.Write(func(fd uintptr) bool {
			n, err = unix.Writev(int(fd), iov)
			return !errors.Is(err, unix.EAGAIN)
		}); ctl != nil {
			return total, ctl
		}
		if errors.Is(err, unix.EBADFD) {
			return total, os.ErrClosed
		}
		errs = errors.Join(errs, err)
		total += max(n, 0)
	}
	return total, errs
}

var _ tun.Device = (*tunnelled)(nil)
