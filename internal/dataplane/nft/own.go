package nft

import (
	"fmt"

	"github.com/weir-net/weir/internal/kernel"
)

// The agent's own connections to the API server: their sockets bear kernel.OwnMark. No Service takes them, and no policy judges them. Their answers
// are known by the ct mark, which says a number that no policy has.
const ownEpoch = epochMask

var (
	ownSocket = fmt.Sprintf("meta mark and %#x == %#x ", kernel.OwnMask, kernel.OwnMark) // of what the node sends
	ownFlow   = fmt.Sprintf("ct mark %#x ", ownEpoch)                                    // in either direction
)

// ownSent lets pass what such a socket sends.
var ownSent = ownSocket + fmt.Sprintf("ct mark set %#x accept", ownEpoch)
