// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// Where else pods talk to: both are addresses of the fixture's second client.
const (
	outside2 = "172.30.0.62"
	outside3 = "172.30.0.63"
)

// policyFixture is egressFixture, in which pod a leaves by the policy "out", and b, c and d are
// gateways with the labels red, blue and green.
func policyFixture(t *testing.T, fam family) *fixture {
	f := egressFixture(t, fam)
	obj := *f.a.obj
	obj.Egress = &model.EgressClient{Policy: "out"}
	f.a.obj = &obj
	f.cluster.Pods.Put(f.a.obj)
	f.labels(f.b, "red", f.c, "blue", f.d, "green")
	bits := "/32"
	if fam == ipv6 {
		bits = "/128 nodad"
	}
	run(t, "ip -n %s addr add %s%s dev eth0", f.client2.netns, fam.addr(outside3), bits)
	return f
}

// labels makes pods gateways of these labels, "" = not ready.
func (f *fixture) labels(pairs ...any) {
	for i := 0; i < len(pairs); i += 2 {
		p, label := pairs[i].(*pod), pairs[i+1].(string)
		obj := *p.obj
		obj.Gateway = &model.EgressGateway{Ready: label != "", Labels: map[string]string{"egress": label}}
		p.obj = &obj
		f.cluster.Pods.Put(p.obj)
	}
}

// policy makes the policy one of rules "CIDR label": by the gateways of that label, "direct" = by
// none, "any" = by all of them.
func (f *fixture) policy(rules ...string) *model.EgressPolicy {
	out := &model.EgressPolicy{Name: "out"}
	for _, text := range rules {
		cidr, label, _ := strings.Cut(text, " ")
		r := model.EgressRule{CIDR: f.family.prefix(cidr), Direct: label == "direct"}
		switch label {
		case "direct":
		case "any":
			r.Selector = "has(egress)"
		default:
			r.Selector, r.Namespaces = "egress == '"+label+"'", "all()"
		}
		out.Rules = append(out.Rules, r)
	}
	f.cluster.EgressPolicies["out"] = out
	return out
}

// to is a talker to another address.
func (k *talker) to(f *fixture, dst string) *talker {
	other := *k
	other.dst = netip.MustParseAddr(f.family.addr(dst))
	return &other
}

// comesFrom: what a flow sends arrives from one of pods.
func (l *listener) comesFrom(f *fixture, what string, k *talker, flow int, pods ...*pod) netip.Addr {
	l.wire.t.Helper()
	got := l.hears(k, flow)
	for _, p := range pods {
		if got == netip.MustParseAddr(f.family.addr(p.local.Addrs[0].String())) {
			return got
		}
	}
	l.wire.t.Errorf("%s: flow %d comes from %s", what, flow, got)
	return got
}

// TestEgressPolicy: by an EgressGatewayPolicy a client has other gateways for other destinations,
// none for one that is exempt, one of several, or those of its node; and while the policy changes
// forty times nothing arrives with an address that neither says.
func TestEgressPolicy(t *testing.T) {
	inAll(t, testEgressPolicy)
}

func testEgressPolicy(t *testing.T, fam family) {
	f := policyFixture(t, fam)
	first, second := f.listener(), f.listenerOf(f.client2)
	to1 := f.talker(f.a)
	to2, to3 := to1.to(f, outside2), to1.to(f, outside3)
	f.apply() // the policy is not there
	f.whyNoGateway(t, outside, "")
	f.policy(outside+"/32 blue", "172.30.0.56/29 red", outside3+"/32 direct")
	f.apply()
	first.comesFrom(f, "by the rule of its own", to1, 1, f.c)
	second.comesFrom(f, "by the rule of its prefix", to2, 1, f.b)
	second.comesFrom(f, "without a gateway", to3, 2, f.a)
	f.whyNoGateway(t, "172.30.0.71", "EgressGatewayPolicy out, which has none for "+fam.addr("172.30.0.71"))
	if last := f.askWhy(outside); last.EgressRule != "EgressGatewayPolicy out for "+fam.prefix(outside+"/32").String() || last.Verdict != whywire.Left || !strings.HasPrefix(last.Gateway, "default/c ") {
		t.Errorf("why, by a gateway: %+v", last)
	}
	if last := f.askWhy(outside3); last.Verdict != whywire.Left || last.Gateway != "" || !strings.Contains(last.Text, "by no egress gateway, by the rule of EgressGatewayPolicy out for "+fam.prefix(outside3+"/32").String()) {
		t.Errorf("why, without a gateway: %+v", last)
	}

	f.policy("172.30.0.0/24 any").Rules[0].Most = 1
	f.apply()
	gateways := map[string]*pod{}
	for _, p := range []*pod{f.b, f.c, f.d} {
		gateways[fam.addr(p.local.Addrs[0].String())] = p
	}
	one := first.hears(to1, 100)
	for flow := range egressFlows {
		first.comesFrom(f, "one gateway", to1, 100+flow, gateways[one.String()])
	}
	f.labels(gateways[one.String()], "")
	f.apply()
	if got := first.hears(to1, 100); got == one || gateways[got.String()] == nil {
		t.Errorf("after the one that was used has gone: %s, before %s", got, one)
	}

	f.labels(f.b, "red", f.c, "blue", f.d, "green")
	f.policy("172.30.0.0/24 any").Rules[0].PreferLocal = true
	f.apply()
	for flow := range egressFlows {
		first.comesFrom(f, "the client's node", to1, 200+flow, f.b)
	}
	f.labels(f.b, "")
	f.apply()
	for flow := range egressFlows {
		first.comesFrom(f, "there is none on the client's node", to1, 200+flow, f.c, f.d)
	}
	f.labels(f.b, "red")
	f.policyChanges(t, first, second, to1, to2)
}

