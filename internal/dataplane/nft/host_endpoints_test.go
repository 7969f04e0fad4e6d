// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// guarded is small with host endpoints: of interface 3, and of all others.
func guarded() *nodestate.State {
	s := small()
	iso := func(set nodestate.SetID) nodestate.Isolation {
		s.Policy.Set(nodestate.PolicyKey{Set: set, Head: true}, nodestate.PolicyValue{Rule: nodestate.RuleID(set), Protos: nodestate.ProtoBitTCP, Lens: 1 << 16})
		s.Policy.Set(nodestate.PolicyKey{Set: set, Proto: model.ProtocolTCP, Port: 22, Len: 16}, nodestate.PolicyValue{Allow: true, Rule: 100})
		return nodestate.Isolation{Set: set, Rule: nodestate.RuleID(set)}
	}
	for _, six := range []bool{false, true} {
		s.HostEndpoints[nodestate.HostInterface{IfIndex: 3, IPv6: six}] = nodestate.HostEndpoint{Name: "eth1", HostIngress: iso(1), HostEgress: iso(2), PreDNAT: iso(3)}
		s.HostEndpoints[nodestate.HostInterface{IPv6: six}] = nodestate.HostEndpoint{Name: "all", HostIngress: iso(4), HostEgress: iso(5), ForwardIngress: iso(6), ForwardEgress: iso(7)}
	}
	return s
}

// TestHostEndpoints: the chains of host endpoints are there when they are, and a restart writes
// nothing.
func TestHostEndpoints(t *testing.T) {
	d, fakes := fakeDriver(t)
	apply(t, d, guarded())
	with := fakes[knftables.IPv4Family].Dump()
	for _, want := range []string{"add chain ip weir leaving", "add chain ip weir before-services", "meta iif vmap { 3 : jump ", "oif != { 0, 3 }", "verdicts-turned", "meta iif vmap { 3 : jump before-",
		"ct state established tcp flags & (syn | ack) != syn jump older", "ct state established meta l4proto sctp @th,96,8 != 1 jump older"} {
		if !strings.Contains(with, want) {
			t.Errorf("no %q in\n%s", want, with)
		}
	}
	next := openFake(t, fakes)
	apply(t, next, guarded())
	if n := next.Status().Writes; n != 0 {
		t.Errorf("a restart made %d operations", n)
	}
}

// TestToHost: what pods send to their node is dropped, or evaluated by the host endpoint of all
// interfaces, as the setting says.
func TestToHost(t *testing.T) {
	for action, want := range map[model.ToHostAction]string{model.ToHostDrop: "add rule ip weir to-host goto deny-43-0", model.ToHostReturn: "add rule ip weir to-host jump in-"} {
		d, fakes := fakeDriver(t)
		s := guarded()
		s.Settings.ToHost = action
		apply(t, d, s)
		if text := fakes[knftables.IPv4Family].Dump(); !strings.Contains(text, want) {
			t.Errorf("%s: no %q in\n%s", action, want, text)
		}
	}
	d, fakes := fakeDriver(t)
	s := small()
	s.Settings.ToHost = model.ToHostReturn
	apply(t, d, s)
	if text := fakes[knftables.IPv4Family].Dump(); strings.Contains(text, "to-host") || strings.Contains(text, "judge-host") {
		t.Errorf("without host endpoints nothing is evaluated:\n%s", text)
	}
}
