package calc

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/model"
)

// reference answers by walking policies, rules and pods; it shares nothing with the code under test
// but the model. The pods of an address decide which selectors pick it and what it calls its ports.
type reference struct{ c *model.Cluster }

func (r reference) labels(s *model.LabelSelector, have map[string]string) bool {
	ok := true
	if s == nil {
		return ok
	}
	for _, q := range s.Requirements {
		v, has := have[q.Key]
		in := false
		for _, want := range q.Values {
			in = in || want == v
		}
		switch q.Op {
		case model.In:
			ok = ok && has && in
		case model.NotIn:
			ok = ok && !(has && in)
		case model.Exists:
			ok = ok && has
		case model.DoesNotExist:
			ok = ok && !has
		}
	}
	return ok
}

func (r reference) picks(s *model.Selector, p *model.Pod) bool {
	ns := p.Name.Namespace
	if s.Namespace != "" && s.Namespace != ns {
		return false
	}
	if s.Namespace == "" && s.Namespaces != nil && len(s.Namespaces.Requirements) > 0 {
		n, known := r.c.Namespaces[ns]
		if !known || !r.labels(s.Namespaces, n.Labels) {
			return false
		}
	}
	return r.labels(s.Pods, p.Labels)
}

// podsAt returns the pods that have an address; the node's own knowledge comes first.
func (r reference) podsAt(a netip.Addr) []*model.Pod {
	usable := func(p *model.Pod) bool { return p != nil && !p.HostNetwork && !p.Finished }
	if ep := r.c.Local.Endpoints[a]; ep != nil {
		if p := r.c.Pods[ep.Pod]; usable(p) {
			return []*model.Pod{p}
		}
		return nil
	}
	var out []*model.Pod
	for _, p := range r.c.Pods {
		if usable(p) && slices.Contains(p.Addrs, a) {
			out = append(out, p)
		}
	}
	return out
}

func (r reference) portMatches(pr model.PortRange, dst []*model.Pod, proto model.Protocol, port uint16) bool {
	if pr.Protocol != model.ProtocolAny && pr.Protocol != proto {
		return false
	}
	if pr.Named != "" {
		for _, p := range dst {
			for _, pp := range p.Ports {
				if pp.Name == pr.Named && pp.Protocol == proto && pp.Port == port {
					return true
				}
			}
		}
		return false
	}
	if pr.First == 0 && pr.Last == 65535 {
		return true
	}
	return slices.Contains(worldProtocols, proto) && pr.First <= port && port <= pr.Last
}

func (r reference) ruleMatches(rule *model.Rule, subject *model.Pod, in bool, peer netip.Addr, proto model.Protocol, port uint16) bool {
	peers := r.podsAt(peer)
	hit := len(rule.Peers) == 0
	for _, p := range rule.Peers {
		if p.Pods != nil {
			hit = hit || slices.ContainsFunc(peers, func(q *model.Pod) bool { return r.picks(p.Pods, q) })
			continue
		}
		hit = hit || p.CIDR.Contains(peer) && !slices.ContainsFunc(p.Except, func(e netip.Prefix) bool { return e.Contains(peer) })
	}
	if !hit {
		return false
	}
	dst := peers
	if in {
		dst = []*model.Pod{subject}
	}
	return len(rule.Ports) == 0 ||
		slices.ContainsFunc(rule.Ports, func(pr model.PortRange) bool { return r.portMatches(pr, dst, proto, port) })
}

// verdict returns whether a packet is allowed and the text of the rule that says so.
func (r reference) verdict(subject *model.Pod, in bool, peer netip.Addr, proto model.Protocol, port uint16) (bool, string) {
	var mine []*model.Policy
	for _, p := range r.c.Policies {
		if applies := p.AppliesEgress && !in || p.AppliesIngress && in; applies && r.picks(&p.Subject, subject) {
			mine = append(mine, p)
		}
	}
	if len(mine) == 0 {
		return true, ""
	}
	slices.SortFunc(mine, comparePolicies)
	for _, tier := range []string{"admin", "default"} {
		here, handedOn := false, false
	tier:
		for _, p := range mine {
			if p.Tier != tier {
				continue
			}
			here = true
			rules, dir := p.Egress, "egress"
			if in {
				rules, dir = p.Ingress, "ingress"
			}
			for i := range rules {
				if p.Invalid != "" && rules[i].Action != model.Deny || !r.ruleMatches(&rules[i], subject, in, peer, proto, port) {
					continue
				}
				if rules[i].Action == model.Pass {
					handedOn = true
					break tier
				}
				return rules[i].Action == model.Allow, fmt.Sprintf("%s %s %s[%d]", p.Kind, p.Name, dir, i)
			}
		}
		if here && !handedOn {
			break
		}
	}
	return false, "default-deny"
}

