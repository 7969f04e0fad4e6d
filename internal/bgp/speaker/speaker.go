// SPDX-License-Identifier: Apache-2.0

// Package speaker has the BGP sessions of a node, by GoBGP: Apply makes them what a desired state
// says, and what is learned goes into a fib.Table. A process that begins where another one ended
// says so to its peers (graceful restart, RFC 4724), and leaves what that one had in the kernel
// until the peers have sent what they have.
package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/weir-net/weir/internal/bgp/bfd"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/fib"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/version"
)

// Config is what a Speaker needs.
type Config struct {
	Log   *slog.Logger
	Table *fib.Table
	// Password returns what a key of a Secret holds; ok is false while that is not known.
	Password func(model.SecretKey) (password string, ok bool)
	// Restoring: another process of this machine ended, of which the peers may keep the routes.
	Restoring bool
}

// Speaker has the sessions of a node. It is safe for concurrent use.
type Speaker struct {
	cfg   Config
	since time.Time

	mu        sync.Mutex
	server    *server.BgpServer // nil = no session is wanted
	stopWatch context.CancelFunc
	have      nodestate.BGP
	sessions  map[netip.Addr]session
	paths     map[netip.Prefix]string // own ones, with their communities
	restoring bool
	// complete are the peers that have sent all that they have since the start.
	complete map[netip.Addr]bool
	ended    map[netip.Addr]string // why a session ended last
	up       map[netip.Addr]bool   // the peers whose sessions are established
	detector *bfd.Detector
	err      error
	applied  time.Time
}

// session is one as it was made.
type session struct {
	peer     nodestate.BGPPeer
	password string
}

// New returns a Speaker without sessions.
func New(cfg Config) *Speaker {
	s := &Speaker{cfg: cfg, since: time.Now(), sessions: map[netip.Addr]session{}, paths: map[netip.Prefix]string{}, restoring: cfg.Restoring,
		complete: map[netip.Addr]bool{}, ended: map[netip.Addr]string{}, up: map[netip.Addr]bool{}}
	s.detector = bfd.New(cfg.Log, s.noteFailed)
	return s
}

// Restore says before the first state that another process ended here, as Config.Restoring does.
func (s *Speaker) Restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restoring = true
}

// Apply makes the sessions and what is advertised what the state says; nil = nothing. What cannot
// be done is returned, and in the status; the rest is done.
func (s *Speaker) Apply(ctx context.Context, want *nodestate.BGP) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.applied = s.apply(ctx, want), time.Now()
	return s.err
}

func (s *Speaker) apply(ctx context.Context, want *nodestate.BGP) error {
	if want == nil {
		s.cfg.Table.Clear()
		s.restoring = false
		return s.stop(ctx, false)
	}
	table := fib.Config{Keep: want.Keep, Sources: want.Sources, Fixed: map[netip.Addr]netip.Addr{}}
	for _, g := range want.Gateways {
		table.Fixed[g.Peer] = g.Via
	}
	s.cfg.Table.Configure(table)
	if s.server != nil && s.needsAnother(want) {
		// What it has learned carries packets until the next one has learned it again.
		s.cfg.Table.Forget()
		s.restoring = true
		if err := s.stop(ctx, true); err != nil {
			return err
		}
	}
	if s.server == nil {
		if err := s.start(ctx, want); err != nil {
			return err
		}
	}
	var errs []error
	if !samePolicy(&s.have, want) {
		if err := s.setPolicy(ctx, want); err != nil {
			return fmt.Errorf("saying which routes are let through: %w", err) // no new session without its filters
		}
	}
	errs = append(errs, s.advertise(want)...)
	errs = append(errs, s.setPeers(ctx, want)...)
	s.have = *want
	if s.restoring && len(want.Peers) == 0 {
		s.restored("there are no peers")
	}
	return errors.Join(errs...)
}

// needsAnother reports whether a server has to begin anew: what it is, where it listens, or a
// session that no longer has a password, which the library does not take from its listeners.
func (s *Speaker) needsAnother(want *nodestate.BGP) bool {
	if s.have.ASN != want.ASN || s.have.RouterID != want.RouterID || s.have.ListenPort != want.ListenPort || !reflect.DeepEqual(s.have.ListenAddrs, want.ListenAddrs) {
		return true
	}
	now := map[netip.Addr]bool{}
	for _, p := range want.Peers {
		now[p.Addr] = p.Password != (model.SecretKey{})
	}
	for a, has := range s.sessions {
		if has.password != "" && !now[a] {
			return true
		}
	}
	return false
}

