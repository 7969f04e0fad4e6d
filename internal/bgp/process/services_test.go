// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// Communities of what a node advertises reach the router, change while the route stays, and go.
func TestCommunities(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		ns := wire(t)
		r := routertest.Start(t, ns, kind, routerConfig())
		n := newNode(t)
		tagged := func(communities ...string) *nodestate.BGP {
			s := nodeState()
			for _, b := range blocks {
				if len(communities) > 0 {
					s.Tags = append(s.Tags, nodestate.BGPTag{Prefix: b, Communities: communities})
				}
			}
			return s
		}
		has := func(what string, want bool, communities ...string) {
			t.Helper()
			n.eventually(what, func() error {
				for _, b := range blocks {
					for _, c := range communities {
						if !r.Knows(b) || r.Has(b, c) != want {
							return errors.New(r.About(b))
						}
					}
				}
				return nil
			})
		}
		n.agent.Set(tagged("64512:100", "64512:1:70000"))
		n.start()
		n.established(2)
		has("the first ones", true, "64512:100", "64512:1:70000")
		n.agent.Set(tagged("64512:200"))
		has("another one", true, "64512:200")
		has("those before", false, "64512:100", "64512:1:70000")
		n.agent.Set(tagged())
		has("none", false, "64512:200")
		n.agent.Set(tagged("65535:0"))
		n.eventually("graceful shutdown (RFC 8326)", func() error {
			for _, b := range blocks {
				if text := r.About(b); !strings.Contains(text, "graceful-shutdown") && !r.Has(b, "65535:0") {
					return errors.New(text)
				}
			}
			return nil
		})
	})
}

// What leads to nodes that serve Services is reflected within the AS, and told nobody outside: the
// router there would be sent to a node that has no endpoint.
func TestServicesAreReflected(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		outside := wire(t)
		link := func(name string, third string) (*nettest.Namespace, netip.Addr, netip.Addr) {
			ns := nettest.New(t, name)
			here, there := prefixes("198.51."+third+".1/24"), prefixes("198.51."+third+".9/24")
			nettest.Link(t, "e"+name, ns, here, there)
			return ns, here[0].Addr(), there[0].Addr()
		}
		service := prefixes("10.96.7.7/32")[0]
		first, hereFirst, thereFirst := link("one", "100")
		second, hereSecond, thereSecond := link("two", "101")
		routertest.Start(t, first, kind, routertest.Config{ASN: nodeASN, ID: thereFirst, Networks: []netip.Prefix{service},
			Neighbours: []routertest.Neighbour{{Local: thereFirst, Remote: hereFirst, ASN: nodeASN}}})
		inner := routertest.Start(t, second, kind, routertest.Config{ASN: nodeASN, ID: thereSecond,
			Neighbours: []routertest.Neighbour{{Local: thereSecond, Remote: hereSecond, ASN: nodeASN}}})
		outer := routertest.Start(t, outside, kind, routerConfig())
		state := func(reflect ...netip.Prefix) *nodestate.BGP {
			s := nodeState()
			s.Reflect, s.Keep = reflect, append(s.Keep, prefixes("10.96.0.0/16")...)
			for _, p := range [][2]netip.Addr{{thereFirst, hereFirst}, {thereSecond, hereSecond}} {
				s.Peers = append(s.Peers, nodestate.BGPPeer{Addr: p[0], Name: "client", ASN: nodeASN, Source: p[1], Port: 179, Restart: 120, ClusterID: netip.MustParseAddr("224.0.0.1")})
			}
			return s
		}
		n := newNode(t)
		n.agent.Set(state())
		n.start()
		n.established(4)
		n.knows(inner, blocks[0], true)
		n.knows(inner, service, false)
		n.agent.Set(state(prefixes("10.96.0.0/16")...))
		n.knows(inner, service, true)
		n.knows(outer, blocks[0], true)
		n.knows(outer, service, false)
		n.kernel(networks...) // and it is no route of the node
		n.agent.Set(state())
		n.knows(inner, service, false)
	})
}
