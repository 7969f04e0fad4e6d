// SPDX-License-Identifier: Apache-2.0

package wires

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// etherMarker is the EtherType of our own frames (IEEE 802, for local experiments).
const etherMarker = 0x88b5

// steps is how often a marker goes round: a packet is queued at most as often on its way through a
// node (uplink, tunnel, and the interface that it leaves by, each with a queue of its own), and one
// queue is worked off with each round.
const steps = 4

// frame is what came out of a node.
type frame struct {
	far  int // interface of the far namespace
	data []byte
}

// port sends and receives frames on all interfaces of a far namespace.
type port struct {
	fd     int
	buf    []byte
	marker uint64
	fence  [2]int // a pair of interfaces of its own, both ends here
}

// newPort opens it. Call it inside of the far namespace.
func newPort(fence [2]int) (*port, error) {
	all := uint16(unix.ETH_P_ALL)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all<<8|all>>8))
	if err != nil {
		return nil, fmt.Errorf("open a socket for frames: %w", err)
	}
	p := &port{fd: fd, buf: make([]byte, 1<<17), fence: fence}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("leave out the own frames: %w", err)
	}
	return p, nil
}

func (p *port) close() error { return unix.Close(p.fd) }

// send sends a frame out of an interface of the far namespace.
func (p *port) send(far int, data []byte) error {
	if err := unix.Sendto(p.fd, data, 0, &unix.SockaddrLinklayer{Ifindex: far}); err != nil {
		return fmt.Errorf("send a frame: %w", err)
	}
	return nil
}

// drain returns all that came out until now of what was sent from this CPU.
func (p *port) drain() ([]frame, error) {
	var out []frame
	for range steps {
		p.marker++
		m := make([]byte, 60)
		binary.BigEndian.PutUint16(m[12:], etherMarker)
		binary.BigEndian.PutUint64(m[14:], p.marker)
		if err := p.send(p.fence[0], m); err != nil {
			return out, err
		}
		got, err := p.until(p.marker)
		if out = append(out, got...); err != nil {
			return out, err
		}
	}
	return out, nil
}

// until reads frames until a marker came.
func (p *port) until(marker uint64) ([]frame, error) {
	var out []frame
	deadline := time.Now().Add(2 * time.Minute) // only a failure takes so long
	for time.Now().Before(deadline) {
		n, from, err := unix.Recvfrom(p.fd, p.buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 1000); err != nil && !errors.Is(err, unix.EINTR) {
				return out, fmt.Errorf("wait for a frame: %w", err)
			}
			continue
		case err != nil:
			return out, fmt.Errorf("read a frame: %w", err)
		}
		l, ok := from.(*unix.SockaddrLinklayer)
		if !ok || n < 14 {
			continue
		}
		if binary.BigEndian.Uint16(p.buf[12:]) == etherMarker {
			if l.Ifindex == p.fence[1] && binary.BigEndian.Uint64(p.buf[14:]) == marker {
				return out, nil
			}
			continue
		}
		out = append(out, frame{l.Ifindex, append([]byte{}, p.buf[:n]...)})
	}
	return out, errors.New("a marker did not come through: frames are lost")
}

// asks returns whose MAC address a frame asks for: an ARP request, or a neighbour solicitation.
func asks(b []byte) (netip.Addr, bool) {
	switch {
	case len(b) >= 42 && binary.BigEndian.Uint16(b[12:]) == 0x0806 && binary.BigEndian.Uint16(b[20:]) == 1:
		return netip.AddrFrom4([4]byte(b[38:42])), true
	case len(b) >= 78 && binary.BigEndian.Uint16(b[12:]) == 0x86dd && b[20] == 58 && b[54] == 135:
		return netip.AddrFrom16([16]byte(b[62:78])), true
	}
	return netip.Addr{}, false
}

// answers: is a frame an answer of ARP?
func answers(b []byte) bool {
	return len(b) >= 42 && binary.BigEndian.Uint16(b[12:]) == 0x0806 && binary.BigEndian.Uint16(b[20:]) == 2
}

// chatter: is a frame something that a kernel says by itself, which no packet of a scenario is?
func chatter(b []byte) bool {
	switch binary.BigEndian.Uint16(b[12:]) {
	case 0x0800:
		return len(b) >= 34 && b[23] == 2 // IGMP
	case 0x86dd:
		if len(b) < 55 {
			return false
		}
		next, at := b[20], 54
		if next == 0 && len(b) >= 63 { // reports of listeners have a router alert
			next, at = b[54], 62
		}
		return next == 58 && (b[at] >= 130 && b[at] <= 137 || b[at] == 143)
	}
	return true
}
