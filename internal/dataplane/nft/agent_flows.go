package nft

import (
	"fmt"

	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/kernel"
)

// The agent's own connections to the API server: their sockets bear kernel.OwnMark. No Service takes
// them, and no policy applies to them. Their answers are known by the ct mark, which has
// marks.AgentEpoch.
var (
	ownSocket = fmt.Sprintf("meta mark and %#x == %#x ", kernel.OwnMask, kernel.OwnMark) // of what the node sends
	ownFlow   = fmt.Sprintf("ct mark %#x ", marks.AgentEpoch)                            // in either direction
)

// ownSent takes what such a socket sends out of the chain that it stands in.
var ownSent = ownSocket + "goto " + sentOwnChain

// sentOwn lets it pass. What the node sends to itself keeps its mark on the way back in, where the
// same bits name the node whose tunnel a packet came by: it would be taken for a packet of another
// node with this node's source, and be dropped. It goes on without the mark.
var sentOwn = []string{
	fmt.Sprintf("ct mark set %#x", marks.AgentEpoch),
	"oifname lo meta mark set meta mark and " + marks.Hex(^uint32(kernel.OwnMask)),
	"accept",
}
