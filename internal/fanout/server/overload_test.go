// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-net/weir/internal/fanout/client"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// cpu is what programs share that are short of it: what one of them reads costs a time in which
// none of the others does anything.
type cpu struct {
	turn chan struct{}
	cost atomic.Int64
}

func (c *cpu) use() {
	if c.cost.Load() > 0 {
		c.turn <- struct{}{}
		time.Sleep(time.Duration(c.cost.Load())) // none where the load has ended
		<-c.turn
	}
}

// slowConn is a connection of one of them.
type slowConn struct {
	net.Conn
	cpu  *cpu
	hung chan struct{} // closed: the node is gone
	end  context.Context
}

func (c slowConn) gone() bool {
	select {
	case <-c.hung:
		return true
	default:
		return false
	}
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.gone() {
		<-c.end.Done()
	}
	c.cpu.use()
	return n, err
}

func (c slowConn) Write(b []byte) (int, error) {
	if c.gone() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c slowConn) Close() error {
	if c.gone() {
		return nil
	}
	return c.Conn.Close()
}

// memory is a network of pipes. Each connection comes from an address of its own.
type memory struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
	opened atomic.Int64
}

func newMemory() *memory { return &memory{accept: make(chan net.Conn), closed: make(chan struct{})} }

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.accept:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

func (m *memory) Close() error   { m.once.Do(func() { close(m.closed) }); return nil }
func (m *memory) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1} }

type fromConn struct {
	net.Conn
	from net.Addr
}

func (c fromConn) RemoteAddr() net.Addr { return c.from }

