// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"fmt"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
)

// Overdrawn names the namespaces that ask for more of this node's tables than they get, with the
// figures.
func Overdrawn(n Node) []weirv1.Problem {
	if n.State == nil {
		return nil
	}
	var out []weirv1.Problem
	for _, o := range n.State.Overdrawn {
		p := weirv1.Problem{Object: "Namespace " + o.Namespace, Field: o.Table,
			Message: fmt.Sprintf("asks for %d %s on this node and has %d: %d refused, the youngest first (every namespace has %d in any case, up to %d before younger ones, and more while others leave it)",
				o.Asked, o.Table, o.Granted, o.Refused, o.Reserved, o.Share),
			Action: "use fewer of them, or join them: see docs/reference/policy.md, Shares of the tables"}
		if o.Namespace == "" {
			p.Object = "Policies of the cluster"
		}
		out = append(out, p)
	}
	return out
}
