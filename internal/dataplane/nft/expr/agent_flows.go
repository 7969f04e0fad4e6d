// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"fmt"

	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/kernel"
)

// The agent's own connections to the API server: their sockets bear kernel.OwnMark. No Service
// takes them, and no policy applies to them. Their answers are known by the ct mark, which has
// marks.AgentEpoch.
var (
	OwnSocket = fmt.Sprintf("meta mark and %#x == %#x ", kernel.OwnMask, kernel.OwnMark) // of what the node sends
	OwnFlow   = fmt.Sprintf("ct mark %#x ", marks.AgentEpoch)                            // in either direction
)
