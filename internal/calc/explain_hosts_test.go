// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// What is explained of host endpoints is what the tables say.
func TestExplainHostAgreesWithTheTables(t *testing.T) {
	t.Parallel()
	asked, byRule, byPolicy := 0, map[string]int{}, map[policy.HostUse]int{}
	for seed := range 80 {
		w := newWorld(uint64(seed))
		c := w.fill()
		for i := range 3 {
			w.addHostEndpoint(i)
			w.addHostPolicy(i)
		}
		s := Calc(c)
		var peers [2][]netip.Addr
		for _, a := range peersOfInterest(c) {
			peers[cluster.Family(a)] = append(peers[cluster.Family(a)], a)
		}
		places := slices.SortedFunc(maps.Keys(s.HostEndpoints), func(a, b nodestate.HostInterface) int {
			return cmp.Or(cmp.Compare(a.IfIndex, b.IfIndex), b2i(a.IPv6)-b2i(b.IPv6))
		})
		for _, at := range places {
			h := s.HostEndpoints[at]
			own := addr("192.0.2.1")
			if at.IPv6 {
				own = addr("2001:db8::1")
			}
			for n := range 40 {
				q := policy.HostQuestion{At: at, Use: pick(w, policy.HostOwn, policy.HostOwn, policy.HostForward, policy.HostPreDNAT, policy.HostPreDNAT, policy.HostUntracked), Question: policy.Question{Endpoint: own, Peer: pick(w, peers[cluster.Family(own)]...),
					Ingress: n%2 == 0, Proto: pick(w, model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP, model.Protocol(47))}}
				if slices.Contains(worldProtocols, q.Proto) {
					q.Ports = nodestate.Ports{Src: pick(w, 0, 53, 80, uint16(w.IntN(65536))), Dst: pick(w, 0, 22, 53, 68, 80, 6443, uint16(w.IntN(130)))}
				}
				if q.Use == policy.HostPreDNAT && !q.Ingress {
					continue
				}
				iso := map[policy.HostUse][2]nodestate.Isolation{policy.HostOwn: {h.HostIngress, h.HostEgress}, policy.HostForward: {h.ForwardIngress, h.ForwardEgress},
					policy.HostPreDNAT: {h.PreDNAT}, policy.HostUntracked: {h.UntrackedIngress, h.UntrackedEgress}}[q.Use][1-b2i(q.Ingress)]
				allow, id := s.Verdict(iso, q.Peer, q.Proto, q.Ports)
				rule := s.Rules.At(id)
				x, ok := policy.ExplainHost(c, q)
				if !ok || x.HostEndpoint != h.Name || x.Allow != allow || x.Rule != rule || x.Isolated != (iso.Set != 0) {
					t.Fatalf("seed %d: %+v: explained %t as %t by %q, the tables say %t by %q\n%+v\n%s", seed, q, ok, x.Allow, x.Rule, allow, rule, x, s)
				}
				asked++
				byRule[rule.Kind]++
				if rule.Kind == model.KindGlobalNetworkPolicy {
					byPolicy[q.Use]++
				}
			}
		}
	}
	for _, kind := range []string{"", "failsafe", "default-deny", "default-allow", model.KindGlobalNetworkPolicy} {
		if byRule[kind] < 100 {
			t.Errorf("%d of %d questions were decided by %q: the worlds are too plain (%v)", byRule[kind], asked, kind, byRule)
		}
	}
	for use := policy.HostOwn; use <= policy.HostUntracked; use++ {
		if byPolicy[use] < 50 {
			t.Errorf("%d of %d questions were decided by a policy in %s: the worlds are too plain (%v)", byPolicy[use], asked, use, byPolicy)
		}
	}
	if _, ok := policy.ExplainHost(model.NewCluster(), policy.HostQuestion{}); ok {
		t.Error("a host endpoint that is not there is explained")
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