// peersOfInterest are addresses on every side of every boundary.
func peersOfInterest(c *model.Cluster) []netip.Addr {
	out := []netip.Addr{addr("0.0.0.0"), addr("8.8.8.8"), addr("10.0.0.1"), addr("10.1.0.15"), addr("10.1.0.16"), addr("10.1.0.17"),
		addr("10.1.0.18"), addr("10.1.0.31"), addr("10.1.0.32"), addr("10.1.0.63"), addr("10.1.0.64"), addr("10.1.0.255"), addr("10.1.1.0"),
		addr("192.168.6.1"), addr("192.168.7.8"), addr("192.168.7.9"), addr("192.168.8.0"), addr("192.169.0.0"), addr("11.0.0.0"),
		addr("::"), addr("2001:db8::1"), addr("2001:db9::"), addr("fd00:1::f"), addr("fd00:1::10"), addr("fd00:1::11"), addr("fd00:1::12"),
		addr("fd00:1::20"), addr("fd00:1::3f"), addr("fd00:1::40"), addr("fd00:1:0:1::"), addr("fd00:2::")}
	for _, p := range c.Pods {
		out = append(out, p.Addrs...)
	}
	for a := range c.Local.Endpoints {
		out = append(out, a)
	}
	return out
}

func TestPolicyTablesAnswerAsTheRulesDo(t *testing.T) {
	t.Parallel()
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	var allowed, denied [2]int // by family
	for seed := range rounds {
		w := newWorld(uint64(seed))
		c := w.fill()
		s := Calc(c)
		ref := reference{c}
		var peers [2][]netip.Addr
		for _, a := range peersOfInterest(c) {
			peers[family(a)] = append(peers[family(a)], a)
		}
		for a, ep := range c.Local.Endpoints {
			pod := c.Pods[ep.Pod]
			if pod == nil || a.Is6() && !s.Settings.IPv6 {
				continue // below
			}
			for _, in := range []bool{true, false} {
				iso := s.Addrs[a].Egress
				if in {
					iso = s.Addrs[a].Ingress
				}
				for range 60 {
					peer := pick(w, peers[family(a)]...)
					proto := pick(w, model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP, model.ProtocolICMP, model.Protocol(47))
					port := pick(w, uint16(0), 1, 53, 79, 80, 81, 8080, 65534, 65535, uint16(w.IntN(130)), uint16(w.IntN(65536)))
					if !slices.Contains(worldProtocols, proto) {
						port = 0
					}
					allow, rule := s.Verdict(iso, peer, proto, port)
					name := ""
					if rule != 0 {
						r, ok := s.Rules.Get(rule)
						if !ok {
							t.Fatalf("seed %d: rule %x has no name", seed, rule)
						}
						if name = r.String(); r.Kind == "default-deny" {
							name = r.Kind
						}
					}
					want, wantName := ref.verdict(pod, in, peer, proto, port)
					if allow != want || name != wantName {
						t.Fatalf("seed %d: pod %s (%s) ingress=%t peer %s %s port %d: tables say %t by %q, rules say %t by %q\n%s",
							seed, pod.Name, a, in, peer, proto, port, allow, name, want, wantName, s)
					}
					if allow {
						allowed[family(a)]++
					} else {
						denied[family(a)]++
					}
				}
			}
		}
	}
	if min(allowed[0], allowed[1], denied[0], denied[1]) < 1000 {
		t.Fatalf("the worlds are too plain: %d allowed, %d denied (IPv4, IPv6)", allowed, denied)
	}
}

// An endpoint may be there before its pod is: until then nothing may pass that a policy could forbid.
func TestEndpointOfUnknownPodIsIsolated(t *testing.T) {
	t.Parallel()
	c := policyFixture()
	delete(c.Pods, name("default", "nginx"))
	delete(c.Pods, name("default", "free")) // no policy selects it, but any could
	s := Calc(c)
	for _, a := range []netip.Addr{addr("10.244.1.1"), addr("10.244.1.3")} {
		if allow, _ := s.Verdict(s.Addrs[a].Ingress, addr("172.31.1.162"), model.ProtocolTCP, 80); allow {
			t.Errorf("%s: reached before its pod is known", a)
		}
		if allow, _ := s.Verdict(s.Addrs[a].Egress, addr("8.8.8.8"), model.ProtocolUDP, 53); allow {
			t.Errorf("%s: sends before its pod is known", a)
		}
	}
	if allow, _ := s.Verdict(s.Addrs[addr("10.244.1.2")].Ingress, addr("172.31.1.162"), model.ProtocolTCP, 80); !allow {
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
	broken := *c.Policies[name("default", "from-outside")]
	broken.Invalid = "spec.ingress[0].from[0].ipBlock.cidr: not a CIDR"
	c.Policies[broken.Name] = &broken
	delete(c.Policies, name("default", "from-clients"))
	s := Calc(c)
	iso := s.Addrs[addr("10.244.1.1")].Ingress
	if allow, rule := s.Verdict(iso, addr("172.31.1.162"), model.ProtocolTCP, 80); allow || s.Rules.At(rule).Kind != "default-deny" {
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
	c.Pods[name("other", "new")].Addrs = nil
	// The API still shows the address for a pod of another node that is going away.
	run(c, "other", "old", "far", "10.244.1.30", app("db"))
	s := Calc(c)
	iso := s.Addrs[addr("10.244.1.1")].Ingress
	if allow, _ := s.Verdict(iso, addr("10.244.1.30"), model.ProtocolTCP, 8080); !allow {
		t.Error("the new pod is not known by its selector")
	}
}
