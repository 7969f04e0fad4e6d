// SPDX-License-Identifier: Apache-2.0

// Package bfd detects within a second that a router on the same link is gone (bidirectional
// forwarding detection: RFC 5880 in asynchronous mode, RFC 5881, single hop). Sessions are there
// for as long as somebody wants them: a BGP process while it has a BGP session with the router.
package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bfd"
	"golang.org/x/sys/unix"
)

const (
	// Port is where packets go to (RFC 5881, section 4), who sends has one of the ports from
	// firstSource on.
	Port        = 3784
	firstSource = 49152
	// hops is the TTL of packets: one that a router has handed on has less (section 5).
	hops = 255

	lengthMin = 24
	// Flags of a packet's second byte of which Weir uses none (RFC 5880, section 4.1).
	flagAuthentication = 0x04
	flagMultipoint     = 0x01
)

// Peer is a router to look at.
type Peer struct{ Addr, Source netip.Addr }

// Detector has the sessions of a node. It is safe for concurrent use.
type Detector struct {
	log    *slog.Logger
	failed func(peer netip.Addr, why string)

	mu       sync.Mutex
	sessions map[netip.Addr]*running
	sockets  map[bool]*net.UDPConn // that packets come to, by whether they are IPv6's
}

// running is a session with its socket and clocks. The detector's lock is held wherever it is used.
type running struct {
	*session
	peer    Peer
	conn    *net.UDPConn
	send    *time.Timer
	expires *time.Timer
	ended   bool
}

// New returns a Detector without sessions. failed is called, by a goroutine of its own, when a
// session was up and the router does not answer any more.
func New(log *slog.Logger, failed func(peer netip.Addr, why string)) *Detector {
	return &Detector{log: log, failed: failed, sessions: map[netip.Addr]*running{}, sockets: map[bool]*net.UDPConn{}}
}

