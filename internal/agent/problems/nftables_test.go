// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

func TestNFTablesNamesWhatItLacks(t *testing.T) {
	t.Parallel()
	lacks := (*nft.Driver)(nil).Lacks()
	var l NFTables
	if got := l.Of("n1", nil, lacks); got != nil {
		t.Errorf("without a state: %v", got)
	}
	if got := l.Of("n1", nodestate.New(), lacks); len(got) != 0 {
		t.Errorf("a state that asks for nothing: %v", got)
	}
	pod := netip.MustParseAddr("10.0.0.9")
	id := nodestate.Frontend{Addr: netip.MustParseAddr("10.96.0.7"), Port: 80, Proto: 6}
	s := nodestate.New()
	s.Addrs[pod] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Owner: model.Name{Namespace: "ns", Name: "pod"}}
	s.Rules = nodestate.MapOf(map[nodestate.RuleID]nodestate.Rule{7: {Kind: "Service", Name: "ns/hashed"}})
	s.Frontends = nodestate.MapOf(map[nodestate.Frontend]nodestate.Service{
		id: {ID: id, Maglev: true, Rule: 7, Mode: model.ExternalModeDSR}, {Port: 30000, Proto: 6}: {ID: id, Maglev: true, Rule: 7, External: true, Mode: model.ExternalModeDSR},
		{Addr: id.Addr, Port: 81, Proto: 6}: {ID: nodestate.Frontend{Addr: id.Addr, Port: 81, Proto: 6}},
	})
	var many []nodestate.Backend
	for i := range nft.MaxHashed + 1 {
		many = append(many, nodestate.Backend{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Port: 80})
	}
	s.Backends = nodestate.MapOf(map[nodestate.Frontend][]nodestate.Backend{id: many})
	s.Policy = nodestate.MapOf(map[nodestate.PolicyKey]nodestate.PolicyValue{{Set: 1, Head: true}: {Allow: true}, {Set: 1, Port: 80}: {Allow: true, Log: true}})
	want := [][2]string{{"consistent hashing", "hashed"}}
	got := l.Of("n1", s, lacks)
	if len(got) != len(want) {
		t.Fatalf("%d are named, want %d: %v", len(got), len(want), got)
	}
	for i, w := range want {
		if got[i].Field != w[0] || !strings.Contains(got[i].Value, w[1]) || strings.Contains(got[i].Value, "and 1 more") != strings.Contains(w[1], "more") || got[i].Object != "Node n1" {
			t.Errorf("%v, want %v", got[i], w)
		}
	}
	// A driver that lacks none of this has to say nothing of it.
	s.Backends = nodestate.MapOf(map[nodestate.Frontend][]nodestate.Backend{id: many[1:]})
	if got := nftablesNotInForce("n1", s, nil); len(got) != 0 {
		t.Errorf("of a driver that lacks nothing: %v", got)
	}
}
