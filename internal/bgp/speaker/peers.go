// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/weir-net/weir/internal/bgp/bfd"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/sleep"
)

// Times of sessions, in seconds.
const (
	holdTime   = 90 // three keepalives
	retryTime  = 5
	deferral   = 15 // how long a process that begins again waits for peers that do not come
	longestTTL = 255

	// shutdownTime bounds the wait for sessions that end.
	shutdownTime = 5 * time.Second
)

// setPeers makes the sessions those that are wanted: one that is another one ends first.
func (s *Speaker) setPeers(ctx context.Context, want *nodestate.BGP) []error {
	var errs []error
	now := map[netip.Addr]session{}
	for _, p := range want.Peers {
		one := session{peer: p}
		if p.Password != (model.SecretKey{}) {
			password, ok := s.cfg.Password(p.Password)
			if !ok {
				errs = append(errs, fmt.Errorf("session with %s (%s): the password is not known: key %s of Secret %s", p.Addr, p.Name, p.Password.Key, p.Password.Name))
				continue
			}
			one.password = password
		}
		now[p.Addr] = one
	}
	var over []netip.Addr
	for a, was := range s.sessions {
		if is, there := now[a]; !there || !same(was, is) {
			over = append(over, a)
		}
	}
	errs = append(errs, s.end(ctx, over)...)
	for a, is := range now {
		if was, there := s.sessions[a]; there {
			was.peer.Name = is.peer.Name
			s.sessions[a] = was
			continue
		}
		if err := s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: s.neighbour(is, want.ASN)}); err != nil {
			errs = append(errs, fmt.Errorf("session with %s (%s): %w", a, is.peer.Name, err))
			continue
		}
		s.sessions[a] = is
	}
	return append(errs, s.detect()...)
}

// detect has BFD look at the peers that have it and a session.
func (s *Speaker) detect() []error {
	var peers []bfd.Peer
	for a := range s.up {
		if one, there := s.sessions[a]; there && one.peer.BFD {
			peers = append(peers, bfd.Peer{Addr: a, Source: one.peer.Source})
		}
	}
	if err := s.detector.Set(peers); err != nil {
		return []error{err}
	}
	return nil
}

// noteState is called when a session has another state.
func (s *Speaker) noteState(srv *server.BgpServer, state *apiutil.PeerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != srv {
		return
	}
	a := state.NeighborAddress
	switch state.DisconnectReason {
	case api.PeerState_DISCONNECT_REASON_UNSPECIFIED, api.PeerState_DISCONNECT_REASON_IDLE_TIMER_EXPIRED: // the second is why one begins
	default:
		s.ended[a] = state.DisconnectMessage
	}
	if established := state.SessionState == bgp.BGP_FSM_ESTABLISHED; established == s.up[a] {
		return
	} else if established {
		s.up[a] = true
	} else {
		delete(s.up, a)
		if s.restoring {
			s.settlePeer(a)
		}
	}
	for _, err := range s.detect() {
		s.cfg.Log.Error("failures of peers are not detected", "error", err)
	}
}

// noteFailed ends the session with a peer that BFD has found gone. It begins again by itself.
func (s *Speaker) noteFailed(peer netip.Addr, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil || !s.up[peer] {
		return
	}
	if err := s.server.ResetPeer(context.Background(), &api.ResetPeerRequest{Address: peer.String(), Communication: why}); err != nil {
		s.cfg.Log.Error("a session with a router that is gone stays", "peer", peer, "error", err)
	}
}

// end ends sessions for good. GoBGP's DeletePeer alone takes a peer's routes away while the peer's
// own goroutine may be at work on a message, whose routes would then stay without anybody who
// withdraws them. A session that is shut down first drops them in that goroutine itself.
func (s *Speaker) end(ctx context.Context, peers []netip.Addr) []error {
	var errs []error
	for _, a := range peers {
		if err := s.server.DisablePeer(ctx, &api.DisablePeerRequest{Address: a.String()}); err != nil {
			errs = append(errs, fmt.Errorf("ending the session with %s: %w", a, err))
		}
	}
	waiting, cancel := context.WithTimeout(ctx, shutdownTime)
	defer cancel()
	for _, a := range peers {
		for !s.isDown(a) {
			if sleep.For(waiting, 2*time.Millisecond) != nil {
				errs = append(errs, fmt.Errorf("the session with %s does not end within %s", a, shutdownTime))
				break
			}
		}
		if err := s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: a.String()}); err != nil {
			errs = append(errs, fmt.Errorf("ending the session with %s: %w", a, err))
			continue
		}
		delete(s.sessions, a)
		delete(s.complete, a)
		delete(s.ended, a)
	}
	return errs
}

