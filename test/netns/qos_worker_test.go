// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// received is what came to the counting sockets of this process.
var received struct{ datagrams, tos, with atomic.Int64 }

// countDatagrams opens a socket whose datagrams are counted, with the traffic class of the last.
func countDatagrams(r request) error {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var errs [2]error
		err := raw.Control(func(fd uintptr) {
			errs[0] = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
			errs[1] = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
		})
		return errors.Join(err, errs[0], errs[1])
	}}
	pc, err := lc.ListenPacket(context.Background(), "udp", r.Addr)
	if err != nil {
		return err
	}
	go func() {
		buf, oob := make([]byte, 2048), make([]byte, 256)
		for {
			_, n, _, _, err := pc.(*net.UDPConn).ReadMsgUDP(buf, oob)
			if err != nil {
				return
			}
			received.datagrams.Add(1)
			for _, m := range controlMessages(oob[:n]) {
				if m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TOS || m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_TCLASS {
					received.tos.Store(int64(m.Data[0]))
					received.with.Add(1)
				}
			}
		}
	}()
	return nil
}

func controlMessages(b []byte) []syscall.SocketControlMessage {
	out, err := syscall.ParseSocketControlMessage(b)
	if err != nil {
		return nil
	}
	return out
}

// receivedDatagrams says what was counted since the last time.
func receivedDatagrams() answer {
	return answer{Counters: map[string]int{"datagrams": int(received.datagrams.Swap(0)), "tos": int(received.tos.Load()), "with": int(received.with.Swap(0))}}
}

// pace sends r.Size datagrams a second for r.Every ms, with ECT(0) and a DSCP of its own, CS1, and
// says how many it sent.
func pace(r request) answer {
	const class = 8<<2 | 2
	c, err := net.Dial("udp", r.Addr)
	if err != nil {
		return fromErr(err)
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return fromErr(err)
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		if c.RemoteAddr().(*net.UDPAddr).IP.To4() != nil {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, class)
		} else {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, class)
		}
	})
	if err := errors.Join(err, set); err != nil {
		return fromErr(err)
	}
	// All are sent, by a busy machine some at once.
	most := time.Duration(r.Every) * time.Millisecond
	n, begun := 0, time.Now()
	for since := time.Duration(0); since < most; {
		time.Sleep(2 * time.Millisecond)
		since = min(time.Since(begun), most)
		for due := int(since.Seconds() * float64(r.Size)); n < due; n++ {
			if _, err := c.Write([]byte("datagram")); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				return fromErr(err)
			}
		}
	}
	return answer{Counters: map[string]int{"sent": n, "µs": int(time.Since(begun).Microseconds())}}
}
