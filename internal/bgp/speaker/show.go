// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/fib"
)

// Answer answers a question of the agent.
func (s *Speaker) Answer(q feed.Ask) feed.Answer {
	if q.Neighbour.IsValid() {
		return s.showNeighbour(q.Neighbour)
	}
	out := s.Routes(q)
	if q.Sent {
		return out
	}
	kernel, err := fib.Listed()
	if err != nil {
		s.cfg.Log.Warn("which routes are in the kernel cannot be said", "error", err)
	}
	for i := range out.Routes {
		r := &out.Routes[i]
		hops := kernel[r.Prefix]
		at := slices.IndexFunc(hops, func(h fib.Hop) bool { return h.Gateway == r.NextHop })
		if at < 0 && r.Best && len(hops) > 0 { // by a router that leads to the next hop
			at = 0
		}
		// What is learned from a peer and is not the best may have the kernel's next hop by chance.
		if at >= 0 && r.NextHop.IsValid() && (r.Best || q.Peer.IsValid()) {
			r.Installed, r.Interface, r.Gateway = true, hops[at].Interface, hops[at].Gateway
		}
	}
	return out
}

// errNoSession says that a node has none with a peer.
func errNoSession(a netip.Addr) string { return fmt.Sprintf("this node has no session with %s", a) }

// showNeighbour says all of a session.
func (s *Speaker) showNeighbour(a netip.Addr) feed.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return feed.Answer{Err: errNothing.Error()}
	}
	one, there := s.listPeers()[a]
	if !there {
		return feed.Answer{Err: errNoSession(a)}
	}
	one.Name, one.LastError = s.sessions[a].peer.Name, s.ended[a]
	var out *feed.Neighbour
	err := s.server.ListPeer(context.Background(), &api.ListPeerRequest{Address: a.String(), EnableAdvertised: true}, func(p *api.Peer) {
		out = neighbourOf(p)
	})
	switch {
	case err != nil:
		return feed.Answer{Err: err.Error()}
	case out == nil:
		return feed.Answer{Err: errNoSession(a)}
	}
	out.Peer = one
	if !one.Established() { // what is left of the session before says nothing
		out.Hold, out.Keepalive, out.PeerRestart = 0, 0, 0
		for i := range out.Capabilities {
			out.Capabilities[i].Theirs = false
		}
		out.Capabilities = slices.DeleteFunc(out.Capabilities, func(c feed.Capability) bool { return !c.Ours })
	}
	return feed.Answer{Neighbour: out}
}

// neighbourOf is a session of the library, without what feed.Peer has.
func neighbourOf(p *api.Peer) *feed.Neighbour {
	c, st, timers, transport := p.GetConf(), p.GetState(), p.GetTimers(), p.GetTransport()
	out := &feed.Neighbour{LocalASN: c.GetLocalAsn(), Port: transport.GetRemotePort(), Passive: transport.GetPassiveMode(), Password: c.GetAuthPassword() != "",
		Hold: timers.GetState().GetNegotiatedHoldTime(), Keepalive: timers.GetState().GetKeepaliveInterval(),
		OwnHold: timers.GetConfig().GetHoldTime(), OwnKeepalive: timers.GetConfig().GetKeepaliveInterval(),
		Restart: p.GetGracefulRestart().GetRestartTime(), PeerRestart: p.GetGracefulRestart().GetPeerRestartTime(),
		Sent: messagesOf(st.GetMessages().GetSent()), Got: messagesOf(st.GetMessages().GetReceived())}
	if a, err := netip.ParseAddr(transport.GetLocalAddress()); err == nil && !a.IsUnspecified() {
		out.LocalAddr = a
	}
	if t := p.GetTtlSecurity(); t.GetEnabled() {
		out.MinTTL = t.GetTtlMin()
	}
	if r := p.GetRouteReflector(); r.GetRouteReflectorClient() {
		out.ReflectsAs = r.GetRouteReflectorClusterId()
	}
	for _, f := range p.GetAfiSafis() {
		of := f.GetState()
		name := "IPv4 unicast"
		if f.GetConfig().GetFamily().GetAfi() == api.Family_AFI_IP6 {
			name = "IPv6 unicast"
		}
		out.Families = append(out.Families, feed.Family{Name: name, Received: of.GetReceived(), Accepted: of.GetAccepted(), Advertised: of.GetAdvertised()})
	}
	add := func(list []*api.Capability, mark func(*feed.Capability)) {
		caps, err := apiutil.UnmarshalCapabilities(list)
		if err != nil {
			return // one that the library knows in part only: what it does not list it does not use
		}
		for _, c := range caps {
			name := capabilityName(c)
			i := slices.IndexFunc(out.Capabilities, func(h feed.Capability) bool { return h.Name == name })
			if i < 0 {
				i = len(out.Capabilities)
				out.Capabilities = append(out.Capabilities, feed.Capability{Name: name})
			}
			mark(&out.Capabilities[i])
		}
	}
	add(st.GetLocalCap(), func(c *feed.Capability) { c.Ours = true })
	add(st.GetRemoteCap(), func(c *feed.Capability) { c.Theirs = true })
	return out
}

// capabilityName is a capability's name, with its family where each has its own.
func capabilityName(c bgp.ParameterCapabilityInterface) string {
	if m, is := c.(*bgp.CapMultiProtocol); is {
		return c.Code().String() + " " + m.CapValue.String()
	}
	return c.Code().String()
}

func messagesOf(m *api.Message) feed.Messages {
	return feed.Messages{Total: m.GetTotal(), Open: m.GetOpen(), Update: m.GetUpdate(), Keepalive: m.GetKeepalive(), Refresh: m.GetRefresh(), Notification: m.GetNotification()}
}