// Set makes the sessions those with the peers. What cannot be done is returned; the rest is done.
func (d *Detector) Set(peers []Peer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	wanted, families := map[netip.Addr]Peer{}, map[bool]bool{}
	for _, p := range peers {
		wanted[p.Addr] = p
		families[p.Addr.Is6()] = true
	}
	for a, r := range d.sessions {
		if p, there := wanted[a]; !there || p != r.peer {
			d.end(r)
		}
	}
	var errs []error
	for six := range families {
		if d.sockets[six] == nil {
			if err := d.listen(six); err != nil {
				errs = append(errs, err)
			}
		}
	}
	for six, conn := range d.sockets {
		if !families[six] {
			conn.Close()
			delete(d.sockets, six)
		}
	}
	for a, p := range wanted {
		if d.sessions[a] == nil && d.sockets[a.Is6()] != nil {
			if err := d.begin(p); err != nil {
				errs = append(errs, fmt.Errorf("BFD with %s: %w", a, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Close ends all sessions.
func (d *Detector) Close() { _ = d.Set(nil) }

// State is up, init or down, or empty where there is no session.
func (d *Detector) State(peer netip.Addr) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.sessions[peer]; r != nil {
		return strings.ReplaceAll(r.state.String(), " ", "")
	}
	return ""
}

func network(six bool) string {
	if six {
		return "udp6"
	}
	return "udp4"
}

// listen begins to take packets of a family.
func (d *Detector) listen(six bool) error {
	level, option := unix.IPPROTO_IP, unix.IP_RECVTTL
	if six {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT
	}
	conn, err := net.ListenUDP(network(six), &net.UDPAddr{Port: Port})
	if err == nil {
		if err = setOption(conn, level, option, 1); err != nil {
			conn.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("listening for BFD: %w", err)
	}
	d.sockets[six] = conn
	go d.receive(conn)
	return nil
}

func setOption(conn *net.UDPConn, level, option, value int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, value) })
	return errors.Join(err, failed)
}

// receive takes packets until the socket is closed.
func (d *Detector) receive(conn *net.UDPConn) {
	buf, control := make([]byte, 256), make([]byte, 128)
	for {
		n, nc, _, from, err := conn.ReadMsgUDPAddrPort(buf, control)
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			time.Sleep(time.Millisecond) // an error of the network: others come
			continue
		}
		if hopsOf(control[:nc]) != hops || n < lengthMin || buf[1]&(flagAuthentication|flagMultipoint) != 0 || int(buf[3]) > n {
			continue
		}
		var p bfd.BFDHeader
		if p.UnmarshalBinary(buf[:n]) == nil {
			d.take(from.Addr().Unmap().WithZone(""), &p)
		}
	}
}

// hopsOf is the TTL or hop limit that a packet had; 0 = it is not known.
func hopsOf(control []byte) int {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		isTTL := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TTL || m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT
		if isTTL && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}

// take is called for a packet of an address.
func (d *Detector) take(from netip.Addr, p *bfd.BFDHeader) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.sessions[from]
	if r == nil || !r.accepts(p) {
		return
	}
	was := r.state
	if r.session.receive(p) {
		d.fail(r, "the router has lost the session of BFD")
	}
	if r.state == bfd.StateDown {
		r.expires.Stop()
	} else {
		r.expires.Reset(r.detection)
	}
	if p.Poll {
		r.write(r.packet(true))
	}
	if r.state != was {
		d.log.Info("BFD", "peer", from, "state", r.state.String())
		d.tick(r)
	}
}

func (d *Detector) fail(r *running, why string) {
	d.log.Warn("a router does not answer any more", "peer", r.peer.Addr, "because", why)
	go d.failed(r.peer.Addr, why)
}

func (d *Detector) begin(p Peer) error {
	conn, err := dial(p)
	if err != nil {
		return err
	}
	r := &running{session: newSession(), peer: p, conn: conn}
	r.send = time.AfterFunc(0, func() { d.locked(r, d.tick) })
	r.expires = time.AfterFunc(time.Hour, func() {
		d.locked(r, func(r *running) {
			if r.expire() {
				d.fail(r, fmt.Sprintf("nothing came for %s (BFD)", r.detection))
			}
		})
	})
	r.expires.Stop()
	d.sessions[p.Addr] = r
	return nil
}

// locked calls f with the lock held, unless the session has ended.
func (d *Detector) locked(r *running, f func(*running)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !r.ended {
		f(r)
	}
}

// tick sends a packet, and sets the clock for the next one.
func (d *Detector) tick(r *running) {
	r.write(r.packet(false))
	if next := r.next(); next > 0 {
		r.send.Reset(next)
	} else {
		r.send.Stop()
	}
}

// end ends a session, of which the router hears that this is on purpose (RFC 5880, section 6.8.16).
// BIRD 2.0 and FRR 8.4 take it for a failure all the same: a process that is to be replaced, whose
// routes peers should keep, says nothing.
func (d *Detector) end(r *running) {
	r.ended = true
	r.send.Stop()
	r.expires.Stop()
	r.state, r.diagnostic, r.polling = bfd.StateAdminDown, bfd.DiagnosticAdministrativelyDown, false
	for range 3 {
		r.write(r.packet(false))
	}
	r.conn.Close()
	delete(d.sessions, r.peer.Addr)
}

// write sends a packet. One that is not sent is as one that is lost on its way.
func (r *running) write(p *bfd.BFDHeader) {
	if data, err := p.MarshalBinary(); err == nil {
		_, _ = r.conn.Write(data)
	}
}

// dial makes the socket that a session sends from: its port is its own.
func dial(p Peer) (*net.UDPConn, error) {
	six := p.Addr.Is6()
	level, option := unix.IPPROTO_IP, unix.IP_TTL
	if six {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	var last error
	for range 20 {
		local := &net.UDPAddr{Port: firstSource + rand.IntN(1<<16-firstSource)}
		if p.Source.IsValid() {
			local.IP = p.Source.AsSlice()
		}
		conn, err := net.DialUDP(network(six), local, net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Addr, Port)))
		if err == nil {
			if err = setOption(conn, level, option, hops); err == nil {
				return conn, nil
			}
			conn.Close()
		}
		if last = err; !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, last
}
