// SPDX-License-Identifier: Apache-2.0

package problems

import (
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/nodestate"
)

// NoIPIP says that a node takes no IP in IP, which its state has, and why; why is empty where it
// does.
func NoIPIP(node, why string, s *nodestate.State) []weirv1.Problem {
	if why == "" || s == nil || !s.Settings.IPIP.Accept {
		return nil
	}
	return []weirv1.Problem{{Object: "Node " + node, Field: "ipipMode",
		Message: "is not in force on this node, which has nftables: it and other nodes send each other VXLAN in the place of IP in IP (" + why + ")",
		Action:  "set vxlanMode in the place of the pools' ipipMode, or give the node eBPF or a kernel that has the device"}}
}
