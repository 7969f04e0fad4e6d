// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/packet"
)

// capture sees what comes in at the interfaces of a namespace: the fragments that a program sends
// in again.
type capture struct{ fd int }

// newCapture listens. Call it inside of the namespace.
func newCapture() (*capture, error) {
	all := uint16(unix.ETH_P_ALL)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all<<8|all>>8))
	if err != nil {
		return nil, fmt.Errorf("listen to frames: %w", err)
	}
	return &capture{fd}, nil
}

func (c *capture) close() error { return unix.Close(c.fd) }

// read returns the next frame that came in at an interface, nil when there is none yet.
func (c *capture) read(ifindex int) ([]byte, error) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(c.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read a frame: %w", err)
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Ifindex == ifindex && l.Pkttype != unix.PACKET_OUTGOING {
			return buf[:n], nil
		}
	}
}

// drain forgets what came in until now.
func (c *capture) drain() error {
	for {
		if frame, err := c.read(-1); frame == nil || err != nil {
			return err
		}
	}
}

// frames waits for n fragments that come in at an interface.
func (c *capture) frames(ifindex, n int) ([]*packet.Packet, error) {
	var out []*packet.Packet
	for end := time.Now().Add(2 * time.Second); len(out) < n; {
		frame, err := c.read(ifindex)
		if err != nil {
			return nil, err
		}
		if frame == nil {
			if time.Now().After(end) {
				return nil, fmt.Errorf("%d of %d frames came in again", len(out), n)
			}
			time.Sleep(50 * time.Microsecond)
			continue
		}
		p, err := packet.Unmarshal(frame)
		if err != nil {
			return nil, err
		}
		if p.Fragment() {
			out = append(out, p)
		}
	}
	return out, nil
}
