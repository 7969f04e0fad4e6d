// SPDX-License-Identifier: Apache-2.0

// Package client feeds an agent from a fan-out: it connects to one of the replicas, says which
// interfaces the node has, and hands on what it is sent as a watch does (watch.Batch). Nothing is
// handed on before the first snapshot is whole. Another replica is told what the agent has by
// digests, and sends what differs; where it does not know these it sends a snapshot, a batch that
// says so (Full), which takes the place of what was there without anything being empty in between.
// While no replica can be reached the agent goes on with what it has.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/watch"
)

// Config is what a Client needs.
type Config struct {
	Log     *slog.Logger
	Node    string
	Program string // version of the agent, for people
	// Replicas returns where fan-outs are, host:port.
	Replicas func(context.Context) ([]string, error)
	Dial     func(ctx context.Context, addr string) (net.Conn, error)
	// TLS and Token are asked for each connection, Token also now and then while it lasts.
	TLS   func() (*tls.Config, error)
	Token func() (string, error)
	// Expression says whether an expression of the selector language can be read.
	Expression func(string) error
	// Lookup reads a pod from the API server, for a CNI ADD whose pod no fan-out knows.
	Lookup func(ctx context.Context, name model.Name, uid string) (*watch.AddPod, error)
	// LookupAfter is for how long the fan-out may be without a pod until Lookup is asked; 0 = 300
	// ms.
	LookupAfter time.Duration
	Claims      map[string]watch.NodeClaims // see watch.Config
	// Cluster has a function look at what was handed on, as the receiver has it; nil = every stream
	// begins with a snapshot.
	Cluster func(context.Context, func(*model.Cluster)) error
	// OtherEvery is the time between two looks for a fan-out that is in touch with the API server,
	// while the one that feeds this agent is not; 0 = 15 s.
	OtherEvery time.Duration
}

// Time bounds of a connection. A fan-out that has no CPU for a while is not left: another one would
// have the more to do. One whose process ends closes the connection, and one whose node is gone is
// found by Dial's connection (source.Connect), whose probes the other end's kernel answers.
const (
	lookWithin    = 10 * time.Second
	connectWithin = 30 * time.Second // a fan-out may be busy with others
	silence       = 2 * time.Minute  // a fan-out says at least every two seconds how fresh it is
	looks         = 12               // into which silence is cut: a process that gets no CPU for all of it has looked once
	retryFirst    = 100 * time.Millisecond
	retryMost     = 5 * time.Second
	retryLate     = 20 * time.Second // after lateAfter without any: all agents ask where fan-outs are
	lateAfter     = 2 * time.Minute
	fedWell       = 10 * time.Second // a stream that lasted for so long was not refused
	tokenEvery    = time.Minute
	staleAfter    = 10 * time.Second // how long a fan-out may be without the API server until another one is asked
)

// Client follows the cluster by a fan-out. It is safe for concurrent use.
type Client struct {
	cfg    Config
	claims *watch.Claims

	reading sync.WaitGroup
	stop    context.CancelFunc // nil before Start
	extra   *stream.Extra      // what the settings were last; of one goroutine
	wake    chan struct{}      // capacity 1: pending is not empty
	moved   chan struct{}      // capacity 1: endpoints changed
	ask     chan struct{}      // capacity 1: asking or questions is not empty

	mu        sync.Mutex
	held      *stream.Held // what the agent has, until something comes; nil = it is to be found
	pending   *watch.Batch
	handing   bool // a batch is being handed on
	synced    bool
	endpoints map[netip.Addr]model.Name
	own       map[model.Name]*model.Pod // pods that the API places on the node, of what was handed on
	owners    map[netip.Addr]owner
	asking    [][]byte  // addresses
	questions questions // about pods
	replica   string    // that serves; empty = none
	since     time.Time // when that became so
	err       string
	fresh     *stream.Fresh
	freshAt   time.Time
	asOf      time.Time // what was sent is how the API server had it then
}

// New returns a Client; nothing is sent before Start or Run.
func New(cfg Config) *Client {
	cfg.OtherEvery, cfg.LookupAfter = cmp.Or(cfg.OtherEvery, 15*time.Second), cmp.Or(cfg.LookupAfter, 300*time.Millisecond)
	return &Client{cfg: cfg, claims: watch.NewClaims(cfg.Claims), extra: &stream.Extra{}, wake: make(chan struct{}, 1), moved: make(chan struct{}, 1), ask: make(chan struct{}, 1), owners: map[netip.Addr]owner{}, own: map[model.Name]*model.Pod{},
		since: time.Now(), err: "not connected yet"}
}

// Start begins to follow, until ctx or Run ends.
func (c *Client) Start(ctx context.Context) {
	ctx, c.stop = context.WithCancel(ctx)
	c.reading.Go(func() { c.follow(ctx) })
}

// AwaitRead waits until the first snapshot is there.
func (c *Client) AwaitRead(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !c.Status().Synced {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// Run hands on what comes until ctx ends, and returns ctx's error.
func (c *Client) Run(ctx context.Context, sink watch.Sink) error {
	if c.stop == nil {
		c.Start(ctx)
	}
	defer c.reading.Wait()
	defer c.stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
		}
		c.mu.Lock()
		b := c.pending
		c.pending, c.handing = nil, b != nil
		c.mu.Unlock()
		if b != nil {
			sink(ctx, b)
			c.noteOwn(b)
		}
	}
}

