// SPDX-License-Identifier: Apache-2.0

package problems

import (
	"cmp"
	"errors"
	"slices"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
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
		out = append(out, weirv1.Problem{Object: "Node " + node, Field: "wireguardEnabled", Value: someOf(s.Clear[:min(len(s.Clear), maxNamed)], len(s.Clear)),
			Message: "what is sent to pods of these nodes goes in clear: they have not published a key, or this node has none yet",
			Action:  "look at the status of these nodes; with wireguardStrict nothing is sent there"})
	}
	return out
}

// maxNamed bounds the nodes that a problem names: its value has 256 bytes.
const maxNamed = 5

// EncryptedPools names the pools that ask for IP in IP and are carried by VXLAN, because that is
// what WireGuard encrypts.
func EncryptedPools(c *model.Cluster) []weirv1.Problem {
	if !c.Settings.WireGuard.IPv4.Enabled || c.Settings.IPIP == model.Off {
		return nil
	}
	var out []weirv1.Problem
	for _, p := range c.Pools {
		if p.IPIP.Encapsulates() {
			out = append(out, weirv1.Problem{Object: "IPPool " + p.Name, Field: "spec.ipipMode", Value: string(p.IPIP),
				Message: "is not in force while wireguardEnabled is: the pool is carried by VXLAN, whose packets WireGuard encrypts", Action: "set vxlanMode in the place of ipipMode"})
		}
	}
	slices.SortFunc(out, func(a, b weirv1.Problem) int { return cmp.Compare(a.Object, b.Object) })
	return out
}
