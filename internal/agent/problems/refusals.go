// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"slices"
	"strings"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/nodestate"
)

// Refusals says which frontends and backends of Services, and which host ports, are not in force.
// What was refused comes before what is pointed at.
func Refusals(s *nodestate.State) []weirv1.Problem {
	if s == nil || s.Refused.Len() == 0 {
		return nil
	}
	var refused, pointed []weirv1.Problem
	for _, o := range slices.SortedFunc(s.Refused.Keys(), compareObjects) {
		for _, r := range s.Refused.At(o) {
			p := weirv1.Problem{Object: o.Kind + " " + o.Name.String(), Field: r.Field, Value: r.Value, Message: r.Message, Action: r.Action}
			if r.Allowed {
				pointed = append(pointed, p)
			} else {
				refused = append(refused, p)
			}
		}
	}
	return append(refused, pointed...)
}

func compareObjects(a, b nodestate.Object) int {
	if c := strings.Compare(a.Kind, b.Kind); c != 0 {
		return -c // Services before Pods
	}
	return strings.Compare(a.Name.String(), b.Name.String())
}