func (s *Speaker) start(ctx context.Context, want *nodestate.BGP) error {
	srv := server.NewBgpServer(server.LoggerOption(s.cfg.Log.With("part", "gobgp"), nil))
	go srv.Serve()
	global := &api.Global{Asn: want.ASN, RouterId: want.RouterID.String(), ListenPort: int32(want.ListenPort), ListenAddresses: listenOn(want.ListenAddrs), UseMultiplePaths: true}
	if err := srv.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		srv.Stop()
		return fmt.Errorf("listening for BGP at port %d: %w", want.ListenPort, err)
	}
	watching, cancel := context.WithCancel(context.Background())
	err := srv.WatchEvent(watching, server.WatchEventMessageCallbacks{
		OnBestPath: func(paths []*apiutil.Path, _ time.Time) { s.learn(srv, paths) },
		OnPathEor:  func(p *apiutil.Path, _ time.Time) { s.noteComplete(p.PeerAddress) },
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
			s.noteState(srv, &e.Peer.State)
		},
	}, server.WatchBestPath(true), server.WatchEor(true), server.WatchPeer())
	if err != nil {
		cancel()
		srv.Stop()
		return fmt.Errorf("following what is learned: %w", err)
	}
	s.server, s.stopWatch, s.have = srv, cancel, nodestate.BGP{}
	if err := s.setPolicy(ctx, &nodestate.BGP{}); err != nil {
		return errors.Join(fmt.Errorf("saying which routes are handed on: %w", err), s.stop(ctx, false))
	}
	if s.restoring {
		restart, kept := restoreWithin(want)
		for _, p := range want.Peers {
			s.after(srv, time.Duration(p.Restart)*time.Second, func() { s.cfg.Table.SettlePeer(p.Addr) })
		}
		s.after(srv, restart, func() { s.cfg.Table.SettleHops() })
		s.after(srv, kept, func() { s.restored("the time is over in which peers should have sent them") })
	}
	s.cfg.Log.Info("BGP begins", "asn", want.ASN, "router", want.RouterID, "port", want.ListenPort, "restoring", s.restoring)
	return nil
}

// after calls f, with s.mu held, in d unless another server has taken srv's place.
func (s *Speaker) after(srv *server.BgpServer, d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.server == srv {
			f()
		}
	})
}

// restoreWithin is how long what an earlier process left stays that no peer has sent again: next
// hops beside others for the restart time (RFC 4724), routes as long as the peers keep those of
// this node, so for the long-lived time, too, in which they come after all others (RFC 9494).
func restoreWithin(want *nodestate.BGP) (restart, kept time.Duration) {
	restart, kept = time.Second, time.Second
	for _, p := range want.Peers {
		restart = max(restart, time.Duration(p.Restart)*time.Second)
		kept = max(kept, time.Duration(p.Restart+p.LongLived)*time.Second)
	}
	return restart, kept
}

// listenOn is where to listen: on all addresses, those of IPv6 where the machine has it.
func listenOn(addrs []netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	if len(out) == 0 {
		out = append(out, "0.0.0.0")
		if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
			out = append(out, "::")
		}
	}
	return out
}

// stop ends all sessions. Peers are told that it is for good, or with another to follow nothing, so
// that they keep this node's routes (RFC 4724).
func (s *Speaker) stop(ctx context.Context, another bool) error {
	if s.server == nil {
		return nil
	}
	s.stopWatch()
	err := s.server.StopBgp(ctx, &api.StopBgpRequest{AllowGracefulRestart: another})
	for p := range s.paths {
		delete(s.paths, p)
	}
	s.server, s.sessions, s.have = nil, map[netip.Addr]session{}, nodestate.BGP{}
	s.complete, s.up = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	s.detector.Close()
	s.cfg.Log.Info("BGP ended")
	return err
}

// learn notes the best paths of a server, those that have become it and those that are it no more,
// unless another server has taken its place. Those of this node are the data plane's.
func (s *Speaker) learn(srv *server.BgpServer, paths []*apiutil.Path) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != srv {
		return
	}
	for _, p := range paths {
		prefix, ok := prefixOf(p)
		if !ok {
			continue
		}
		if !p.PeerAddress.IsValid() || p.PeerAddress.IsUnspecified() {
			continue
		}
		hop := nextHop(p)
		if p.Withdrawal || hop.IsUnspecified() {
			hop = netip.Addr{}
		}
		s.cfg.Table.Learn(prefix, p.PeerAddress, hop, isLongStale(p))
	}
}

// noteComplete is called when a peer has sent all that it has.
func (s *Speaker) noteComplete(peer netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete[peer] = true
	if !s.restoring || s.server == nil {
		return
	}
	s.settlePeer(peer)
	for a := range s.sessions {
		if !s.complete[a] {
			return
		}
	}
	s.restored("all peers have sent theirs")
}

// settlePeer is called when nothing of what an earlier process learned is to be expected of a peer
// any more. The event that says so may come before the last of its routes: these have a moment.
func (s *Speaker) settlePeer(peer netip.Addr) {
	s.after(s.server, time.Second, func() { s.cfg.Table.SettlePeer(peer) })
}

// restored ends the restoration, after a moment as for one peer.
func (s *Speaker) restored(why string) {
	if !s.restoring {
		return
	}
	s.restoring = false
	s.cfg.Log.Info("routes of the process before end that are not there again", "because", why)
	time.AfterFunc(time.Second, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.restoring {
			s.cfg.Table.Settle()
		}
	})
}

// Status says how the sessions are.
func (s *Speaker) Status() feed.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := feed.Status{Version: version.Version, Since: s.since, Applied: s.applied, Restoring: s.restoring, ASN: s.have.ASN, RouterID: s.have.RouterID, Routes: s.cfg.Table.Status()}
	if s.err != nil {
		st.Err = s.err.Error()
	}
	if s.server == nil {
		return st
	}
	for a, p := range s.listPeers() {
		p.Name, p.LastError = s.sessions[a].peer.Name, s.ended[a]
		st.Peers = append(st.Peers, p)
	}
	sortPeers(st.Peers)
	return st
}