func (m *memory) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	i := m.opened.Add(1)
	select {
	case m.accept <- fromConn{far, &net.TCPAddr{IP: net.IPv4(10, 1, byte(i>>8), byte(i)), Port: 1}}:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

// slowAgent is an agent that shares a CPU with others.
type slowAgent struct {
	client *client.Client
	hung   chan struct{}
	fulls  atomic.Int64
	last   atomic.Pointer[string] // a label of namespace a
}

// overload is a fan-out and many agents, on a clock of the test's.
type overload struct {
	cluster *model.Cluster
	place   *place
	net     *memory
	agents  []*slowAgent
	servers cpu // of the fan-out
	cpu     cpu // of the agents
}

func newOverload(t *testing.T, agents int) *overload {
	t.Helper()
	o := &overload{cluster: fleet(agents, 2), net: newMemory()}
	o.servers.turn, o.cpu.turn = make(chan struct{}, 1), make(chan struct{}, 1)
	cert := certificate(t)
	p := &place{t: t, tokens: &tokens{expired: map[string]bool{}}}
	p.server = New(Config{Log: slog.New(slog.DiscardHandler), Reviewer: p.tokens, Replica: "replica", Status: func() watch.Status {
		return watch.Status{Synced: true, Connected: true, Since: time.Now()}
	}})
	p.fill(o.cluster)
	o.place = p
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- p.server.Serve(ctx, o, &tls.Config{Certificates: []tls.Certificate{cert}, Time: time.Now})
	}()
	t.Cleanup(func() {
		o.cpu.cost.Store(0)
		o.servers.cost.Store(0)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	for i := range agents {
		a := &slowAgent{hung: make(chan struct{})}
		node := fmt.Sprint("n", i)
		held := model.NewCluster()
		var mu sync.Mutex
		running, cancel := context.WithCancel(context.Background())
		a.client = client.New(client.Config{Log: slog.New(slog.DiscardHandler), Node: node, Program: "test",
			Replicas: func(context.Context) ([]string, error) { return []string{"10.0.0.1:1"}, nil },
			Dial: func(dialing context.Context, _ string) (net.Conn, error) {
				conn, err := o.net.dial(dialing)
				if err != nil {
					return nil, err
				}
				return slowConn{conn, &o.cpu, a.hung, running}, nil
			},
			TLS:   func() (*tls.Config, error) { return &tls.Config{ServerName: "fanout.test", RootCAs: roots}, nil },
			Token: func() (string, error) { return tokenOf(node), nil },
			Cluster: func(_ context.Context, look func(*model.Cluster)) error {
				mu.Lock()
				defer mu.Unlock()
				look(held)
				return nil
			}})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = a.client.Run(running, func(_ context.Context, b *watch.Batch) {
				mu.Lock()
				defer mu.Unlock()
				b.Apply(held)
				if b.Full {
					a.fulls.Add(1)
				}
				if ns := held.Namespaces["a"]; ns != nil {
					label := ns.Labels["i"]
					a.last.Store(&label)
				}
			})
		}()
		t.Cleanup(func() { cancel(); <-done })
		o.agents = append(o.agents, a)
	}
	return o
}

// Accept makes the fan-out's end of each connection slow, too.
func (o *overload) Accept() (net.Conn, error) {
	conn, err := o.net.Accept()
	if err != nil {
		return nil, err
	}
	return slowServerConn{conn, &o.servers}, nil
}

func (o *overload) Close() error   { return o.net.Close() }
func (o *overload) Addr() net.Addr { return o.net.Addr() }

// slowServerConn is a connection of the fan-out: what it writes costs, too.
type slowServerConn struct {
	net.Conn
	cpu *cpu
}

func (c slowServerConn) Write(b []byte) (int, error) {
	c.cpu.use()
	return c.Conn.Write(b)
}

func (c slowServerConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.cpu.use()
	return n, err
}

// label gives namespace a another label, which all nodes get.
func (o *overload) label(value string) {
	ns := *o.cluster.Namespaces["a"]
	ns.Labels = map[string]string{"name": "a", "i": value}
	change(o.cluster, &model.Changes{Namespaces: map[string]*model.Namespace{"a": &ns}}, o.place)
}

// have counts the agents that have a label.
func (o *overload) have(value string) (n int) {
	for _, a := range o.agents {
		if last := a.last.Load(); last != nil && *last == value {
			n++
		}
	}
	return n
}

// await waits, on the test's clock, until all agents have a label.
func (o *overload) await(t *testing.T, within time.Duration, value string, agents int) {
	t.Helper()
	began := time.Now()
	for o.have(value) < agents {
		if time.Since(began) > within {
			t.Fatalf("%d of %d agents have %q after %s", o.have(value), agents, value, within)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestOverloadEndsNoStream holds that streams go on while the agents, or the fan-out, have so
// little CPU that answers take most of a minute, and that all have the last state soon after that
// has ended.
func TestOverloadEndsNoStream(t *testing.T) {
	t.Parallel()
	const agents = 40
	for who, cost := range map[string]func(*overload, time.Duration){
		"agents":  func(o *overload, c time.Duration) { o.cpu.cost.Store(int64(c)) },
		"fan-out": func(o *overload, c time.Duration) { o.servers.cost.Store(int64(c)) },
	} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := newOverload(t, agents)
				o.label("begin")
				o.await(t, time.Minute, "begin", agents)
				opened := o.net.opened.Load()
				cost(o, 700*time.Millisecond)
				for i := range 300 {
					o.label(fmt.Sprint(i))
					time.Sleep(time.Second)
				}
				if o.have("299") > agents/2 {
					t.Errorf("%d agents have what changed last: there is no overload", o.have("299"))
				}
				cost(o, 0)
				o.label("end")
				o.await(t, 5*time.Second, "end", agents)
				time.Sleep(time.Minute)
				if n := o.net.opened.Load() - opened; n > 0 {
					t.Errorf("%d connections were opened again", n)
				}
				for i, a := range o.agents {
					if a.fulls.Load() != 1 {
						t.Errorf("agent %d got %d snapshots", i, a.fulls.Load())
					}
				}
			})
		})
	}
}

// TestManyComeToABusyFanOut holds that agents which come together to a slow fan-out wait for their
// turn, and do not come again.
func TestManyComeToABusyFanOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const agents = 40
		o := newOverload(t, agents)
		o.servers.cost.Store(int64(20 * time.Millisecond)) // of the some ten reads and writes of a start
		o.label("begin")
		o.await(t, 2*time.Minute, "begin", agents)
		if n := o.net.opened.Load(); n > agents {
			t.Errorf("%d agents opened %d connections", agents, n)
		}
	})
}

// TestWhoIsHungIsLeft holds that the stream of an agent that answers nothing ends, after minutes.
func TestWhoIsHungIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const agents = 3
		o := newOverload(t, agents)
		o.label("begin")
		o.await(t, time.Minute, "begin", agents)
		close(o.agents[0].hung)
		began := time.Now()
		for len(o.place.server.Followers()) == agents {
			if o.label(fmt.Sprint(time.Since(began))); time.Since(began) > 10*time.Minute {
				t.Fatal("it is still served")
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took < answerIn || took > 2*answerIn {
			t.Errorf("it was left after %s", took)
		}
		o.label("end")
		o.await(t, 5*time.Second, "end", agents-1)
	})
}
