// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

const routerCommunity = "64999:7"

// filtered is the node's state with the rules for the router, the same in both families but for
// the prefixes.
func filtered(imports, exports func(network, block netip.Prefix) []model.BGPRule) *nodestate.BGP {
	s := nodeState()
	for i := range routerAddrs {
		f := nodestate.BGPFilter{Peers: []netip.Addr{routerAddrs[i].Addr()}, FrontASN: nodeASN}
		if imports != nil {
			f.Import = imports(networks[i], blocks[i])
		}
		if exports != nil {
			f.Export = exports(networks[i], blocks[i])
		}
		s.Filters = append(s.Filters, f)
	}
	return s
}

func in(p netip.Prefix, r model.BGPRule) model.BGPRule {
	r.CIDR, r.MinBits, r.MaxBits = p, uint8(p.Bits()), uint8(p.Addr().BitLen())
	return r
}

// What filters of a peer say is in force in both directions and families, for routes that are there
// already, too, and without a session that begins anew.
func TestFilters(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		ns := wire(t)
		c := routerConfig()
		c.Communities = []string{routerCommunity}
		r := routertest.Start(t, ns, kind, c)
		n := newNode(t)
		n.agent.Set(nodeState())
		n.start()
		n.established(2)
		n.kernel(networks...)
		n.knowsBlocks(r)
		since := n.agent.Status().Peers[0].Since

		accept, reject := model.BGPRule{Accept: true}, model.BGPRule{}
		with := func(f func(*model.BGPRule)) model.BGPRule {
			one := model.BGPRule{Accept: true}
			f(&one)
			return one
		}
		type rules = func(network, block netip.Prefix) []model.BGPRule
		for _, x := range []struct {
			name            string
			imports, export rules
			learned, known  bool
		}{
			{"nothing is accepted", func(_, _ netip.Prefix) []model.BGPRule { return []model.BGPRule{reject} }, func(_, _ netip.Prefix) []model.BGPRule { return []model.BGPRule{reject} }, false, false},
			{"the first one decides", func(n, _ netip.Prefix) []model.BGPRule { return []model.BGPRule{in(n, accept), reject} },
				func(_, b netip.Prefix) []model.BGPRule { return []model.BGPRule{in(b, accept), reject} }, true, true},
			{"and not the second one", func(n, _ netip.Prefix) []model.BGPRule { return []model.BGPRule{in(n, reject), in(n, accept)} },
				func(_, b netip.Prefix) []model.BGPRule { return []model.BGPRule{in(b, reject), in(b, accept)} }, false, false},
			{"others than these", func(n, _ netip.Prefix) []model.BGPRule { return []model.BGPRule{in(n, model.BGPRule{Not: true})} },
				func(_, b netip.Prefix) []model.BGPRule { return []model.BGPRule{in(b, model.BGPRule{Not: true})} }, true, true},
			{"these are others", func(_, b netip.Prefix) []model.BGPRule { return []model.BGPRule{in(b, model.BGPRule{Not: true})} },
				func(n, _ netip.Prefix) []model.BGPRule { return []model.BGPRule{in(n, model.BGPRule{Not: true})} }, false, false},
			{"by community", func(_, _ netip.Prefix) []model.BGPRule {
				return []model.BGPRule{with(func(r *model.BGPRule) { r.Community = routerCommunity }), reject}
			}, func(_, _ netip.Prefix) []model.BGPRule {
				return []model.BGPRule{with(func(r *model.BGPRule) { r.Community = routerCommunity }), reject}
			}, true, false},
			{"by another community", func(_, _ netip.Prefix) []model.BGPRule {
				return []model.BGPRule{with(func(r *model.BGPRule) { r.Community = "64999:7:7" }), reject}
			}, nil, false, true},
			{"by path", func(_, _ netip.Prefix) []model.BGPRule {
				return []model.BGPRule{with(func(r *model.BGPRule) { r.ASPath = []uint32{routerASN} }), reject}
			}, func(_, _ netip.Prefix) []model.BGPRule {
				return []model.BGPRule{with(func(r *model.BGPRule) { r.ASPath = []uint32{nodeASN} }), reject} // own routes have none
			}, true, false},
			{"by a longer path", func(_, _ netip.Prefix) []model.BGPRule {
				return []model.BGPRule{with(func(r *model.BGPRule) { r.ASPath = []uint32{routerASN, 1} }), reject}
			}, nil, false, true},
			{"those of others", nil, func(_, _ netip.Prefix) []model.BGPRule { return []model.BGPRule{{Remote: true}} }, true, true},
			{"none", nil, nil, true, true},
		} {
			t.Log(x.name)
			n.agent.Set(filtered(x.imports, x.export))
			n.kernel(networks[:len(networks)*map[bool]int{true: 1}[x.learned]]...)
			for _, b := range blocks {
				n.knows(r, b, x.known)
			}
		}

		// What rules change.
		for _, x := range []struct {
			prepend []uint32
			path    string
		}{
			{nil, "64512"}, {[]uint32{nodeASN, nodeASN}, "64512 64512 64512"}, {[]uint32{65001, 65001}, "64512 65001 65001 64512"},
			{[]uint32{65001, 65002, nodeASN}, "64512 65001 65002 64512"},
		} {
			n.agent.Set(filtered(nil, func(_, b netip.Prefix) []model.BGPRule {
				return []model.BGPRule{in(b, model.BGPRule{Accept: true, Add: []string{"64512:100", "64512:1:2"}, Prepend: x.prepend})}
			}))
			for _, b := range blocks {
				n.eventually("the changed route", func() error {
					if p := r.Path(b); p != x.path {
						return fmt.Errorf("the path is %q, want %q: %s", p, x.path, r.About(b))
					}
					if !r.Has(b, "64512:100") || !r.Has(b, "64512:1:2") {
						return fmt.Errorf("communities are missing: %s", r.About(b))
					}
					if strings.Contains(r.About(b), "4294967295") {
						return fmt.Errorf("a mark was sent: %s", r.About(b))
					}
					return nil
				})
			}
		}
		if now := n.agent.Status().Peers[0].Since; !now.Equal(since) {
			t.Errorf("the session began at %s, and anew at %s", since, now)
		}
		// A process that begins anew has them from the start.
		n.agent.Set(filtered(func(_, _ netip.Prefix) []model.BGPRule { return []model.BGPRule{reject} }, nil))
		n.kernel()
	})
}

