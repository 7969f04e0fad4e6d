// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/nodestate"
)

// EvaluatesForwarded reports whether policies of host endpoints apply to what passes the node, of a
// family.
func EvaluatesForwarded(s *nodestate.State, six bool) bool { return expr.AppliesToForwarded(s, six) }

// MaxHashed is up to how many backends consistent hashing is done.
const MaxHashed = services.MaxHashed
