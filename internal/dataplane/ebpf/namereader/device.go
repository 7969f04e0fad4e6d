// SPDX-License-Identifier: Apache-2.0

package namereader

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/kernel"
)

// device is a TAP device, by which packets come, and a socket by which they go on. It ends with the
// process that has it. The kernel names it, as the agent before may have its own still.
type device struct {
	fd, out int
	index   int
}

const (
	devicePattern = "weirdns%d"
	deviceMTU     = 65521 // what it gets was sent by other devices
)

func openDevice() (_ *device, err error) {
	d := &device{fd: -1, out: -1}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("opening /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(devicePattern)
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(d.fd, unix.TUNSETIFF, req); err != nil {
		return nil, fmt.Errorf("making a TAP device: %w", err)
	}
	link, err := netlink.LinkByName(req.Name())
	if err != nil {
		return nil, fmt.Errorf("looking for device %s: %w", req.Name(), err)
	}
	d.index = link.Attrs().Index
	if _, err := kernel.DisableIPv6(req.Name()); err != nil {
		return nil, err
	}
	if err := errors.Join(netlink.LinkSetAlias(link, kernel.DeviceAlias), netlink.LinkSetMTU(link, deviceMTU), netlink.LinkSetUp(link)); err != nil {
		return nil, fmt.Errorf("setting up device %s: %w", req.Name(), err)
	}
	if d.out, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w", err)
	}
	if err := unix.SetsockoptInt(d.out, unix.SOL_SOCKET, unix.SO_MARK, abi.MarkRead); err != nil {
		return nil, fmt.Errorf("marking what goes on to pods: %w", err)
	}
	return d, nil
}

func (d *device) close() {
	for _, fd := range []int{d.fd, d.out} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// wait waits until there is something to read, for so many milliseconds at most.
func (d *device) wait(ms int) error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}, ms)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// read reads a frame; 0 = there is none.
func (d *device) read(buf []byte) (int, error) {
	n, err := unix.Read(d.fd, buf)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return 0, nil
	}
	return n, err
}

// send sends a frame out of an interface.
func (d *device) send(frame []byte, ifindex int) error {
	to := unix.SockaddrLinklayer{Ifindex: ifindex, Halen: 6, Protocol: binary.NativeEndian.Uint16(frame[12:])}
	copy(to.Addr[:], frame[:6])
	for {
		if err := unix.Sendto(d.out, frame, 0, &to); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
