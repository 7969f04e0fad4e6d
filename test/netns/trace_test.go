// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/model"
)

// traceMost is how many hops a path may have.
const traceMost = 8

// trace sends datagrams whose hops end one after the other, and returns who said so, until the
// destination answers or says that nobody listens.
func trace(r request, timeout time.Duration) answer {
	to, err := netip.ParseAddrPort(r.Addr)
	if err != nil {
		return fromErr(err)
	}
	var hops []string
	for n := 1; n <= traceMost; n++ {
		hop, last, err := traceHop(to, n, time.Now().Add(timeout))
		if err != nil {
			return answer{Reply: strings.Join(hops, " "), Err: fmt.Sprintf("hop %d: %v", n, err)}
		}
		hops = append(hops, hop)
		if last {
			break
		}
	}
	return answer{Reply: strings.Join(hops, " ")}
}

// traceHop asks with a socket of its own, again when the datagram or the answer was lost, until the
// deadline.
func traceHop(to netip.AddrPort, hops int, deadline time.Time) (hop string, last bool, err error) {
	domain, level, received, limit := unix.AF_INET, unix.IPPROTO_IP, unix.IP_RECVERR, unix.IP_TTL
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(to.Port()), Addr: [4]byte(to.Addr().AsSlice()[:4])}
	if to.Addr().Is6() {
		domain, level, received, limit = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, unix.IPV6_UNICAST_HOPS
		sa = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", false, err
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.SetsockoptInt(fd, level, received, 1), unix.SetsockoptInt(fd, level, limit, hops), unix.Connect(fd, sa)); err != nil {
		return "", false, err
	}
	for time.Now().Before(deadline) {
		if _, err := unix.Write(fd, []byte("who are you?\n")); err != nil {
			return "", false, err
		}
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, 2000); err != nil && !errors.Is(err, unix.EINTR) {
			return "", false, err
		}
		switch {
		case poll[0].Revents&unix.POLLERR != 0:
			return readError(fd)
		case poll[0].Revents&unix.POLLIN != 0:
			buf := make([]byte, 256)
			n, err := unix.Read(fd, buf)
			if err != nil {
				return "", false, err
			}
			name, _, _ := strings.Cut(string(buf[:n]), " ")
			return name, true, nil
		}
	}
	return "", false, errors.New("no answer")
}

// readError reads who sent an ICMP error. last: it is not one about hops.
func readError(fd int) (from string, last bool, err error) {
	oob := make([]byte, 512)
	_, n, _, _, err := unix.Recvmsg(fd, make([]byte, 2048), oob, unix.MSG_ERRQUEUE)
	if err != nil {
		return "", false, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return "", false, err
	}
	for _, m := range messages {
		// struct sock_extended_err: errno, origin, type, code, info, data; then the sender as a
		// sockaddr.
		d := m.Data
		four := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR && len(d) >= 16+8
		six := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR && len(d) >= 16+24
		switch {
		case four && d[4] == unix.SO_EE_ORIGIN_ICMP:
			return netip.AddrFrom4([4]byte(d[20:24])).String(), d[5] != 11, nil
		case six && d[4] == unix.SO_EE_ORIGIN_ICMP6:
			return netip.AddrFrom16([16]byte(d[24:40])).String(), d[5] != 3, nil
		case four || six:
			return "", false, fmt.Errorf("an error of origin %d: %w", d[4], unix.Errno(binary.NativeEndian.Uint32(d)))
		}
	}
	return "", false, errors.New("an error without its sender")
}

// traces fails the test unless the path to addr leads by these hops.
func (w *worker) traces(what, addr, hops string) {
	w.t.Helper()
	if a := w.call(request{Op: "trace", Addr: addr}); a.Err != "" || a.Reply != hops {
		w.t.Errorf("%s: %s -> %s goes by %q (%s), want %q", what, w.name, addr, a.Reply, a.Err, hops)
	}
}

// TestTraceroute: every hop of a pod's path reports itself: the nodes, the routers, and who is
// asked at last.
func TestTraceroute(t *testing.T) { inBoth(t, testTraceroute) }

func testTraceroute(t *testing.T, fam family) {
	f := newFixture(t, fam)
	far := f.behindTwoRouters()
	far.listen("udp", ":8080")
	f.cluster.Settings.ConnectTime = model.ConnectTimeDisabled
	f.service("far", "10.96.0.2", 30002, f.c)
	f.apply()
	const outside = "172.30.0.8 172.30.0.1 172.29.0.2 "
	f.a.traces("outside", farAddr+":8080", outside+"far")
	f.a.traces("outside, where nobody listens", farAddr+":9", outside+farAddr)
	f.a.traces("pod on the same node", f.b.at("8080"), "172.30.0.8 b")
	f.a.traces("nobody listens there", f.b.at("9"), "172.30.0.8 "+f.b.local.Addrs[0].String())
	for _, e := range []model.EncapMode{model.EncapNever, model.EncapAlways} {
		f.encapsulate(e)
		f.apply()
		how := fmt.Sprintf(" (VXLAN %s)", e)
		f.a.traces("pod elsewhere"+how, f.c.at("8080"), "172.30.0.8 172.30.0.9 c")
		f.a.traces("Service"+how, "10.96.0.2:80", "172.30.0.8 172.30.0.9 c")
	}
	far.traces("node port, backend elsewhere", "172.30.0.8:30002", "172.28.0.1 172.29.0.1 172.30.0.8 172.30.0.9 c")
}
