// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"slices"
	"strings"
	"testing"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/nodestate"
)

func TestPoliciesThatDoNotFitAreNamed(t *testing.T) {
	t.Parallel()
	s := nodestate.New()
	s.Unfit = []nodestate.Rule{{Kind: "policy-too-large", Name: "shop/a,b", Detail: "ingress"}, {Kind: "staged-policy-too-large", Name: "shop/a (staged)", Detail: "egress"}}
	got := Unfit(Node{State: s})
	if len(got) != 2 || !strings.Contains(got[0].String(), "Policies shop/a,b ingress: are too large") || !strings.Contains(got[0].Message, "cut off") ||
		!strings.Contains(got[1].String(), "Policies shop/a (staged) egress: would be") {
		t.Errorf("%v", got)
	}
	if got := Unfit(Node{}); len(got) > 0 {
		t.Errorf("before there is a state: %v", got)
	}
}

// The fullest tables come first, those that are as good as empty not at all, and never too many.
func TestFullestTables(t *testing.T) {
	t.Parallel()
	all := []dataplane.Pressure{{Map: "a", Entries: 9, Capacity: 1000}, {Map: "b", Family: "ipv6", Entries: 2000, Capacity: 1000}, {Map: "c", Entries: 15, Capacity: 1000}, {Map: "d", Entries: 1}}
	want := []weirv1.Table{{Name: "b", Family: "ipv6", Percent: 100, Capacity: 1000}, {Name: "d", Percent: 100}, {Name: "c", Percent: 1, Capacity: 1000}}
	if got := FullestTables(all); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for range weirv1.MaxTables {
		all = append(all, dataplane.Pressure{Map: "e", Entries: 5, Capacity: 10})
	}
	if got := FullestTables(all); len(got) != weirv1.MaxTables || got[0].Name != "b" {
		t.Errorf("%d tables: %+v", len(got), got)
	}
}

// A node that carries IPv6 for a host endpoint alone is not said to lack an address for a pool.
func TestHostEndpointIsNoPoolOfIPv6(t *testing.T) {
	t.Parallel()
	s := nodestate.New()
	s.Settings.IPv6 = true
	n := Node{Name: "n1", State: s}
	if got := Addresses(n); len(got) > 0 {
		t.Errorf("without a pool of IPv6: %v", got)
	}
	n.IPv6Pool = true
	if got := Addresses(n); len(got) != 1 || !strings.Contains(got[0].Message, "IPPool of IPv6") {
		t.Errorf("with one: %v", got)
	}
}
