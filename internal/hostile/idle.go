// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"
)

// FreeTCP returns a loopback address and a port that nobody has at the moment.
func FreeTCP(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Refused opens so many connections of one address to a server, says nothing on them, and returns
// how many were reset. Those that were not may end as the server ends those that are silent,
// without a reset; that is waited for.
func Refused(t testing.TB, from, to string, connections int) (reset int) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
	var open []net.Conn
	for range connections {
		c, err := d.Dial("tcp", to)
		switch {
		case err == nil:
			defer c.Close()
			open = append(open, c)
		case errors.Is(err, syscall.ECONNRESET):
			reset++
		default:
			t.Fatal(err)
		}
	}
	for _, c := range open {
		if err := c.SetReadDeadline(time.Now().Add(5 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, syscall.ECONNRESET) {
			reset++
		}
	}
	return reset
}
