// SPDX-License-Identifier: Apache-2.0

// Package httplimit serves HTTP to callers that nobody has authenticated: health checks of load
// balancers and of the kubelet, and metrics. These ports are open to pods and, by kube-proxy's
// contract, to everybody. So the connections of all callers and of one are bounded, and so is the
// time for which one may be silent. A new caller is always served: where there are too many
// connections, the oldest of the caller with the most is closed.
package httplimit

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Bounds of the connections of a listener.
const (
	DefaultTotal     = 256
	DefaultPerSource = 32
)

// NewServer returns a server that waits for nobody: 5 s for the header of a request, 10 s for all
// of it, 30 s for the answer to be read, and 30 s between two requests.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 30 * time.Second, MaxHeaderBytes: 1 << 14}
}

// Budget bounds the connections of one listener, or of several together. It is safe for concurrent
// use.
type Budget struct {
	total, perSource int

	mu    sync.Mutex
	open  map[netip.Addr][]*conn // by the caller's address, the oldest first
	count int
	next  uint64 // numbers connections in the order of their beginning
}

// NewBudget returns a budget of at most total connections, and perSource of one address.
func NewBudget(total, perSource int) *Budget {
	return &Budget{total: total, perSource: perSource, open: map[netip.Addr][]*conn{}}
}

// Listener returns l, whose connections count in b.
func (b *Budget) Listener(l net.Listener) *Listener { return &Listener{l, b} }

// Listener bounds the connections that it has accepted and that are open.
type Listener struct {
	net.Listener
	*Budget
}

// NewListener returns l with at most total connections, and perSource of one address.
func NewListener(l net.Listener, total, perSource int) *Listener {
	return NewBudget(total, perSource).Listener(l)
}

// Accept returns the next connection that has room.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted, evicted := l.add(c)
		if evicted != nil {
			evicted.Close()
		}
		if accepted != nil {
			return accepted, nil
		}
		reset(c)
	}
}

// Open returns the number of connections.
func (b *Budget) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// Keep takes a connection that a Listener accepted, or one above it (tls.Conn), out of its budget:
// whoever is at the other end has proved who it is, so it does not make room for others. How many
// are kept is for the caller to bound.
func Keep(c net.Conn) {
	for {
		switch over := c.(type) {
		case *conn:
			over.of.mu.Lock()
			defer over.of.mu.Unlock()
			over.of.remove(over)
			return
		case interface{ NetConn() net.Conn }:
			c = over.NetConn()
		default:
			return
		}
	}
}

// add counts a connection. It returns nil for one of a caller that has its share already, and the
// connection that has to make room, if any.
func (b *Budget) add(c net.Conn) (accepted, evicted *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := source(c)
	if len(b.open[from]) >= b.perSource {
		return nil, nil
	}
	if b.count >= b.total {
		evicted = b.largest()
		b.remove(evicted)
	}
	b.next++
	accepted = &conn{Conn: c, from: from, of: b, seq: b.next}
	b.open[from] = append(b.open[from], accepted)
	b.count++
	return accepted, evicted
}

// largest returns the oldest connection of the caller with the most.
func (b *Budget) largest() *conn {
	var best []*conn
	for _, of := range b.open {
		if len(of) > len(best) || len(of) == len(best) && of[0].seq < best[0].seq {
			best = of
		}
	}
	return best[0]
}

// remove takes a connection off the books; nothing happens when it was taken off before.
func (b *Budget) remove(c *conn) {
	of := b.open[c.from]
	for i := range of {
		if of[i] != c {
			continue
		}
		b.count--
		if len(of) == 1 {
			delete(b.open, c.from)
		} else {
			b.open[c.from] = append(of[:i:i], of[i+1:]...)
		}
		return
	}
}

// source is a caller's address; the zero value represents those that have none.
func source(c net.Conn) netip.Addr {
	return AddrOf(c.RemoteAddr().String())
}

// AddrOf returns the address of a caller that is written as ADDRESS:PORT, IPv4 ones as such; the
// zero Addr = it is no such.
func AddrOf(remote string) netip.Addr {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// reset closes a connection at once and keeps no state about it.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // it is closed either way
	}
	c.Close()
}

// conn is a connection that is counted.
type conn struct {
	net.Conn
	from netip.Addr
	of   *Budget
	once sync.Once
	seq  uint64
}

// Close closes the connection and makes its place free.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.of.remove(c)
	})
	return c.Conn.Close()
}