// What one router told a node goes on to another one where a filter says so, and only then.
func TestFilterHandsOn(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		first := wire(t)
		second := nettest.New(t, "second")
		here, there := prefixes("198.51.100.1/24"), prefixes("198.51.100.9/24")
		nettest.Link(t, "eth1", second, here, there)
		routertest.Start(t, first, kind, routerConfig())
		r := routertest.Start(t, second, kind, routertest.Config{ASN: 65000, ID: there[0].Addr(),
			Neighbours: []routertest.Neighbour{{Local: there[0].Addr(), Remote: here[0].Addr(), ASN: nodeASN}}})
		state := func(rules ...model.BGPRule) *nodestate.BGP {
			s := nodeState()
			s.Peers = append(s.Peers, nodestate.BGPPeer{Addr: there[0].Addr(), Name: "second", ASN: 65000, Source: here[0].Addr(), Port: 179, Restart: 120})
			if len(rules) > 0 {
				s.Filters = []nodestate.BGPFilter{{Peers: []netip.Addr{there[0].Addr()}, FrontASN: nodeASN, Export: rules}}
			}
			return s
		}
		n := newNode(t)
		n.agent.Set(state())
		n.start()
		n.established(3)
		n.kernel(networks...)
		n.knows(r, blocks[0], true)
		n.knows(r, networks[0], false)
		n.agent.Set(state(model.BGPRule{Accept: true, Remote: true, ASPath: []uint32{routerASN}, Prepend: []uint32{65001, 65002}}))
		n.knows(r, networks[0], true)
		n.knows(r, blocks[0], true)
		if p := r.Path(networks[0]); p != "64512 65001 65002 64512 64999" {
			t.Errorf("the path is %q: %s", p, r.About(networks[0]))
		}
		if p := r.Path(blocks[0]); p != "64512" {
			t.Errorf("the path of the node's own is %q", p)
		}
		n.agent.Set(state())
		n.knows(r, networks[0], false)
	})
}
