// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/hostile"
)

func TestHostileClaimsFillTheStatus(t *testing.T) {
	hostile.Record(t, "a node makes so many claims that a status has no room for other problems", hostile.Node, hostile.ControlPlane, hostile.Both)
	var all []calc.Refusal
	for i := range 500 {
		all = append(all, calc.Refusal{Object: fmt.Sprint("IPAMBlock ", i), Field: "spec.cidr", Value: fmt.Sprint(i), Why: "lies in no IPPool", Node: "far"},
			calc.Refusal{Object: fmt.Sprint("Pod default/", i), Field: "status.podIPs", Value: fmt.Sprint(i), Why: "lies in no IPPool", Node: "far"})
	}
	all = append(all, calc.Refusal{Object: "IPAMBlock z", Field: "spec.cidr", Value: "z", Why: "lies in no IPPool", Node: "near"})
	got := Claims(all)
	if len(got) != 3 || !strings.Contains(got[0].Message, "499 more") || !strings.Contains(got[0].Message, "node far") || got[2].Object != "IPAMBlock z" {
		t.Errorf("%d problems: %+v", len(got), got)
	}
}
