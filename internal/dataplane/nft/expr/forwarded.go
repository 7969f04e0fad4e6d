// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"github.com/weir-net/weir/internal/nodestate"
)

// AppliesToForwarded reports whether policies of host endpoints apply to what passes the node, of a
// family.
func AppliesToForwarded(s *nodestate.State, six bool) bool {
	for at, h := range s.HostEndpoints {
		if at.IPv6 == six && (h.ForwardIngress.Set != 0 || h.ForwardEgress.Set != 0) {
			return true
		}
	}
	return false
}
