// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/packet"
)

// fragmentSize is how much of a datagram sendReversed puts into one packet, bytes: what fits the
// tunnel too.
const fragmentSize = 1360

// echo starts a UDP server that sends back what it gets, when reversed as fragments whose last
// comes first.
func echo(r request) error {
	network := "udp4"
	if own, err := netip.ParseAddr(r.From); err == nil && own.Is6() {
		network = "udp6"
	}
	pc, err := net.ListenPacket(network, r.Addr)
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if !r.Reversed {
				pc.WriteTo(buf[:n], from)
				continue
			}
			own, err := netip.ParseAddr(r.From)
			if err != nil {
				return
			}
			port := pc.LocalAddr().(*net.UDPAddr).AddrPort().Port()
			sendReversed(netip.AddrPortFrom(own, port), from.(*net.UDPAddr).AddrPort(), buf[:n])
		}
	}()
	return nil
}

// exchange sends a datagram of r.Size bytes to an echo and waits until it comes back.
func exchange(r request, timeout time.Duration) answer {
	from, err := netip.ParseAddrPort(r.From)
	if err != nil {
		return fromErr(err)
	}
	to, err := netip.ParseAddrPort(r.Addr)
	if err != nil {
		return fromErr(err)
	}
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(from))
	if err != nil {
		return fromErr(err)
	}
	defer c.Close()
	data := make([]byte, r.Size)
	seed := rand.NewPCG(uint64(r.Size), uint64(from.Port()))
	for i := range data {
		data[i] = byte(seed.Uint64())
	}
	buf := make([]byte, 1<<16)
	for again := range 4 { // of IPv6 both ends have to learn what fits
		c.SetDeadline(time.Now().Add(timeout))
		if r.Reversed {
			err = sendReversed(from, to, data)
		} else {
			_, err = c.WriteToUDPAddrPort(data, to)
		}
		if err != nil {
			return fromErr(err)
		}
		n, peer, rerr := c.ReadFromUDPAddrPort(buf)
		if err = rerr; errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err == nil && (peer != to || !bytes.Equal(buf[:n], data)) {
			err = fmt.Errorf("got %d bytes from %s, which are not the %d sent to %s", n, peer, len(data), to)
		}
		return answer{Reply: "same", Again: again, Err: fromErr(err).Err}
	}
	return fromErr(err)
}

// sendReversed sends a UDP datagram as IP fragments, the last one first.
func sendReversed(from, to netip.AddrPort, data []byte) (err error) {
	whole := packet.Packet{Kind: packet.UDP, SrcPort: from.Port(), DstPort: to.Port(), Payload: data,
		IP: packet.IPv4{Src: from.Addr(), Dst: to.Addr().Unmap(), Proto: packet.ProtoUDP, TTL: 64}}
	domain, head := unix.AF_INET, 34
	var sa unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(whole.IP.Dst.AsSlice()[:4])}
	if whole.IP.Dst.Is6() {
		domain, head, sa = unix.AF_INET6, 54, &unix.SockaddrInet6{Addr: whole.IP.Dst.As16()}
	}
	frame, err := whole.Marshal()
	if err != nil {
		return err
	}
	l4 := frame[head:]
	if len(l4) > fragmentSize {
		whole.IP.ID = uint32(1 + rand.IntN(1<<16-1))
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	for at := (len(l4) - 1) / fragmentSize * fragmentSize; at >= 0; at -= fragmentSize {
		end := min(at+fragmentSize, len(l4))
		piece := packet.Packet{Kind: packet.Other, IP: whole.IP, Payload: l4[at:end]}
		piece.IP.Offset, piece.IP.MF = uint16(at), end < len(l4)
		b, err := piece.Marshal()
		if err != nil {
			return err
		}
		if err := unix.Sendto(fd, b[14:], 0, sa); err != nil {
			return fmt.Errorf("send a fragment from %d on: %w", at, err)
		}
	}
	return nil
}

// exchanges are datagrams sent, each from a port of its own, and how many of them were sent again:
// a fragment's identification may by chance be that of a datagram shortly before, which loses the
// later one.
type exchanges struct {
	port        uint16
	sent, again int
}

