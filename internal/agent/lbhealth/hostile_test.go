// SPDX-License-Identifier: Apache-2.0

package lbhealth

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// A process of the host has a port that a tenant's Service asks for, with real sockets. It
// restarts: for a moment nobody has the port.
func TestHostileHealthCheckPortOfHost(t *testing.T) {
	hostile.Record(t, "a healthCheckNodePort takes the port of a process of the host while that restarts", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	for _, network := range []string{"127.0.0.1", "::1"} {
		first, err := net.Listen("tcp", net.JoinHostPort(network, "0"))
		if err != nil {
			t.Fatal(err)
		}
		addr := first.Addr().String()
		port := portOf(addr)
		name := model.Name{Namespace: "team", Name: "evil"}
		now := time.Unix(1e9, 0)
		c := NewServiceChecks(slog.New(slog.DiscardHandler), func() bool { return true })
		c.held.now = func() time.Time { return now }
		s := healthState(map[model.Name]nodestate.HealthCheck{name: {Port: port, Local: 1}})
		look := func() { c.Update(s, []string{network}) }
		look()
		if len(c.open) != 0 || len(Problems("n0", c.Failing(), nil)) != 1 {
			t.Fatalf("open %v, problems %v", c.open, Problems("n0", c.Failing(), nil))
		}
		first.Close()
		now = now.Add(5 * time.Second)
		look()
		second, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatalf("the process could not take its port again: %v", err)
		}
		now = now.Add(2 * time.Minute)
		look() // somebody has it
		second.Close()
		now = now.Add(foreignFor - time.Second)
		look()
		if len(c.open) != 0 {
			t.Error("taken too early")
		}
		now = now.Add(2 * time.Second)
		look()
		if len(c.open) != 1 || len(c.Failing()) != 0 {
			t.Errorf("after a minute without anybody: open %v", c.open)
		}
		c.Close()
	}
}

// countingListener counts the connections that it has accepted and that are open.
type countingListener struct {
	net.Listener
	open *atomic.Int64
}

type countedConn struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &countedConn{Conn: c, open: l.open}, nil
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// A tenant makes hundreds of Services with healthCheckNodePorts, and a pod opens idle connections
// to all of them: they share one budget.
func TestHostileConnectionsOfManyChecks(t *testing.T) {
	hostile.Record(t, "idle connections to the health checks of hundreds of Services multiply what an agent holds", hostile.Pod, hostile.ControlPlane, hostile.IPv4)
	const services, idle = 300, 3000
	var open atomic.Int64
	var at []string
	c := NewServiceChecks(slog.New(slog.DiscardHandler), func() bool { return true })
	c.listen = func(string) (net.Listener, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		at = append(at, l.Addr().String())
		return countingListener{l, &open}, nil
	}
	checks := map[model.Name]nodestate.HealthCheck{}
	for i := range services {
		checks[model.Name{Namespace: "team", Name: fmt.Sprint("evil-", i)}] = nodestate.HealthCheck{Port: uint16(30000 + i), Local: 1}
	}
	c.Update(healthState(checks), []string{"127.0.0.1"})
	defer c.Close()
	if len(at) != services {
		t.Fatalf("%d Services are answered for", len(at))
	}
	before := runtime.NumGoroutine()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: time.Minute}
	for i := range idle {
		conn, err := d.Dial("tcp", at[i%services])
		if errors.Is(err, syscall.ECONNRESET) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	// Each listener accepts one more than it keeps, before it closes that.
	if n := open.Load(); n > maxCheckConnsPerSource+services {
		t.Errorf("%d connections of one caller are open", n)
	}
	if grown := runtime.NumGoroutine() - before; grown > 3*maxCheckConnsPerSource+services {
		t.Errorf("%d goroutines more", grown)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	r, err := client.Get("http://" + at[7])
	if err != nil {
		t.Fatalf("a load balancer: %v", err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusOK {
		t.Errorf("a load balancer gets %s", r.Status)
	}
}

// A namespace with more Services that are checked than it may have takes listeners from nobody
// else, and those that were there go on.
func TestHostileChecksOfOneNamespace(t *testing.T) {
	hostile.Record(t, "a tenant's Services with healthCheckNodePorts take as many listeners of an agent as there are", hostile.Tenant, hostile.ControlPlane, hostile.Both)
	c := NewServiceChecks(slog.New(slog.DiscardHandler), func() bool { return true })
	c.listen = func(string) (net.Listener, error) { return &deadListener{done: make(chan struct{})}, nil }
	defer c.Close()
	old, other := model.Name{Namespace: "team", Name: "z"}, model.Name{Namespace: "other", Name: "web"}
	checks := map[model.Name]nodestate.HealthCheck{old: {Port: 30000, Local: 1}}
	c.Update(healthState(checks), []string{"127.0.0.1"})
	for i := range maxChecksOfNamespace + 100 {
		checks[model.Name{Namespace: "team", Name: fmt.Sprintf("evil-%03d", i)}] = nodestate.HealthCheck{Port: uint16(30001 + i), Local: 1}
	}
	checks[other] = nodestate.HealthCheck{Port: 32000, Local: 1}
	c.Update(healthState(checks), []string{"127.0.0.1"})
	answered := map[model.Name]bool{}
	for _, check := range c.open {
		answered[check.name] = true
	}
	if len(answered) != maxChecksOfNamespace+1 || !answered[old] || !answered[other] {
		t.Errorf("%d are answered for, the old one %v, that of another namespace %v", len(answered), answered[old], answered[other])
	}
	if n := len(Problems("n0", c.Failing(), c.Unanswered())); n != 101 {
		t.Errorf("%d problems", n)
	}
}

// deadListener accepts nothing.
type deadListener struct {
	done chan struct{}
	once sync.Once
}

func (l *deadListener) Accept() (net.Conn, error) { <-l.done; return nil, net.ErrClosed }

func (l *deadListener) Close() error { l.once.Do(func() { close(l.done) }); return nil }

func (l *deadListener) Addr() net.Addr { return &net.TCPAddr{} }
