// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/weir-net/weir/internal/fanout/client"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/fanout/stream"
	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/peerauth/trust"
	"github.com/weir-net/weir/internal/selector"
	"github.com/weir-net/weir/internal/watch"
)

// standInsCommand is the hidden subcommand of the process that holds the streams of all nodes but
// one.
const standInsCommand = "stand-ins"

// standIns is what that process is told.
type standIns struct {
	Peers    string        `json:"peers"`    // folder of the certificates
	Replicas []string      `json:"replicas"` // host:port
	Listen   string        `json:"listen"`   // where it answers questions
	Stagger  time.Duration `json:"stagger"`  // over how long all of them start
	Nodes    []standInNode `json:"nodes"`
}

// standInNode is one agent.
type standInNode struct {
	Node   string `json:"node"`
	Token  string `json:"token"`
	Source string `json:"source"` // address that it connects from
	Model  bool   `json:"model"`  // it keeps what it is sent
}

// standInState is what the process answers.
type standInState struct {
	Started   int           `json:"started"`
	Whole     int           `json:"whole"` // have all of their part by the stream that they have now
	Snapshots int64         `json:"snapshots"`
	Messages  int64         `json:"messages"`
	Bytes     int64         `json:"bytes"`
	Lost      int64         `json:"lost"` // streams that ended
	LastError string        `json:"last_error"`
	LongestMs int64         `json:"longest_gap_ms"` // from the loss of a stream to the next snapshot
	AllAfter  time.Duration `json:"all_after"`      // from the first start until all were whole
}

// holder holds the streams.
type holder struct {
	cfg   standIns
	tls   func() (*tls.Config, error)
	seed  maphash.Seed
	began time.Time

	started, whole                   atomic.Int64
	snapshots, messages, bytes, lost atomic.Int64
	longest, allAfter                atomic.Int64

	mu        sync.Mutex
	lastError string
	seen      map[string][]int64 // marks of changes: when each stand-in had them, Unix ns
	models    map[string]*kept
	shared    sharedLists
}

// kept is the part of a cluster that a node was sent.
type kept struct {
	mu sync.Mutex
	c  *model.Cluster
}

func runStandIns(args []string) error {
	if len(args) != 1 {
		return errors.New("want the file that says what to do")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	h := &holder{seed: maphash.MakeSeed(), seen: map[string][]int64{}, models: map[string]*kept{}, began: time.Now()}
	if err := json.Unmarshal(text, &h.cfg); err != nil {
		return err
	}
	h.tls = func() (*tls.Config, error) { return trust.Folder(h.cfg.Peers).Client(names.ServerName) }
	ctx := context.Background() // it is ended by who started it
	for _, n := range h.cfg.Nodes {
		if n.Model {
			h.models[n.Node] = &kept{c: model.NewCluster()}
		}
	}
	for i, n := range h.cfg.Nodes {
		go func() {
			time.Sleep(h.cfg.Stagger * time.Duration(i) / time.Duration(len(h.cfg.Nodes)))
			h.started.Add(1)
			if n.Model {
				h.keep(ctx, n)
			} else {
				h.hold(ctx, n)
			}
		}()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/state", func(w http.ResponseWriter, _ *http.Request) { answer(w, h.state()) })
	mux.HandleFunc("/seen", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		answer(w, h.seen)
		h.seen = map[string][]int64{}
	})
	mux.HandleFunc("/model", func(w http.ResponseWriter, r *http.Request) {
		k := h.models[r.URL.Query().Get("node")]
		if k == nil {
			http.Error(w, "that node keeps no model", http.StatusNotFound)
			return
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		messages, err := wire.Encoder{}.Marshal(k.c.Everything())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, messages)
	})
	return http.ListenAndServe(h.cfg.Listen, mux)
}

func answer(w http.ResponseWriter, v any) {
	_ = json.NewEncoder(w).Encode(v) // who asked may be gone
}

func (h *holder) state() standInState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return standInState{Started: int(h.started.Load()), Whole: int(h.whole.Load()), Snapshots: h.snapshots.Load(), Messages: h.messages.Load(),
		Bytes: h.bytes.Load(), Lost: h.lost.Load(), LastError: h.lastError, LongestMs: h.longest.Load(), AllAfter: time.Duration(h.allAfter.Load())}
}

// isWhole notes that a stand-in has a snapshot, or what it lacked of one; since is when its stream
// before ended.
func (h *holder) isWhole(since time.Time) {
	h.snapshots.Add(1)
	if h.whole.Add(1) == int64(len(h.cfg.Nodes)) && h.allAfter.Load() == 0 {
		h.allAfter.Store(int64(time.Since(h.began)))
	}
	if since.IsZero() {
		return
	}
	for gap := time.Since(since).Milliseconds(); ; {
		if was := h.longest.Load(); was >= gap || h.longest.CompareAndSwap(was, gap) {
			return
		}
	}
}

