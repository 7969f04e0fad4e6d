// SPDX-License-Identifier: Apache-2.0

package httplimit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/hostile"
)

// serve serves "ok" on a loopback address, behind bounds, and returns the address.
func serve(t *testing.T, network, addr string, total, perSource int) (*Listener, string) {
	t.Helper()
	inner, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener(inner, total, perSource)
	s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		<-done
		if n := l.Open(); n != 0 {
			t.Errorf("%d connections are still counted when all are closed", n)
		}
	})
	return l, inner.Addr().String()
}

// idle opens a connection from an address and says nothing. It may be refused.
func idle(t *testing.T, from, to string) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
	c, err := d.Dial("tcp", to)
	switch {
	case err == nil:
		t.Cleanup(func() { c.Close() })
	case !errors.Is(err, syscall.ECONNRESET):
		t.Fatal(err)
	}
}

// get asks once from an address.
func get(from, to string) error {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client := http.Client{Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}, Timeout: time.Minute}
	r, err := client.Get("http://" + to + "/")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && string(text) != "ok\n" {
		err = fmt.Errorf("answer %q", text)
	}
	return err
}

// One caller opens many connections and says nothing: it holds its share, and others are served.
func TestHostileIdleConnectionsOfOne(t *testing.T) {
	hostile.Record(t, "idle connections of one pod occupy the agent's HTTP ports", hostile.Pod, hostile.ControlPlane, hostile.IPv4)
	const total, share = 64, 8
	l, addr := serve(t, "tcp4", "127.0.0.1:0", total, share)
	before := runtime.NumGoroutine()
	for range 500 {
		idle(t, "127.0.0.2", addr)
		if n := l.Open(); n > share {
			t.Fatalf("%d connections of one caller", n)
		}
	}
	if grown := runtime.NumGoroutine() - before; grown > 3*share {
		t.Errorf("%d goroutines more", grown)
	}
	for range 20 {
		if err := get("127.0.0.3", addr); err != nil {
			t.Fatalf("another caller: %v", err)
		}
	}
}

// Many callers do so together: there are never more than the total, and a new caller is served all
// the same.
func TestHostileIdleConnectionsOfMany(t *testing.T) {
	hostile.Record(t, "idle connections of many pods occupy the agent's HTTP ports", hostile.Pod, hostile.ControlPlane, hostile.IPv4)
	const total, share = 64, 8
	l, addr := serve(t, "tcp4", "127.0.0.1:0", total, share)
	for i := range 2000 {
		idle(t, fmt.Sprintf("127.0.1.%d", i%200+1), addr)
		if n := l.Open(); n > total {
			t.Fatalf("%d connections", n)
		}
		if i%100 == 99 {
			if err := get("127.0.0.3", addr); err != nil {
				t.Fatalf("another caller after %d connections: %v", i+1, err)
			}
		}
	}
}

// The same by IPv6, where loopback has one address: its own share is all that the caller takes.
func TestHostileIdleConnectionsIPv6(t *testing.T) {
	hostile.Record(t, "idle connections of one pod occupy the agent's HTTP ports", hostile.Pod, hostile.ControlPlane, hostile.IPv6)
	l, addr := serve(t, "tcp6", "[::1]:0", 64, 8)
	for range 200 {
		idle(t, "::1", addr)
		if n := l.Open(); n > 8 {
			t.Fatalf("%d connections of one caller", n)
		}
	}
}

// A connection that is silent ends by itself.
func TestSilence(t *testing.T) {
	s := NewServer(http.NotFoundHandler())
	for what, d := range map[string]time.Duration{"header": s.ReadHeaderTimeout, "request": s.ReadTimeout, "answer": s.WriteTimeout, "idle": s.IdleTimeout} {
		if d <= 0 || d > time.Minute {
			t.Errorf("time-out of %s: %s", what, d)
		}
	}
}
