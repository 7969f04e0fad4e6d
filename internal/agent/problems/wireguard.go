// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"errors"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/wireguard"
)

// WireGuard says what keeps a node from encrypting, and that some nodes are sent packets in clear;
// nil = it is off.
func WireGuard(node string, s *wireguard.Status) []weirv1.Problem {
	if s == nil {
		return nil
	}
	var out []weirv1.Problem
	for _, err := range s.Errs {
		action := "see the log of the agent"
		switch {
		case errors.Is(err, wireguard.ErrNoDevice):
			action = "use a kernel that has WireGuard, or install with `weir install --wireguard-go`"
		case errors.Is(err, wireguard.ErrForeign):
			action = "give Weir another one (wireguardListeningPort, wireguardInterfaceName), or the other user"
		}
		out = append(out, weirv1.Problem{Object: "Node " + node, Field: "wireguardEnabled", Message: "this node does not encrypt what it sends to other nodes: " + err.Error(), Action: action})
	}
	if len(s.Clear) > 0 {
		out = append(out, weirv1.Problem{Object: "Node " + node, Field: "wireguardEnabled", Value: someOf(s.Clear[0], len(s.Clear)),
			Message: "what is sent to pods of these nodes goes in clear: they have not published a key, or this node has none yet",
			Action:  "look at the status of these nodes; with wireguardStrict nothing is sent there"})
	}
	return out
}