// SetEndpoints says whose interfaces the node has, by address.
func (c *Client) SetEndpoints(now map[netip.Addr]model.Name) {
	c.mu.Lock()
	same := maps.Equal(c.endpoints, now)
	c.endpoints = now
	c.mu.Unlock()
	if !same {
		signal(c.moved)
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Status says how the client gets on: connected is one whose fan-out is in touch with the API
// server.
func (c *Client) Status() watch.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := watch.Status{Synced: c.synced, Connected: c.err == "", Since: c.since, Err: c.err, FanOut: c.replica, AsOf: c.asOf}
	if c.err == "" && c.fresh != nil && !c.fresh.Connected {
		st.Connected, st.Err = false, fmt.Sprintf("fan-out %s is not in touch with the API server: %s", c.fresh.Replica, c.fresh.Error)
		st.Since = c.freshAt.Add(-time.Duration(c.fresh.SinceMs) * time.Millisecond)
	}
	return st
}

// PodLives reports whether the pod with that UID (any, when empty) exists, is on the node and has
// not finished. When in doubt it does. The UID of a static pod is not the one that the kubelet
// knows it by.
func (c *Client) PodLives(name model.Name, uid, node string) bool {
	c.mu.Lock()
	p := c.own[name]
	c.mu.Unlock()
	if p == nil {
		s := c.Status()
		return !s.Synced || !s.Connected
	}
	if static := len(name.Name) > len(node) && name.Name[len(name.Name)-len(node)-1:] == "-"+node; uid != "" && p.UID != uid && !static {
		return false
	}
	return p.Node == node && !p.Finished
}

// note sets why there is no connection, or which replica serves.
func (c *Client) note(replica string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if (c.err == "") != (text == "") || c.replica != replica {
		c.since = time.Now()
	}
	if c.replica, c.err = replica, text; err != nil {
		c.fresh = nil
	}
}

// follow keeps a connection to a fan-out until ctx ends.
func (c *Client) follow(ctx context.Context) {
	wait, avoid := retryFirst, ""
	lost := time.Now() // the last time that one fed well
	for said := ""; ctx.Err() == nil; {
		began := time.Now()
		addr, err := c.choose(ctx, avoid)
		if err == nil {
			err = c.followOne(ctx, addr)
			avoid = addr
		}
		if ctx.Err() != nil {
			return
		}
		c.note("", err)
		if text := err.Error(); text != said {
			said = text
			c.cfg.Log.Warn("no fan-out feeds this agent; it goes on with what it has", "err", err)
		}
		if time.Since(began) > fedWell { // else one that ends at once would be asked all the time
			wait, said, lost = retryFirst, "", time.Now()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration((0.5 + rand.Float64()) * float64(wait))):
		}
		most := retryMost
		if time.Since(lost) > lateAfter {
			most = retryLate
		}
		wait = min(2*wait, most)
	}
}

// choose returns the address of a fan-out, another one than avoid where there is one.
func (c *Client) choose(ctx context.Context, avoid string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	all, err := c.cfg.Replicas(ctx)
	if err != nil {
		return "", fmt.Errorf("look for fan-outs: %w", err)
	}
	if others := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return a == avoid }); len(others) > 0 {
		all = others
	}
	if len(all) == 0 {
		return "", errors.New("no fan-out is ready")
	}
	return all[rand.IntN(len(all))], nil
}

// connect opens a stream and waits for what the fan-out says first, which is how fresh it is.
func (c *Client) connect(ctx context.Context, addr string) (*connection, error) {
	conf, err := c.cfg.TLS()
	if err != nil {
		return nil, err
	}
	conf.NextProtos = []string{"h2"}
	token, err := c.cfg.Token()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)), grpc.WithContextDialer(c.cfg.Dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MostSize+stream.MostRequest)), grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(16<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithDisableRetry())
	if err != nil {
		return nil, fmt.Errorf("fan-out %s: %w", addr, err)
	}
	k := &connection{addr: addr, conn: conn}
	ctx, k.cancel = context.WithCancel(ctx)
	late := time.AfterFunc(connectWithin, k.cancel)
	defer late.Stop()
	if k.stream, err = stream.Follow(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), conn); err == nil {
		var first *stream.Request
		first, k.described = c.hello(ctx)
		if err = k.stream.Send(first); err == nil {
			k.first, err = k.stream.Recv()
		}
	}
	if err != nil {
		state := conn.GetState()
		k.close()
		if state != connectivity.Ready && ctx.Err() != nil {
			err = errors.Join(errors.New("no connection in time"), err)
		}
		return nil, fmt.Errorf("fan-out %s: %w", addr, err)
	}
	return k, nil
}

// connection is a stream of one fan-out.
type connection struct {
	addr   string
	conn   *grpc.ClientConn
	stream stream.Client
	first  *stream.Response
	cancel context.CancelFunc

	described bool // the fan-out was told what the agent has
}

func (k *connection) close() {
	k.cancel()
	k.conn.Close()
}