// policyChanges changes the policy all the time, while two destinations are sent to. No policy
// leads the first by the green gateway or without one, or the second by the red one or without one,
// though the rule of the prefix that has both does.
func (f *fixture) policyChanges(t *testing.T, first, second *listener, to1, to2 *talker) {
	t.Helper()
	policies := [][]string{
		{"172.30.0.0/24 green", outside + "/32 blue"},
		{"172.30.0.0/24 red", outside + "/32 red", outside2 + "/32 blue"},
		{"172.30.0.0/24 direct", outside + "/32 blue", "172.30.0.60/30 green"},
		{outside + "/32 red", outside2 + "/32 green"},
	}
	f.policy(policies[0]...)
	f.apply()
	clear(first.by)
	clear(second.by)
	first.comesFrom(f, "before changes", to1, 30000, f.c)
	second.comesFrom(f, "before changes", to2, 30000, f.d)
	stop1, stop2 := f.talksAllTheTime(to1), f.talksAllTheTime(to2)
	const changes = 40
	for i := range changes {
		f.policy(policies[i%len(policies)]...)
		if i == changes/2 {
			f.n1.driver.kill()
			f.n1.driver.start()
		}
		f.apply()
		first.read() // or frames would be lost before somebody looks at them
		second.read()
	}
	stop1()
	stop2()
	first.read() // what came before is not what is asked for
	second.read()
	first.comesFrom(f, "after changes", to1, 30000, f.b)
	second.comesFrom(f, "after changes", to2, 30000, f.d)
	total := 0
	for listener, gateways := range map[*listener]string{first: "bc", second: "cd"} {
		listener.read()
		allowed := f.addrsOf(gateways)
		for src, n := range listener.by {
			if total += n; !allowed[src] {
				t.Errorf("%d datagrams came from %s, where the gateways are %s", n, src, gateways)
			}
		}
	}
	t.Logf("%d datagrams came while the policy changed %d times", total, changes)
}

// askWhy asks how a connection of pod a goes to an address, and returns the last node's answer.
func (f *fixture) askWhy(to string) whywire.Outcome {
	answers := f.why(f.n1, whywire.Request{Hook: whywire.FromWorkload, Source: netip.MustParseAddr(f.family.addr("10.244.1.2")), Destination: netip.MustParseAddr(f.family.addr(to)),
		Protocol: model.ProtocolTCP, SourcePort: 50000, Port: 443})
	return answers[len(answers)-1].Outcome
}

func (f *fixture) whyNoGateway(t *testing.T, to, rule string) {
	t.Helper()
	if last := f.askWhy(to); last.Verdict != whywire.Dropped || last.Reason != "NO_GATEWAY" || last.EgressRule != rule {
		t.Errorf("to %s without a gateway: %+v", to, last)
	}
}

const attackEgressPolicy = "an EgressGatewayPolicy leads a pod out by gateways whose namespace did not grant them to the pod's"

// TestHostileEgressPolicyGrant: a policy that selects another namespace's gateways gives its
// clients no address of theirs: that namespace says whose pods may have it.
func TestHostileEgressPolicyGrant(t *testing.T) {
	inEither(t, func(t *testing.T, fam family) {
		record(t, attackEgressPolicy, hostile.Tenant, fam)
		f := policyFixture(t, fam)
		f.grants("projectcalico.org/name == 'other'")
		f.labels(f.b, "", f.d, "")
		f.policy("172.30.0.0/24 blue")
		f.apply()
		out, client := f.listener(), f.talker(f.a)
		f.keptIn(t, out, client)
		f.whyNoGateway(t, outside, "EgressGatewayPolicy out for "+fam.prefix("172.30.0.0/24").String())
		f.grants("projectcalico.org/name == 'default'")
		f.apply()
		out.comesFrom(f, "with a grant", client, 30001, f.c)
	})
}
