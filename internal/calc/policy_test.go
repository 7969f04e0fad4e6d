// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// peersOfInterest are addresses on every side of every boundary.
func peersOfInterest(c *model.Cluster) []netip.Addr {
	out := []netip.Addr{addr("0.0.0.0"), addr("8.8.8.8"), addr("10.0.0.1"), addr("10.1.0.15"), addr("10.1.0.16"), addr("10.1.0.17"),
		addr("10.1.0.18"), addr("10.1.0.31"), addr("10.1.0.32"), addr("10.1.0.63"), addr("10.1.0.64"), addr("10.1.0.255"), addr("10.1.1.0"),
		addr("192.168.6.1"), addr("192.168.7.8"), addr("192.168.7.9"), addr("192.168.8.0"), addr("192.169.0.0"), addr("11.0.0.0"),
		addr("::"), addr("2001:db8::1"), addr("2001:db9::"), addr("fd00:1::f"), addr("fd00:1::10"), addr("fd00:1::11"), addr("fd00:1::12"),
		addr("fd00:1::20"), addr("fd00:1::3f"), addr("fd00:1::40"), addr("fd00:1:0:1::"), addr("fd00:2::")}
	for p := range c.Pods.All() {
		out = append(out, p.Addrs...)
	}
	for a := range c.Local.Endpoints {
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func TestPolicyTablesAnswerAsTheRulesDo(t *testing.T) {
	t.Parallel()
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	var allowed, denied, logged [2]int // by family
	var differ int                     // staged verdicts
	var named [2]int                   // what names allow: in force, staged
	for seed := range rounds {
		w := newWorld(uint64(seed))
		c := w.fill()
		s := Calc(c)
		ref := reference{c}
		staged := ref.enforced()
		var peers [2][]netip.Addr
		for _, a := range peersOfInterest(c) {
			peers[cluster.Family(a)] = append(peers[cluster.Family(a)], a)
		}
		for _, a := range slices.SortedFunc(maps.Keys(c.Local.Endpoints), netip.Addr.Compare) {
			pod := c.Pods.Get(c.Local.Endpoints[a].Pod)
			if pod == nil || a.Is6() && !s.Settings.IPv6 {
				continue // below
			}
			for _, in := range []bool{true, false} {
				iso := s.Addrs[a].Egress
				if in {
					iso = s.Addrs[a].Ingress
				}
				would := iso
				if pair, is := s.Staged[a]; is {
					if would = pair.Egress; in {
						would = pair.Ingress
					}
				}
				for range 60 {
					peer := pick(w, peers[cluster.Family(a)]...)
					proto := pick(w, model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP, model.ProtocolICMP, model.ProtocolICMPv6, model.Protocol(47))
					port := pick(w, uint16(0), 1, 53, 79, 80, 81, 8080, 65534, 65535, uint16(w.IntN(130)), uint16(w.IntN(65536)))
					sport := pick(w, uint16(0), 1, 53, 79, 80, 81, 8080, 65534, 65535, uint16(w.IntN(130)), uint16(w.IntN(65536)))
					if !slices.Contains(worldProtocols, proto) {
						port, sport = 0, 0
					}
					if proto == model.ProtocolICMP && peer.Is4() || proto == model.ProtocolICMPv6 && peer.Is6() {
						port = pick(w, uint16(0), 1, 8<<8, 8<<8|3, 13<<8, 128<<8, 128<<8|9)
					}
					q := question{pod: pod, addr: a, peer: peer, in: in, proto: proto, sport: sport, dport: port}
					v := checkVerdict(t, s, iso, ref, q, seed)
					allow := v.Allow
					if checkNamed(t, w, s, iso, ref, q, seed) && !allow {
						named[0]++
					}
					if v.Log {
						logged[cluster.Family(a)]++
					}
					stagedAllow := checkVerdict(t, s, would, staged, q, seed).Allow
					if stagedAllow != allow {
						differ++
					}
					if checkNamed(t, w, s, would, staged, q, seed) && !stagedAllow && would != iso {
						named[1]++
					}
					if allow {
						allowed[cluster.Family(a)]++
					} else {
						denied[cluster.Family(a)]++
					}
				}
			}
		}
	}
	if testing.Short() {
		return
	}
	if min(allowed[0], allowed[1], denied[0], denied[1]) < 1000 || min(logged[0], logged[1]) < 100 {
		t.Fatalf("the worlds are too plain: %d allowed, %d denied, %d logged (IPv4, IPv6)", allowed, denied, logged)
	}
	if differ < 500 || named[0] < 100 || named[1] < 5 {
		t.Fatalf("the worlds are too plain: %d staged verdicts differ, names allow %d (in force, staged)", differ, named)
	}
}

// checkNamed holds what the tables say about a packet to an address to which some names led
// against the rules.
func checkNamed(t *testing.T, w *world, s *nodestate.State, iso nodestate.Isolation, ref reference, q question, seed int) (allow bool) {
	t.Helper()
	if q.in {
		return false
	}
	var ids []nodestate.NameID
	for _, p := range worldDomains {
		if w.names.IntN(3) > 0 {
			continue
		}
		q.names = append(q.names, p)
		if id, has := s.Names.Patterns[p]; has {
			ids = append(ids, id)
		}
	}
	v, _ := s.DecideNamed(iso, ids, q.peer, q.proto, nodestate.Ports{Src: q.sport, Dst: q.dport})
	if want, by, _ := ref.verdict(q); v.Allow != want {
		t.Fatalf("seed %d: pod %s (%s) peer %s with names %v, %s ports %d > %d: tables say %t, rules say %t by %q\n%s",
			seed, q.pod.Name, q.addr, q.peer, q.names, q.proto, q.sport, q.dport, v.Allow, want, by, s)
	}
	return v.Allow
}

// checkVerdict holds what the tables say about a packet against the rules, and returns it.
func checkVerdict(t *testing.T, s *nodestate.State, iso nodestate.Isolation, ref reference, q question, seed int) nodestate.PolicyValue {
	t.Helper()
	v := s.Decide(iso, q.peer, q.proto, nodestate.Ports{Src: q.sport, Dst: q.dport})
	allow, rule := v.Allow, v.Rule
	name := ""
	if rule != 0 {
		r, ok := s.Rules.Get(rule)
		if !ok {
			t.Fatalf("seed %d: rule %x has no name", seed, rule)
		}
		if name = r.String(); strings.HasPrefix(r.Kind, "default-") {
			name = r.Kind
		}
	}
	if want, wantName, wantLog := ref.verdict(q); allow != want || name != wantName || v.Log != wantLog {
		t.Fatalf("seed %d: pod %s (%s) ingress=%t peer %s %s ports %d > %d: tables say %t by %q, log %t; rules say %t by %q, log %t\n%s",
			seed, q.pod.Name, q.addr, q.in, q.peer, q.proto, q.sport, q.dport, allow, name, v.Log, want, wantName, wantLog, s)
	}
	return v
}

// An endpoint may be there before its pod is: until then nothing may pass that a policy could
// forbid.
func TestEndpointOfUnknownPodIsIsolated(t *testing.T) {
	t.Parallel()
	c := policyFixture()
	c.Pods.Delete(name("default", "nginx"))
	c.Pods.Delete(name("default", "free")) // no policy selects it, but any could
	s := Calc(c)
	for _, a := range []netip.Addr{addr("10.244.1.1"), addr("10.244.1.3")} {
		if allow, _ := s.Verdict(s.Addrs[a].Ingress, addr("172.31.1.162"), model.ProtocolTCP, nodestate.Ports{Dst: 80}); allow {
			t.Errorf("%s: reached before its pod is known", a)
		}
		if allow, _ := s.Verdict(s.Addrs[a].Egress, addr("8.8.8.8"), model.ProtocolUDP, nodestate.Ports{Dst: 53}); allow {
			t.Errorf("%s: sends before its pod is known", a)
		}
	}
	if allow, _ := s.Verdict(s.Addrs[addr("10.244.1.2")].Ingress, addr("172.31.1.162"), model.ProtocolTCP, nodestate.Ports{Dst: 80}); !allow {
		t.Error("a known endpoint of the same policy is cut off too")
	}
	for n := range c.Policies {
		delete(c.Policies, n)
	}
	if s = Calc(c); s.Addrs[addr("10.244.1.1")].Ingress.Set != 0 {
		t.Error("isolated where there is no policy")
	}
}

func TestInvalidPolicyIsolatesAndAllowsNothing(t *testing.T) {
	t.Parallel()
	c := policyFixture()
	broken := *c.Policies[policyID("default", "from-outside")]
	broken.Invalid = "spec.ingress[0].from[0].ipBlock.cidr: not a CIDR"
	c.Policies[broken.ID()] = &broken
	delete(c.Policies, policyID("default", "from-clients"))
	s := Calc(c)
	iso := s.Addrs[addr("10.244.1.1")].Ingress
	if allow, rule := s.Verdict(iso, addr("172.31.1.162"), model.ProtocolTCP, nodestate.Ports{Dst: 80}); allow || s.Rules.At(rule).Kind != "default-deny" {
		t.Errorf("allow=%t by %s", allow, s.Rules.At(rule))
	}
}

func TestEndpointsOfOneListShareASet(t *testing.T) {
	t.Parallel()
	s := Calc(policyFixture())
	a, b := s.Addrs[addr("10.244.1.1")], s.Addrs[addr("10.244.1.2")]
	if a.Egress != b.Egress {
		t.Error("one list of policies, two egress sets")
	}
	if a.Ingress == b.Ingress {
		t.Error("the port http differs, the ingress set does not")
	}
}

// A new pod is a peer by what the node knows before the API shows its address.
func TestOwnEndpointIsAPeerAtOnce(t *testing.T) {
	t.Parallel()
	c := policyFixture()
	run(c, "other", "new", "worker", "10.244.1.30", app("client"))
	editPod(c, name("other", "new"), func(p *model.Pod) { p.Addrs = nil })
	// The API still shows the address for a pod of another node that is going away.
	run(c, "other", "old", "far", "10.244.1.30", app("db"))
	s := Calc(c)
	iso := s.Addrs[addr("10.244.1.1")].Ingress
	if allow, _ := s.Verdict(iso, addr("10.244.1.30"), model.ProtocolTCP, nodestate.Ports{Dst: 8080}); !allow {
		t.Error("the new pod is not known by its selector")
	}
}
