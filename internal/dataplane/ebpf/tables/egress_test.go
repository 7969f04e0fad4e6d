// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
)

// egressState has one client of a policy with these rules, "CIDR" = its group.
func egressState(policy nodestate.EgressPolicyID, rules map[string]nodestate.GatewayGroup) *nodestate.State {
	s := nodestate.New()
	client := netip.MustParseAddr("10.0.0.1")
	s.Egress.Policies[client] = policy
	for cidr, group := range rules {
		s.Egress.Rules[nodestate.EgressDestination{Policy: policy, CIDR: netip.MustParsePrefix(cidr)}] = group
		if group >= nodestate.GroupFirst {
			s.Gateways[nodestate.GatewayKey{Client: client, Group: group}] = []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.1.2")}
		}
	}
	return s
}

// A client has all of a policy or all of the earlier one: while a rule cannot be written it keeps
// what it has, with the rules and lists of that, and then gets the other.
func TestEgressTables(t *testing.T) {
	nettest.NeedRoot(t, "making maps")
	maps := map[string]*ebpf.Map{}
	for name, spec := range map[string]ebpf.MapSpec{
		"weir_gateways":        {Type: ebpf.Hash, KeySize: uint32(unsafe.Sizeof(abi.GatewayKey[abi.Ip4]{})), ValueSize: uint32(unsafe.Sizeof(abi.GatewayList[abi.Ip4]{}))},
		"weir_egress_policies": {Type: ebpf.Hash, KeySize: 4, ValueSize: 8},
		"weir_egress_rules":    {Type: ebpf.LPMTrie, KeySize: uint32(unsafe.Sizeof(abi.EgressKey[abi.Ip4]{})), ValueSize: 8, Flags: 1},
	} {
		spec.MaxEntries = 100
		m, err := ebpf.NewMap(&spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		maps[name] = m
	}
	tab := newEgress[abi.Ip4](maps, &counts{})
	apply := func(s *nodestate.State) {
		tab.desire(s)
		tab.write()
		tab.remove()
	}
	holds := func(what string, want *nodestate.State) {
		t.Helper()
		again, got := newEgress[abi.Ip4](maps, &counts{}), nodestate.New()
		if err := again.load(); err != nil {
			t.Fatal(err)
		}
		if again.read(got); !nodestate.Equal(got, want) {
			t.Errorf("%s:\n%s", what, nodestate.Diff(got, want))
		}
	}
	first := egressState(1<<40+1, map[string]nodestate.GatewayGroup{"0.0.0.0/0": 1<<50 + 7, "192.0.2.0/24": nodestate.GroupDirect})
	if apply(first); tab.pending() || len(tab.errors()) > 0 {
		t.Fatalf("errors %v", tab.errors())
	}
	holds("at first", first)
	second := egressState(2, map[string]nodestate.GatewayGroup{"0.0.0.0/0": 9, "198.51.100.0/24": 8})
	tab.rules.Fail = func() error { return errors.New("no room") }
	apply(second)
	if !tab.pending() || len(tab.errors()) == 0 {
		t.Error("nothing is said of rules that cannot be written")
	}
	got := nodestate.New()
	tab.read(got)
	client := netip.MustParseAddr("10.0.0.1")
	for _, to := range []string{"192.0.2.1", "203.0.113.1"} {
		a := netip.MustParseAddr(to)
		had, _ := first.Egress.Group(client, a)
		has, _ := got.Egress.Group(client, a)
		if had != has || fmt.Sprint(first.GatewaysOf(client, a)) != fmt.Sprint(got.GatewaysOf(client, a)) {
			t.Errorf("to %s: group %s with %v, before %s", to, has, got.GatewaysOf(client, a), had)
		}
	}
	tab.rules.Fail = nil
	if apply(second); tab.pending() || len(tab.errors()) > 0 {
		t.Errorf("errors %v", tab.errors())
	}
	holds("then", second)
}
