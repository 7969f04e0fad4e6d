// SPDX-License-Identifier: Apache-2.0

// Package apiserver finds the API server, from a node on which the API server's configured address
// may be one that Weir itself makes reachable, or that of one of several servers that is down. A
// Dialer knows the servers' own addresses, as the cluster had them last, over restarts
// (EndpointSlices); and Reached remembers where a connection was made, which no Service may take.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/agent/statefile"
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/kernel"
)

// Dialer finds the API server. The configured address may be one that Weir itself makes reachable
// (the cluster IP), or one of several servers that is down: when it does not answer, the servers'
// own addresses are tried, as the cluster had them last. TLS is checked against the configured name
// all the same, and nothing is sent before that. The sockets bear the mark of the agent's own
// (kernel.OwnMark): no table of Weir's applies to them, so wrong ones keep no agent from what would
// put them right.
type Dialer struct {
	log  *slog.Logger
	file *statefile.File[[]string]

	mu      sync.Mutex
	learned []string  // host:port, sorted
	used    string    // fall-back in use; it is tried at once
	freed   time.Time // when connections were freed last

	dialer net.Dialer

	// FreeFlows forgets what a data plane knows of connections to these addresses and ports that is
	// translated, as conntrack.Free does of the kernel's, and returns how many these were; nil =
	// there is no such.
	FreeFlows func([]netip.AddrPort) (int, error)
}

// patience is how long the configured address is tried alone.
const patience = time.Second

func NewDialer(file string, log *slog.Logger) *Dialer {
	s := &Dialer{log: log, file: statefile.New[[]string](file, log),
		dialer: net.Dialer{Timeout: 3 * time.Second, Control: kernel.MarkOwn, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second, Interval: 2 * time.Second, Count: 3}}}
	for _, a := range s.file.Load() {
		if _, err := netip.ParseAddrPort(a); err != nil {
			log.Warn("a learned address of the API server is not one; left out", "file", file, "address", a)
			continue
		}
		s.learned = append(s.learned, a)
	}
	s.learned = s.learned[:min(len(s.learned), maxLearned)]
	return s
}

// maxLearned bounds the addresses that are kept and dialled.
const maxLearned = 16

// Learn keeps the servers' addresses, for now and for the next start: at most maxLearned. None
// teach nothing.
func (s *Dialer) Learn(addrs []string) {
	addrs = addrs[:min(len(addrs), maxLearned)]
	s.mu.Lock()
	same := len(addrs) == 0 || slices.Equal(addrs, s.learned)
	if !same {
		s.learned = slices.Clone(addrs)
	}
	s.mu.Unlock()
	if !same {
		s.log.Info("addresses of the API server", "addresses", addrs)
		_ = s.file.Save(addrs) // reported by save
	}
}

type dialed struct {
	conn net.Conn
	addr string
	err  error
}

// FreeRoutes takes away routes of Weir's own that lead away from the servers; addr is the
// configured one, empty where it may be one that Weir makes reachable.
func (s *Dialer) FreeRoutes(addr string) {
	s.mu.Lock()
	all := append(slices.Clone(s.learned), addr)
	s.mu.Unlock()
	var addrs []netip.Addr
	for _, a := range all {
		if at, err := netip.ParseAddrPort(a); err == nil {
			addrs = append(addrs, at.Addr())
		}
	}
	removed, err := kernel.FreeRoutes(addrs)
	if err != nil {
		s.log.Error("routes may lead away from the API server", "error", err)
	}
	if len(removed) > 0 {
		s.log.Warn("removed routes of an earlier run that led away from the API server, or from a gateway", "routes", removed)
	}
}

// freePause is the least time between two looks at the tracked connections, which may be many.
const freePause = 5 * time.Second

// FreeConnections forgets tracked connections to the servers that something translated to
// elsewhere, and reports whether there were any: the agent's own from the same ports would go
// there. Only learned addresses count: the configured one may be one that is rightly translated.
func (s *Dialer) FreeConnections() bool {
	s.mu.Lock()
	due := time.Since(s.freed) > freePause
	if due {
		s.freed = time.Now()
	}
	var to []netip.AddrPort
	for _, a := range s.learned {
		if at, err := netip.ParseAddrPort(a); err == nil {
			to = append(to, at)
		}
	}
	s.mu.Unlock()
	if !due {
		return false
	}
	freed, err := conntrack.Free(to)
	if err != nil { // a kernel that tracks no connections has none
		s.log.Debug("cannot look at the tracked connections to the API server", "error", err)
	}
	if s.FreeFlows != nil {
		n, err := s.FreeFlows(to)
		if err != nil {
			s.log.Warn("cannot look at the flows to the API server", "error", err)
		}
		freed += n
	}
	if freed > 0 {
		s.log.Warn("forgot connections to the API server that were translated to elsewhere", "connections", freed)
	}
	return freed > 0
}

// Dial connects to the configured address, or to the first learned one that answers. While none was
// learned the configured one is asked without the mark, too: it may be one that Weir makes
// reachable.
func (s *Dialer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.dialer.Timeout)
	defer cancel()
	s.mu.Lock()
	alone := len(s.learned) == 0
	used, others := s.used, slices.DeleteFunc(slices.Clone(s.learned), func(a string) bool { return a == addr })
	s.mu.Unlock()
	results := make(chan dialed, 3+len(others))
	plain := s.dialer
	plain.Control = nil
	try := func(d net.Dialer, a string) {
		conn, err := d.DialContext(ctx, network, a)
		results <- dialed{conn, a, err}
	}
	go try(s.dialer, addr)
	running := 1
	if i := slices.Index(others, used); i >= 0 {
		others = slices.Delete(others, i, i+1)
		go try(s.dialer, used)
		running++
	}
	wait := time.NewTimer(patience)
	defer wait.Stop()
	var errs []error
	for running > 0 {
		select {
		case r := <-results:
			running--
			if r.err == nil {
				s.note(addr, r.addr)
				go discard(results, running)
				return r.conn, nil
			}
			errs = append(errs, r.err)
		case <-wait.C:
			if s.FreeConnections() {
				others = append(others, addr) // once more, from another port
			}
		}
		for _, o := range others {
			go try(s.dialer, o)
		}
		running += len(others)
		others = nil
		if alone {
			alone = false
			running++
			go try(plain, addr)
		}
	}
	s.FreeRoutes(addr)
	return nil, fmt.Errorf("the API server does not answer at %s, nor at the addresses learned before: %w", addr, errors.Join(errs...))
}

// discard closes connections that came too late.
func discard(results chan dialed, n int) {
	for range n {
		if r := <-results; r.conn != nil {
			r.conn.Close()
		}
	}
}

func (s *Dialer) note(configured, used string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if used == configured {
		used = ""
	}
	if used == s.used {
		return
	}
	s.used = used
	if used == "" {
		s.log.Info("the API server is reached at the configured address", "address", configured)
		return
	}
	s.log.Warn("the API server is reached at an address learned before; the configured one does not answer", "configured", configured, "used", used)
}
