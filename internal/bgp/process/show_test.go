// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/internal/nettest"
)

func (n *node) ask(q feed.Ask) feed.Answer {
	n.t.Helper()
	a, err := n.agent.Ask(n.t.Context(), q)
	nettest.Must(n.t, err)
	return a
}

// shown are the prefixes of an answer, in its order, with a * where the kernel has them.
func shown(a feed.Answer) string {
	var words []string
	for _, r := range a.Routes {
		word := r.Prefix.String()
		if r.Installed {
			word += "*"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ") + a.Err
}

// What is shown of sessions and routes is what a real router and the kernel have.
func TestShow(t *testing.T) {
	eachRouter(t, func(t *testing.T, kind string) {
		ns := wire(t)
		conf := routerConfig()
		conf.Networks = append(conf.Networks, prefixes("203.0.113.128/25", "0.0.0.0/0")...)
		r := routertest.Start(t, ns, kind, conf)
		n := newNode(t)
		state := nodeState()
		for i := range state.Peers {
			state.Peers[i].Keepalive = 10
		}
		n.agent.Set(state)
		n.start()
		n.established(2)
		n.kernel(conf.Networks...)
		n.knowsBlocks(r)

		for _, c := range []struct {
			what string
			ask  feed.Ask
			want string
		}{
			{"all", feed.Ask{}, "0.0.0.0/0* 10.65.1.0/26 203.0.113.0/24* 203.0.113.128/25* 2001:db8:113::/64* fd00:65::/122"},
			{"within", feed.Ask{Prefix: netip.MustParsePrefix("203.0.113.0/24")}, "203.0.113.0/24* 203.0.113.128/25*"},
			{"covering", feed.Ask{Prefix: netip.MustParsePrefix("203.0.113.5/32"), Covering: true}, "0.0.0.0/0* 203.0.113.0/24*"},
			{"of the other family", feed.Ask{Prefix: netip.MustParsePrefix("2001:db8:113::5/128"), Covering: true}, "2001:db8:113::/64*"},
			{"sent to a peer", feed.Ask{Peer: routerAddrs[0].Addr(), Sent: true}, "10.65.1.0/26"},
			{"from nobody", feed.Ask{Peer: netip.MustParseAddr("192.0.2.77")}, "192.0.2.77"},
			{"none", feed.Ask{Prefix: netip.MustParsePrefix("198.51.100.0/24")}, ""},
			{"a session that there is not", feed.Ask{Neighbour: netip.MustParseAddr("192.0.2.77")}, "no session with 192.0.2.77"},
		} {
			a := n.ask(c.ask)
			if got := shown(a); got != c.want && (a.Err == "" || c.want == "" || !strings.Contains(got, c.want)) {
				t.Errorf("%s: %q, want %q", c.what, got, c.want)
			}
		}
		// FRR sends a node's own blocks back, which the node does not take.
		if got := shown(n.ask(feed.Ask{Peer: routerAddrs[1].Addr()})); got != "2001:db8:113::/64*" && got != "2001:db8:113::/64* fd00:65::/122" {
			t.Errorf("from a peer: %q", got)
		}
		for _, one := range n.ask(feed.Ask{Prefix: networks[0]}).Routes {
			if one.Prefix == networks[0] && (one.Interface != "eth0" || one.Gateway != routerAddrs[0].Addr() || one.NextHop != routerAddrs[0].Addr() || !one.Best || one.Path != fmt.Sprint(routerASN)) {
				t.Errorf("the route is %+v", one)
			}
		}

		s := n.ask(feed.Ask{Neighbour: routerAddrs[0].Addr()}).Neighbour
		if s == nil {
			t.Fatal("nothing is said of the session")
		}
		if !s.Established() || s.Name != "router" || s.ASN != routerASN || s.LocalASN != nodeASN || s.LocalAddr != nodeAddrs[0].Addr() || s.RouterID != routerAddrs[0].Addr() || s.Port != 179 || s.Passive || s.Password {
			t.Errorf("the session is %+v", s)
		}
		if s.OwnHold != 30 || s.OwnKeepalive != 10 || s.Hold != 30 || s.Keepalive != 10 || s.Restart != 120 || (s.PeerRestart != 0) != routertest.Has(kind, routertest.Restarts) || !s.GracefulRestart {
			t.Errorf("its times are %+v", s)
		}
		// The library counts before filters, and before it is seen that a path is a loop.
		if len(s.Families) != 1 || s.Families[0].Name != "IPv4 unicast" || s.Families[0].Received < 3 || s.Families[0].Accepted != s.Families[0].Received || s.Families[0].Advertised != 1 {
			t.Errorf("its families are %+v", s.Families)
		}
		for _, name := range []string{"multiprotocol ipv4-unicast", "4-octet-as", "graceful-restart", "route-refresh"} {
			if !slices.Contains(s.Capabilities, feed.Capability{Name: name, Ours: true, Theirs: true}) {
				t.Errorf("%s is missing: %+v", name, s.Capabilities)
			}
		}
		if s.Got.Open != 1 || s.Sent.Open == 0 || s.Got.Update == 0 || s.Sent.Update == 0 || s.Got.Total < s.Got.Update+s.Got.Open || s.LastError != "" {
			t.Errorf("its messages are %+v and %+v, it ended by %q", s.Got, s.Sent, s.LastError)
		}

		r.Kill(t)
		n.eventually("the session ends", func() error {
			a, err := n.agent.Ask(t.Context(), feed.Ask{Neighbour: routerAddrs[0].Addr()})
			if err != nil {
				return err
			}
			if s := a.Neighbour; s == nil || s.Established() || s.LastError == "" || s.Flaps != 1 || s.Hold != 0 ||
				slices.ContainsFunc(s.Capabilities, func(c feed.Capability) bool { return c.Theirs }) {
				return fmt.Errorf("it is %+v", s)
			}
			return nil
		})
		n.agent.Set(nil)
		n.eventually("BGP ends", func() error {
			if a, err := n.agent.Ask(t.Context(), feed.Ask{Neighbour: routerAddrs[0].Addr()}); err != nil || !strings.Contains(a.Err, "not in use") {
				return errors.Join(err, fmt.Errorf("it answers %+v", a))
			}
			return nil
		})
	})
}
