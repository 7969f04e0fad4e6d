// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"strings"
	"testing"

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
