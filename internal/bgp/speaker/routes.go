// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/weir-net/weir/internal/bgp/feed"
)

// advertise makes this node's own paths those of the prefixes.
func (s *Speaker) advertise(want []netip.Prefix) []error {
	var errs []error
	for p := range s.paths {
		if slices.Contains(want, p) {
			continue
		}
		path, err := ownPath(p)
		if err == nil {
			err = s.server.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("withdrawing %s: %w", p, err))
			continue
		}
		delete(s.paths, p)
	}
	for _, p := range want {
		if s.paths[p] {
			continue
		}
		path, err := ownPath(p)
		if err == nil {
			_, err = s.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("advertising %s: %w", p, err))
			continue
		}
		s.paths[p] = true
	}
	return errs
}

// ownPath is a path of this node: each session puts its own address in as the next hop.
func ownPath(p netip.Prefix) (*apiutil.Path, error) {
	nlri, err := bgp.NewIPAddrPrefix(p)
	if err != nil {
		return nil, err
	}
	attrs := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)}
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

// Names of what GoBGP's policies consist of.
const (
	policyExport = "weir-export"
	setPass4     = "weir-pass-ipv4"
	setPass6     = "weir-pass-ipv6"
)

// setPolicy has the sessions hand on this node's own paths, and of others those within the
// prefixes: what a router outside has told one node is no concern of the others.
func (s *Speaker) setPolicy(ctx context.Context, pass []netip.Prefix) error {
	accept := &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT}
	own := &api.Statement{Name: policyExport + "-own", Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}, Actions: accept}
	policy := &api.Policy{Name: policyExport, Statements: []*api.Statement{own}}
	req := &api.SetPoliciesRequest{Policies: []*api.Policy{policy}}
	for _, set := range []struct {
		name string
		four bool
	}{{setPass4, true}, {setPass6, false}} {
		var list []*api.Prefix
		for _, p := range pass {
			if p.Addr().Is4() == set.four {
				list = append(list, &api.Prefix{IpPrefix: p.String(), MaskLengthMin: uint32(p.Bits()), MaskLengthMax: uint32(p.Addr().BitLen())})
			}
		}
		if len(list) == 0 {
			continue
		}
		req.DefinedSets = append(req.DefinedSets, &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Name: set.name, Prefixes: list})
		policy.Statements = append(policy.Statements, &api.Statement{Name: set.name, Actions: accept,
			Conditions: &api.Conditions{PrefixSet: &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: set.name}}})
	}
	if err := s.server.SetPolicies(ctx, req); err != nil {
		return err
	}
	// Setting policies keeps what they are assigned to, but at first there is nothing to keep.
	err := s.server.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{Name: "global",
		Direction: api.PolicyDirection_POLICY_DIRECTION_EXPORT, Policies: []*api.Policy{{Name: policyExport}}, DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT}})
	if err != nil || len(s.sessions) == 0 {
		return err
	}
	for a := range s.sessions {
		if err := s.server.ResetPeer(ctx, &api.ResetPeerRequest{Address: a.String(), Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT}); err != nil {
			return err
		}
	}
	return nil
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