// isDown reports whether a peer was shut down and has no session any more, or is not there.
func (s *Speaker) isDown(peer netip.Addr) bool {
	down := true
	err := s.server.ListPeer(context.Background(), &api.ListPeerRequest{Address: peer.String()}, func(p *api.Peer) {
		down = p.GetState().GetAdminState() == api.PeerState_ADMIN_STATE_DOWN && p.GetState().GetSessionState() != api.PeerState_SESSION_STATE_ESTABLISHED
	})
	return down || err != nil
}

// same reports whether a session can go on as another one; its name is for people. One that this
// node may begin goes on where it need not any more, as when no node has Calico any longer: to end
// it would take its routes away.
func same(was, is session) bool {
	was.peer.Name = is.peer.Name
	if !was.peer.Passive {
		is.peer.Passive = false
	}
	return was == is
}

// neighbour is a session as the library has it: of the family of its addresses.
func (s *Speaker) neighbour(one session, asn uint32) *api.Peer {
	p := one.peer
	family := &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	if p.Addr.Is6() {
		family.Afi = api.Family_AFI_IP6
	}
	local := asn
	if p.LocalASN != 0 {
		local = p.LocalASN
	}
	hold := uint64(holdTime)
	if p.Keepalive != 0 {
		hold = 3 * uint64(p.Keepalive)
	}
	out := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: p.Addr.String(), PeerAsn: p.ASN, LocalAsn: local, AuthPassword: one.password, Description: p.Name,
			AllowOwnAsn: allOwnASN},
		Timers:          &api.Timers{Config: &api.TimersConfig{HoldTime: hold, KeepaliveInterval: hold / 3, ConnectRetry: retryTime, IdleHoldTimeAfterReset: retryTime}},
		Transport:       &api.Transport{RemotePort: uint32(p.Port), PassiveMode: p.Passive},
		GracefulRestart: &api.GracefulRestart{Enabled: true, RestartTime: p.Restart, DeferralTime: min(deferral, p.Restart), LocalRestarting: s.restoring},
		AfiSafis: []*api.AfiSafi{{Config: &api.AfiSafiConfig{Family: family, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}}}},
	}
	if p.LongLived != 0 {
		out.GracefulRestart.LonglivedEnabled = true
		out.AfiSafis[0].LongLivedGracefulRestart = &api.LongLivedGracefulRestart{Config: &api.LongLivedGracefulRestartConfig{Enabled: true, RestartTime: p.LongLived}}
	}
	if p.Source.IsValid() {
		out.Transport.LocalAddress = p.Source.String()
	}
	switch {
	case p.TTLHops != 0:
		out.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: longestTTL - uint32(p.TTLHops) + 1}
	case p.ASN != local:
		out.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: longestTTL}
	}
	if p.ClusterID.IsValid() {
		out.RouteReflector = &api.RouteReflector{RouteReflectorClient: true, RouteReflectorClusterId: p.ClusterID.String()}
	}
	return out
}

// listPeers are the sessions as they are. s.mu is held.
func (s *Speaker) listPeers() map[netip.Addr]feed.Peer {
	out := map[netip.Addr]feed.Peer{}
	err := s.server.ListPeer(context.Background(), &api.ListPeerRequest{EnableAdvertised: true}, func(p *api.Peer) {
		a, err := netip.ParseAddr(p.GetConf().GetNeighborAddress())
		if err != nil {
			return
		}
		one := feed.Peer{Addr: a, ASN: p.GetConf().GetPeerAsn(), State: strings.ToLower(strings.TrimPrefix(p.GetState().GetSessionState().String(), "SESSION_STATE_")),
			Flaps: p.GetState().GetFlops()}
		one.BFD = s.detector.State(a)
		one.RouterID, _ = netip.ParseAddr(p.GetState().GetRouterId())
		t := p.GetTimers().GetState()
		since := t.GetDowntime()
		if one.Established() {
			since = t.GetUptime()
		}
		if since.GetSeconds() > 0 {
			one.Since = since.AsTime()
		}
		for _, f := range p.GetAfiSafis() {
			one.Received += f.GetState().GetReceived()
			one.Advertised += f.GetState().GetAdvertised()
		}
		// The capability without families, as OpenBGPD's, says that the peer keeps routes, and does
		// not ask for it itself (RFC 4724, 3).
		one.GracefulRestart = one.Established() && slices.ContainsFunc(p.GetState().GetRemoteCap(), func(c *api.Capability) bool { return c.GetGracefulRestart() != nil })
		out[a] = one
	})
	if err != nil {
		s.cfg.Log.Warn("sessions cannot be listed", "error", err)
	}
	return out
}

func sortPeers(list []feed.Peer) {
	slices.SortFunc(list, func(a, b feed.Peer) int { return a.Addr.Compare(b.Addr) })
}

// errNothing is returned while there are no sessions.
var errNothing = errors.New("BGP is not in use on this node")
