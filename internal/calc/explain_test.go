// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// What is explained is what the tables say, also of pods that are not known.
func TestExplainAgreesWithTheTables(t *testing.T) {
	t.Parallel()
	var ends = map[string]int{}
	var whys = map[string]int{}
	asked := 0
	for seed := range 60 {
		w := newWorld(uint64(seed))
		c := w.fill()
		s := Calc(c)
		var peers [2][]netip.Addr
		for _, a := range peersOfInterest(c) {
			peers[cluster.Family(a)] = append(peers[cluster.Family(a)], a)
		}
		for _, a := range slices.SortedFunc(maps.Keys(c.Local.Endpoints), netip.Addr.Compare) {
			if a.Is6() && !s.Settings.IPv6 {
				if _, ok := policy.Explain(c, policy.Question{Endpoint: a, Peer: a}); ok {
					t.Fatalf("seed %d: %s is explained, and IPv6 is not carried", seed, a)
				}
				continue
			}
			for n := range 24 {
				q := policy.Question{Endpoint: a, Peer: pick(w, peers[cluster.Family(a)]...), Ingress: n%2 == 0,
					Proto: pick(w, model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP, model.ProtocolICMP, model.ProtocolICMPv6, model.Protocol(47))}
				if slices.Contains(worldProtocols, q.Proto) {
					q.Ports = nodestate.Ports{Src: pick(w, 0, 53, 80, uint16(w.IntN(65536))), Dst: pick(w, 0, 53, 79, 80, 81, 8080, 65535, uint16(w.IntN(130)))}
				} else if q.Proto == model.ProtocolICMP && a.Is4() || q.Proto == model.ProtocolICMPv6 && a.Is6() {
					q.Ports.Dst = pick(w, uint16(0), 8<<8, 13<<8, 128<<8, 128<<8|9)
				}
				iso := s.Addrs[a].Egress
				if q.Ingress {
					iso = s.Addrs[a].Ingress
				}
				allow, id := s.Verdict(iso, q.Peer, q.Proto, q.Ports)
				rule := s.Rules.At(id)
				x, ok := policy.Explain(c, q)
				if !ok || x.Allow != allow || x.Rule != rule || x.Isolated != (iso.Set != 0) {
					t.Fatalf("seed %d: %+v: explained %t as %t by %q, the tables say %t by %q\n%+v\n%s", seed, q, ok, x.Allow, x.Rule, allow, rule, x, s)
				}
				asked++
				for _, tier := range x.Tiers {
					ends[tier.End]++
					for _, p := range tier.Policies {
						for _, r := range p.Rules {
							whys[r.Why]++
							if r.Matched != (r.Why == "") {
								t.Fatalf("seed %d: %+v", seed, r)
							}
						}
					}
				}
			}
		}
	}
	for _, end := range []string{policy.EndDecided, policy.EndPassed, policy.EndDefaultPass, policy.EndDefaultDeny} {
		if ends[end] < 50 {
			t.Errorf("%d tiers ended by %q of %d questions: the worlds are too plain", ends[end], end, asked)
		}
	}
	for _, why := range []string{"", policy.NotEnforced, policy.NotLog, policy.NotOwnEnd, policy.NotProtocol, policy.NotPeer, policy.NotPort, policy.NotSourcePort} {
		if whys[why] < 10 {
			t.Errorf("%d rules with %q in %d questions: the worlds are too plain", whys[why], why, asked)
		}
	}
}

// A rule says the first condition that does not hold, and what is behind a match is not looked at.
func TestExplainNamesTheCondition(t *testing.T) {
	t.Parallel()
	c := model.NewCluster()
	c.Local = model.Local{Node: "n", Endpoints: map[netip.Addr]*model.LocalEndpoint{}}
	me := model.Name{Namespace: "a", Name: "me"}
	c.Pods.Put(&model.Pod{Name: me, Node: "n", Addrs: []netip.Addr{addr("10.0.0.1")}})
	c.Namespaces["a"] = &model.Namespace{Name: "a"}
	c.Local.Endpoints[addr("10.0.0.1")] = &model.LocalEndpoint{Pod: me, Addrs: []netip.Addr{addr("10.0.0.1")}}
	tcp := func(first, last uint16) []model.PortRange {
		return []model.PortRange{{Protocol: model.ProtocolTCP, First: first, Last: last}}
	}
	from := func(cidr string) []model.Peer { return []model.Peer{{CIDR: prefix(cidr)}} }
	p := &model.Policy{Kind: model.KindCalicoNetworkPolicy, Name: model.Name{Namespace: "a", Name: "p"}, Tier: model.TierDefault, AppliesIngress: true,
		Subject: model.Selector{Namespace: "a"}, Ingress: []model.Rule{
			{Action: model.Log}, {Action: model.Allow, IPVersion: 6}, {Action: model.Allow, Ports: []model.PortRange{{Protocol: model.ProtocolUDP, Last: 65535}}},
			{Action: model.Allow, Peers: from("192.0.2.0/24")}, {Action: model.Allow, Peers: from("10.0.0.0/8"), Ports: tcp(81, 90)},
			{Action: model.Allow, Ports: tcp(80, 80), SourcePorts: tcp(1, 2)}, {Action: model.Deny, Ports: tcp(80, 80)}, {Action: model.Allow},
		}}
	c.Policies[p.ID()] = p
	x, ok := policy.Explain(c, policy.Question{Endpoint: addr("10.0.0.1"), Peer: addr("10.0.0.2"), Ingress: true, Proto: model.ProtocolTCP, Ports: nodestate.Ports{Src: 5, Dst: 80}})
	if !ok || x.Allow || x.Rule.Detail != "ingress[6]" || len(x.Tiers) != 1 || len(x.Tiers[0].Policies) != 1 {
		t.Fatalf("%t %+v", ok, x)
	}
	var got []string
	for _, r := range x.Tiers[0].Policies[0].Rules {
		got = append(got, r.Why)
	}
	if want := []string{policy.NotLog, policy.NotOwnEnd, policy.NotProtocol, policy.NotPeer, policy.NotPort, policy.NotSourcePort, ""}; !slices.Equal(got, want) {
		t.Errorf("why not: %q, want %q", got, want)
	}
	if x, ok := policy.Explain(c, policy.Question{Endpoint: addr("10.0.0.1"), Peer: addr("10.0.0.2"), Proto: model.ProtocolTCP}); !ok || x.Isolated || !x.Allow {
		t.Errorf("egress, which no policy has: %t %+v", ok, x)
	}
	if _, ok := policy.Explain(c, policy.Question{Endpoint: addr("10.0.0.9"), Peer: addr("10.0.0.2")}); ok {
		t.Error("an endpoint that is not there is explained")
	}
}