// see notes the marks that changes bear; before has those that the stand-in has seen last.
func (h *holder) see(marks, before map[string]string) {
	now := time.Now().UnixNano()
	for kind, mark := range marks {
		if before[kind] == mark {
			continue
		}
		before[kind] = mark
		h.mu.Lock()
		h.seen[mark] = append(h.seen[mark], now)
		h.mu.Unlock()
	}
}

func (h *holder) dial(n standInNode) func(context.Context, string) (net.Conn, error) {
	from := &net.TCPAddr{IP: net.ParseIP(n.Source)}
	return func(ctx context.Context, addr string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: from}).DialContext(ctx, "tcp", addr)
	}
}

// hold holds the stream of one node. What comes is decoded, and kept as digests: once for all nodes
// that get the same message, since each agent of a cluster has a CPU of its own.
func (h *holder) hold(ctx context.Context, n standInNode) {
	var ended time.Time
	d := newDigests()
	wait := 100 * time.Millisecond
	for at := rand.IntN(len(h.cfg.Replicas)); ; at++ {
		began := time.Now()
		whole, err := h.follow(ctx, n, h.cfg.Replicas[at%len(h.cfg.Replicas)], ended, d)
		if whole {
			h.whole.Add(-1)
			h.lost.Add(1)
			ended, wait = time.Now(), 100*time.Millisecond
		}
		h.mu.Lock()
		h.lastError = fmt.Sprint(n.Node, ": ", err)
		h.mu.Unlock()
		if time.Since(began) < time.Second {
			time.Sleep(time.Duration((0.5 + rand.Float64()) * float64(wait)))
			wait = min(2*wait, 5*time.Second)
		}
	}
}

// follow holds one stream until it ends, and reports whether all of the node's part came.
func (h *holder) follow(ctx context.Context, n standInNode, addr string, since time.Time, has *digests) (whole bool, err error) {
	conf, err := h.tls()
	if err != nil {
		return false, err
	}
	conf.NextProtos = []string{"h2"}
	// Bounds as in package client.
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)), grpc.WithContextDialer(h.dial(n)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MostSize+stream.MostRequest)), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithReadBufferSize(16<<10), grpc.WithWriteBufferSize(4<<10))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+n.Token))
	defer cancel()
	up, err := stream.Follow(ctx, conn)
	if err != nil {
		return false, err
	}
	if err := up.Send(&stream.Request{Endpoints: stream.EndpointsFrom(nil), Program: "stand-in", Held: has.held()}); err != nil {
		return false, err
	}
	defer has.abandon()
	before := map[string]string{}
	for {
		silent := time.AfterFunc(2*time.Minute, cancel)
		resp, err := up.Recv()
		silent.Stop()
		if err != nil {
			return whole, err
		}
		if len(resp.Changes) > 0 {
			h.messages.Add(1)
			h.bytes.Add(int64(len(resp.Changes)))
			got, err := h.shared.of(maphash.Bytes(h.seed, resp.Changes), resp.Changes)
			if err != nil {
				return whole, err
			}
			if whole {
				h.see(got.marks, before)
			}
			has.take(got.lists)
		}
		if resp.More || len(resp.Changes) == 0 {
			continue
		}
		if err := has.put(resp); err != nil {
			return whole, err
		}
		if resp.Snapshot || resp.Delta != nil {
			whole = true
			h.isWhole(since)
		}
	}
}

func expression(text string) error {
	_, err := selector.Parse(text)
	return err
}

// keep is an agent's own client, whose node's part is kept.
func (h *holder) keep(ctx context.Context, n standInNode) {
	k := h.models[n.Node]
	c := client.New(client.Config{Log: slog.New(slog.DiscardHandler), Node: n.Node, Program: "stand-in", Dial: h.dial(n), TLS: h.tls, Expression: expression,
		Token:    func() (string, error) { return n.Token, nil },
		Replicas: func(context.Context) ([]string, error) { return h.cfg.Replicas, nil },
		Lookup: func(context.Context, model.Name, string) (*watch.AddPod, error) {
			return nil, errors.New("a stand-in starts no pods")
		},
		Claims: map[string]watch.NodeClaims{},
		Cluster: func(_ context.Context, look func(*model.Cluster)) error {
			k.mu.Lock()
			defer k.mu.Unlock()
			look(k.c)
			return nil
		}})
	first, before := true, map[string]string{}
	_ = c.Run(ctx, func(_ context.Context, b *watch.Batch) { // until the process ends
		k.mu.Lock()
		b.Apply(k.c)
		k.mu.Unlock()
		if first {
			first = false
			h.isWhole(time.Time{})
		} else {
			h.messages.Add(1)
			h.see(marks(&b.Changes), before)
		}
	})
}

// source is the address that the stand-in of a node connects from.
func source(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 201, byte(i >> 8), byte(i)}) }
