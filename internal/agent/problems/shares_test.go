// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/nodestate"
)

func TestOverdrawnNamespacesAreNamed(t *testing.T) {
	t.Parallel()
	s := nodestate.New()
	s.Overdrawn = []nodestate.Overdrawn{{Table: "policy entries", Refused: 1, Asked: 70000}, {Namespace: "shop", Table: "policy entries", Refused: 3, Asked: 90000, Granted: 32000, Reserved: 1024, Share: 32768, Total: 262144}}
	got := Overdrawn(Node{State: s})
	if len(got) != 2 || got[0].Object != "Policies of the cluster" || got[1].Object != "Namespace shop" || got[1].Field != "policy entries" {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{"asks for 90000 policy entries", "has 32000", "3 refused", "has 1024 in any case", "up to 32768"} {
		if !strings.Contains(got[1].Message, want) {
			t.Errorf("%q does not say %q", got[1].Message, want)
		}
	}
	if got := Overdrawn(Node{}); len(got) > 0 {
		t.Error("without a state:", got)
	}
}
