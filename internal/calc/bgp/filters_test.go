// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Routes have priorities on all nodes as soon as a filter of the cluster is about them.
func TestPriorities(t *testing.T) {
	for _, x := range []struct {
		rule model.BGPRule
		want bool
	}{{model.BGPRule{Accept: true}, false}, {model.BGPRule{Accept: true, Priority: 7}, true}, {model.BGPRule{Accept: true, SetPriority: 7}, true}} {
		c := racks()
		c.BGPFilters["of others"] = &model.BGPFilter{Name: "of others", Import6: []model.BGPRule{x.rule}}
		if got := state(c).Priorities; got != x.want {
			t.Errorf("%+v: %t", x.rule, got)
		}
	}
}

func TestNextHops(t *testing.T) {
	c := racks()
	c.BGPConfigs["default"].MeshDisabled = true
	c.BGPPeers["a"] = &model.BGPPeer{Name: "a", Addr: addr("192.0.2.9"), ASN: 64999, NextHop: "Self", Via: addr("192.0.2.8"), BFD: true}
	c.BGPPeers["b"] = &model.BGPPeer{Name: "b", PeerSelector: "rack == '2'", NextHop: "Keep"}
	s := state(c)
	got := fmt.Sprint(s.Self, s.Unchanged, s.Gateways)
	if want := "[192.0.2.9] [192.0.2.3 2001:db8::3] [{192.0.2.9 192.0.2.8}]"; got != want {
		t.Errorf("next hops are %s, want %s", got, want)
	}
	for _, p := range s.Peers {
		if p.BFD { // of one link alone: the peer is behind a router
			t.Errorf("%+v has BFD", p)
		}
	}
}

func TestFilters(t *testing.T) {
	rule := func(cidr string) model.BGPRule { return model.BGPRule{Accept: true, CIDR: prefix(cidr)} }
	kind := func(of string) model.BGPRule { return model.BGPRule{PeerType: of} }
	c := racks()
	c.BGPFilters["one"] = &model.BGPFilter{Name: "one", Export4: []model.BGPRule{rule("10.1.0.0/16"), kind("iBGP"), kind("eBGP")}, Import4: []model.BGPRule{rule("10.2.0.0/16")},
		Export6: []model.BGPRule{rule("fd01::/16")}, Import6: []model.BGPRule{rule("fd02::/16")}}
	c.BGPFilters["two"] = &model.BGPFilter{Name: "two", Export4: []model.BGPRule{rule("10.3.0.0/16")}}
	for name, p := range map[string]model.BGPPeer{
		"a": {Addr: addr("192.0.2.9"), ASN: 64999, Filters: []string{"two", "one", "three"}},
		"b": {Addr: addr("192.0.2.10"), ASN: 64999, Filters: []string{"two", "one", "three"}},
		"c": {Addr: addr("192.0.2.11"), ASN: 64512, Filters: []string{"two", "one"}},
		"d": {Addr: addr("2001:db8::9"), ASN: 64999, LocalASN: 65001, Filters: []string{"one"}},
		"e": {Addr: addr("192.0.2.12"), ASN: 64999},
		// The object that loses has no say.
		"f": {Addr: addr("192.0.2.12"), ASN: 64999, Filters: []string{"one"}},
	} {
		p.Name = name
		c.BGPPeers[name] = &p
	}
	s := state(c)
	want := []nodestate.BGPFilter{
		{Peers: []netip.Addr{addr("192.0.2.9"), addr("192.0.2.10")}, FrontASN: 64512,
			Export: []model.BGPRule{rule("10.3.0.0/16"), rule("10.1.0.0/16"), kind("eBGP")}, Import: []model.BGPRule{rule("10.2.0.0/16")}},
		{Peers: []netip.Addr{addr("192.0.2.11")}, Export: []model.BGPRule{rule("10.3.0.0/16"), rule("10.1.0.0/16"), kind("iBGP")}, Import: []model.BGPRule{rule("10.2.0.0/16")}},
		{Peers: []netip.Addr{addr("2001:db8::9")}, FrontASN: 65001, Export: []model.BGPRule{rule("fd01::/16")}, Import: []model.BGPRule{rule("fd02::/16")}},
	}
	if !reflect.DeepEqual(s.Filters, want) {
		t.Errorf("filters are\n%+v, want\n%+v", s.Filters, want)
	}
	if got := fmt.Sprint(s.MissingFilters); got != "[three of BGPPeer a]" {
		t.Errorf("missing are %s", got)
	}
	if s := state(racks()); s.Filters != nil {
		t.Errorf("the mesh has filters: %+v", s.Filters)
	}
}