// datagrams sends datagrams of several sizes from src to an echo at addr, in order and reversed.
func (e *exchanges) datagrams(t *testing.T, what string, w *worker, src netip.Addr, addr string, reversed ...bool) {
	t.Helper()
	for _, size := range []int{100, 4000, 60000} {
		for _, r := range reversed {
			e.port++
			e.sent++
			a := w.call(request{Op: "exchange", Addr: addr, From: netip.AddrPortFrom(src, e.port).String(), Size: size, Reversed: r, Timeout: 20_000})
			if a.Err != "" {
				t.Errorf("%s, %d bytes, reversed %v: %s", what, size, r, a.Err)
			}
			e.again += a.Again
		}
	}
}

// TestFragments sends datagrams that do not fit a packet on every way, with the fragments in order
// and reversed. Server 8081 answers in order, 8082 reversed.
func TestFragments(t *testing.T) { inBoth(t, testFragments) }

func testFragments(t *testing.T, fam family) {
	f := newFixture(t, fam)
	for _, p := range []*pod{f.a, f.b, f.c, f.d} {
		p.echo(p.local.Addrs[0])
	}
	f.client.echo(f.client.addr)
	// The shorter this is the less often a new datagram is taken for one before; much shorter, and
	// a busy machine's sender has not sent the last fragment by then.
	f.cluster.Settings.Timeouts.Fragment = 5 * time.Second
	e := &exchanges{port: 40000}
	f.service("near", "10.96.0.1", 30001, f.b)
	f.service("far", "10.96.0.2", 30002, f.c)
	both := []bool{false, true}
	addr := func(p *pod) netip.Addr { return p.local.Addrs[0] }
	for _, port := range []uint16{8081, 8082} {
		for name := range f.cluster.Slices {
			f.cluster.Slices[name].Ports[1].Port = port
		}
		for _, dsr := range both {
			f.cluster.Settings.DSR = dsr
			f.apply()
			for _, routed := range both {
				f.routed = routed
				f.apply()
				how := fmt.Sprintf("answers from port %d, DSR %v, by tunnel %v: ", port, dsr, routed)
				e.datagrams(t, how+"client to a node port, backend there", f.client.worker, f.client.addr, "172.30.0.8:30001", both...)
				e.datagrams(t, how+"client to a node port, backend elsewhere", f.client.worker, f.client.addr, "172.30.0.8:30002", both...)
			}
			f.routed = false
		}
		f.apply()
		how := fmt.Sprintf("answers from port %d: ", port)
		at := func(p *pod) string { return netip.AddrPortFrom(addr(p), port).String() }
		e.datagrams(t, how+"pod to pod", f.a.worker, addr(f.a), at(f.b), both...)
		e.datagrams(t, how+"pod to pod elsewhere", f.a.worker, addr(f.a), at(f.c), both...)
		e.datagrams(t, how+"pod to Service", f.a.worker, addr(f.a), "10.96.0.1:80", both...)
		e.datagrams(t, how+"pod to Service elsewhere", f.a.worker, addr(f.a), "10.96.0.2:80", both...)
		e.datagrams(t, how+"pod to outside", f.a.worker, addr(f.a), netip.AddrPortFrom(f.client.addr, port).String(), both...)
		e.datagrams(t, how+"node to its pod", f.n1.worker, f.n1.addr, at(f.a), false)
		e.datagrams(t, how+"node to pod elsewhere", f.n1.worker, f.n1.addr, at(f.c), false)
		e.datagrams(t, how+"node to Service elsewhere", f.n1.worker, f.n1.addr, "10.96.0.2:80", false)
	}
	if t.Logf("%d of %d datagrams were sent again", e.again, e.sent); e.again > e.sent/20 {
		t.Errorf("%d of %d datagrams were lost once", e.again, e.sent)
	}
}

// echo starts both echo servers.
func (w *worker) echo(own netip.Addr) {
	w.t.Helper()
	for port, reversed := range map[uint16]bool{8081: false, 8082: true} {
		a := w.call(request{Op: "echo", Addr: fmt.Sprintf(":%d", port), From: w.family.addr(own.String()), Reversed: reversed})
		if a.Err != "" {
			w.t.Fatalf("%s: echo: %s", w.name, a.Err)
		}
	}
}
