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
