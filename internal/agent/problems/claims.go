// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"fmt"
	"strings"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/calc"
)

// Claims reports what nodes claim and does not count (calc.Refusal): one problem for each node and
// kind of claim, so that one node cannot fill the list.
func Claims(refused []calc.Refusal) []weirv1.Problem {
	type group struct{ node, kind, field string }
	count := map[group]int{}
	first := map[group]int{}
	var out []weirv1.Problem
	for _, r := range refused {
		kind, _, _ := strings.Cut(r.Object, " ")
		g := group{r.Node, kind, r.Field}
		if count[g]++; count[g] > 1 {
			continue
		}
		first[g] = len(out)
		action := "if node " + r.Node + " is not yours any more, remove it from the cluster; else correct the object"
		out = append(out, weirv1.Problem{Object: r.Object, Field: r.Field, Value: r.Value, Message: "is claimed by node " + r.Node + " and does not count: " + r.Why, Action: action})
	}
	for g, i := range first {
		if n := count[g] - 1; n > 0 {
			out[i].Message += fmt.Sprintf(" (and %d more such claims of this node)", n)
		}
	}
	return out
}
