// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/nodestate"
)

// advertise makes this node's own paths those that are wanted.
func (s *Speaker) advertise(want *nodestate.BGP) []error {
	var errs []error
	communities := map[netip.Prefix][]string{}
	for _, t := range want.Tags {
		communities[t.Prefix] = t.Communities
	}
	for p := range s.paths {
		if slices.Contains(want.Advertise, p) {
			continue
		}
		path, err := ownPath(p, nil)
		if err == nil {
			err = s.server.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("withdrawing %s: %w", p, err))
			continue
		}
		delete(s.paths, p)
	}
	for _, p := range want.Advertise {
		now := strings.Join(communities[p], " ")
		if was, there := s.paths[p]; there && was == now {
			continue
		}
		path, err := ownPath(p, communities[p])
		if err == nil {
			_, err = s.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("advertising %s: %w", p, err))
			continue
		}
		s.paths[p] = now
	}
	return errs
}

// ownPath is a path of this node: each session puts its own address in as the next hop. Its local
// preference is above all that others can have, so that it is what is sent; it is sent with another
// one.
func ownPath(p netip.Prefix, communities []string) (*apiutil.Path, error) {
	nlri, err := bgp.NewIPAddrPrefix(p)
	if err != nil {
		return nil, err
	}
	attrs := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP), bgp.NewPathAttributeLocalPref(math.MaxUint32)}
	var standard []uint32
	var large []*bgp.LargeCommunity
	for _, c := range communities {
		if isLarge(c) {
			one, err := bgp.ParseLargeCommunity(c)
			if err != nil {
				return nil, err
			}
			large = append(large, one)
			continue
		}
		var high, low uint16
		if _, err := fmt.Sscanf(c, "%d:%d", &high, &low); err != nil {
			return nil, fmt.Errorf("community %s: %w", c, err)
		}
		standard = append(standard, uint32(high)<<16|uint32(low))
	}
	if len(standard) > 0 {
		attrs = append(attrs, bgp.NewPathAttributeCommunities(standard))
	}
	if len(large) > 0 {
		attrs = append(attrs, bgp.NewPathAttributeLargeCommunities(large))
	}
	if p.Addr().Is4() {
		hop, err := bgp.NewPathAttributeNextHop(netip.IPv4Unspecified())
		if err != nil {
			return nil, err
		}
		return &apiutil.Path{Family: bgp.RF_IPv4_UC, Nlri: nlri, Attrs: append(attrs, hop)}, nil
	}
	reach, err := bgp.NewPathAttributeMpReachNLRI(bgp.RF_IPv6_UC, []bgp.PathNLRI{{NLRI: nlri}}, netip.IPv6Unspecified())
	if err != nil {
		return nil, err
	}
	return &apiutil.Path{Family: bgp.RF_IPv6_UC, Nlri: nlri, Attrs: append(attrs, reach)}, nil
}

func prefixOf(p *apiutil.Path) (netip.Prefix, bool) {
	n, ok := p.Nlri.(*bgp.IPAddrPrefix)
	if !ok {
		return netip.Prefix{}, false
	}
	return n.Prefix, true
}

// nextHop is invalid where a path has none.
func nextHop(p *apiutil.Path) netip.Addr {
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *bgp.PathAttributeNextHop:
			return a.Value.Unmap()
		case *bgp.PathAttributeMpReachNLRI:
			return a.Nexthop.Unmap()
		}
	}
	return netip.Addr{}
}

// isLongStale reports whether a path is kept for a peer that has been away for longer than a
// graceful restart takes (RFC 9494, section 4.2): every other one comes before it.
func isLongStale(p *apiutil.Path) bool {
	for _, a := range p.Attrs {
		if list, is := a.(*bgp.PathAttributeCommunities); is && slices.Contains(list.Value, uint32(bgp.COMMUNITY_LLGR_STALE)) {
			return true
		}
	}
	return false
}

// maxRoutes bounds an answer.
const maxRoutes = 20000

// Routes answers a question for routes.
func (s *Speaker) Routes(q feed.Ask) feed.Answer {
	s.mu.Lock()
	srv := s.server
	s.mu.Unlock()
	if srv == nil {
		return feed.Answer{Err: errNothing.Error()}
	}
	var out feed.Answer
	for _, family := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		req := apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family}
		if q.Peer.IsValid() {
			if q.Peer.Is4() != (family == bgp.RF_IPv4_UC) {
				continue
			}
			req.TableType, req.Name = api.TableType_TABLE_TYPE_ADJ_IN, q.Peer.String()
			if q.Sent {
				req.TableType = api.TableType_TABLE_TYPE_ADJ_OUT
			}
		}
		if q.Prefix.IsValid() && q.Prefix.Addr().Is4() != (family == bgp.RF_IPv4_UC) {
			continue
		}
		err := srv.ListPath(req, func(_ bgp.NLRI, paths []*apiutil.Path) {
			for _, p := range paths {
				if prefix, ok := prefixOf(p); !ok || !q.Wants(prefix) {
					continue
				}
				if len(out.Routes) == maxRoutes {
					out.More++
				} else if r, ok := routeOf(p); ok {
					out.Routes = append(out.Routes, r)
				}
			}
		})
		if err != nil {
			out.Err = err.Error()
		}
	}
	slices.SortStableFunc(out.Routes, func(a, b feed.Route) int { return a.Prefix.Compare(b.Prefix) })
	return out
}

func routeOf(p *apiutil.Path) (feed.Route, bool) {
	prefix, ok := prefixOf(p)
	r := feed.Route{Prefix: prefix, Best: p.Best, Stale: p.Stale}
	if p.PeerAddress.IsValid() && !p.PeerAddress.IsUnspecified() {
		r.Peer, r.NextHop = p.PeerAddress, nextHop(p)
	}
	for _, a := range p.Attrs {
		if path, is := a.(*bgp.PathAttributeAsPath); is {
			var words []string
			for _, v := range path.Value {
				words = append(words, v.String())
			}
			r.Path = strings.Join(words, " ")
		}
	}
	return r, ok
}
