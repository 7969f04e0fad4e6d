// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/fanout/client"
	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodeview"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/selector"
	"github.com/weir-net/weir/internal/watch"
)

// tokens is an API server that knows whose a token is: "NODE PODUID".
type tokens struct {
	mu      sync.Mutex
	expired map[string]bool
}

func (k *tokens) Review(_ context.Context, _ netip.Addr, token string) (peerauth.Peer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	node, uid, ok := strings.Cut(token, " ")
	if !ok || k.expired[token] {
		return peerauth.Peer{}, fmt.Errorf("%w: it does not count", peerauth.ErrToken)
	}
	return peerauth.Peer{Node: node, PodUID: uid}, nil
}

func (k *tokens) expire(token string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expired[token] = true
}

// place is a fan-out and what it knows.
type place struct {
	t      *testing.T
	server *Server
	tokens *tokens
	addr   string
	cert   *x509.Certificate
	stop   context.CancelFunc

	mu     sync.Mutex
	status watch.Status

	lookupAfter time.Duration // of agents that follow it
}

// newPlace starts a fan-out on loopback; change may set more of its configuration.
func newPlace(t *testing.T, change func(*Config)) *place {
	t.Helper()
	cert := certificate(t)
	return newPlaceWith(t, &tls.Config{Certificates: []tls.Certificate{cert}}, cert.Leaf, change)
}

// newPlaceWith serves with a configuration of TLS that clients trust by a certificate.
func newPlaceWith(t *testing.T, conf *tls.Config, cert *x509.Certificate, change func(*Config)) *place {
	t.Helper()
	p := &place{t: t, tokens: &tokens{expired: map[string]bool{}}, status: watch.Status{Synced: true, Connected: true, Since: time.Now()}}
	cfg := Config{Log: slog.New(slog.DiscardHandler), Reviewer: p.tokens, Replica: "replica", Interval: time.Millisecond, Status: func() watch.Status {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.status
	}}
	if change != nil {
		change(&cfg)
	}
	p.server = New(cfg)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr, p.cert = l.Addr().String(), cert
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	ended := make(chan error, 1)
	go func() { ended <- p.server.Serve(ctx, l, conf) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *place) setStatus(st watch.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = st
}

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"fanout.test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// agent is a client with what it was fed.
type agent struct {
	*client.Client
	mu     sync.Mutex
	mirror *model.Cluster
	fulls  int
	gone   map[model.Name]bool // pods that batches said to be gone
	addrs  []string            // of the places that it knows
	last   *watch.Batch
	pod    *watch.AddPod // what the API server has
	err    error         // what it says instead
	asked  int           // how often
}

// away says what the API server answers in the place of a pod.
func (a *agent) away(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

func (a *agent) lookups() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

// found says what the API server has of the pod of a CNI ADD.
func (a *agent) found(p *watch.AddPod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pod = p
}

// newAgent follows places, all of which it knows, as the agent of a node.
func newAgent(t *testing.T, node, token string, places ...*place) *agent {
	t.Helper()
	var addrs []string
	for _, p := range places {
		addrs = append(addrs, p.addr)
	}
	return newAgentAt(t, node, token, addrs, places...)
}

// newAgentAt knows some addresses of places that it trusts.
func newAgentAt(t *testing.T, node, token string, addrs []string, places ...*place) *agent {
	t.Helper()
	roots := x509.NewCertPool()
	for _, p := range places {
		roots.AddCert(p.cert)
	}
	return newAgentTrusting(t, node, token, addrs, func() (*tls.Config, error) { return &tls.Config{ServerName: "fanout.test", RootCAs: roots}, nil }, places[0].lookupAfter)
}

// newAgentTrusting knows some addresses, and trusts what is there by a configuration that it asks
// for each connection.
func newAgentTrusting(t *testing.T, node, token string, addrs []string, conf func() (*tls.Config, error), lookupAfter time.Duration) *agent {
	t.Helper()
	a := &agent{mirror: model.NewCluster(), gone: map[model.Name]bool{}, addrs: addrs}
	a.Client = client.New(client.Config{Log: slog.New(slog.DiscardHandler), Node: node, Program: "test", OtherEvery: 100 * time.Millisecond, LookupAfter: lookupAfter,
		Replicas: func(context.Context) ([]string, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.addrs, nil
		},
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		},
		TLS:   conf,
		Token: func() (string, error) { return token, nil },
		Cluster: func(_ context.Context, look func(*model.Cluster)) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			look(a.mirror)
			return nil
		},
		Lookup: func(context.Context, model.Name, string) (*watch.AddPod, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.asked++; a.err != nil {
				return nil, a.err
			}
			found := *a.pod
			return &found, nil
		},
		Expression: func(text string) error { _, err := selector.Parse(text); return err },
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = a.Run(ctx, func(_ context.Context, b *watch.Batch) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if b.Full {
				a.fulls++
			}
			a.last = b
			for name, p := range b.Pods {
				if p == nil {
					a.gone[name] = true
				}
			}
			b.Apply(a.mirror)
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return a
}

// has reports whether the agent was fed what a node of a cluster is to have.
func (a *agent) has(t *testing.T, c *model.Cluster, node string) bool {
	t.Helper()
	want := encoded(t, ofNode(c, node))
	a.mu.Lock()
	defer a.mu.Unlock()
	return bytes.Equal(encoded(t, a.mirror), want)
}

// ofNode returns what a node is to have of a cluster.
func ofNode(c *model.Cluster, node string) *model.Cluster {
	alone := *c
	alone.Local = model.Local{Node: node}
	return nodeview.Of(&alone)
}

func encoded(t *testing.T, c *model.Cluster) []byte {
	t.Helper()
	messages, err := wire.Encoder{}.Marshal(c.Everything())
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Join(messages, nil)
}

// eventually waits for what comes within a second where the machine has nothing else to do.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// TestFreshWhileTheIndexIsBusy holds that an agent hears of a fan-out which is busy with what came:
// it would leave it otherwise, for one that is as busy.
func TestFreshWhileTheIndexIsBusy(t *testing.T) {
	t.Parallel()
	p := newPlace(t, nil)
	c := fleet(2, 2)
	p.fill(c)
	s := p.hello(t, "n1", nil)
	first(t, s)
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	p.server.followers["n1"].wakeUp() // it has something to look for, and cannot
	for range 2 {
		resp, err := s.Recv()
		if err != nil || resp.Fresh == nil || len(resp.Changes) > 0 {
			t.Fatalf("while the index is busy came %v, %v", resp, err)
		}
	}
}
