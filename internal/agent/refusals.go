package agent

import (
	"fmt"
	"slices"
	"strings"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/nodestate"
)

// maxRefusals bounds what a status says of Services and host ports: tenants make as many as they like, and what is wrong with
// the node has to be seen beside it.
const maxRefusals = 30

// refusalProblems says which frontends and backends of Services, and which host ports, are not in force. What was refused
// comes before what is pointed at.
func refusalProblems(s *nodestate.State) []weirv1.Problem {
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
	all := append(refused, pointed...)
	if n := len(all) - maxRefusals; n > 0 {
		all = append(all[:maxRefusals:maxRefusals], weirv1.Problem{Object: "Services", Message: fmt.Sprintf("%d more problems of Services and host ports are not shown", n)})
	}
	return all
}

func compareObjects(a, b nodestate.Object) int {
	if c := strings.Compare(a.Kind, b.Kind); c != 0 {
		return -c // Services before Pods
	}
	return strings.Compare(a.Name.String(), b.Name.String())
}
