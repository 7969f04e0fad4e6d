// SPDX-License-Identifier: Apache-2.0

// Package marks is what packet marks and ct marks say: which node a packet comes from or goes to,
// whether it takes the tunnel, and under which policy its flow was evaluated. Other nodes are named
// by numbers, which Numbers gives out and takes back from an earlier run. The layout of both marks
// is in the package comment of internal/dataplane/nft.
package marks

import "fmt"

// NodeMask are the bits of both marks that hold the number of a node; NodeShift is where they
// begin.
const (
	NodeMask  = 0x1fff0000
	NodeShift = 16
	MaxNodes  = NodeMask>>NodeShift - 3 // see RoutesNumber
)

// RoutesNumber is in the place of a node's where another CNI plugin has routing rules for the
// addresses of pods (nodestate.Settings.Chained): the answers of what was translated leave with the
// address that was asked, so the table main leads them, whatever these rules say of the pod's.
const RoutesNumber = MaxNodes + 1

// Numbers in the place of a node's: of TCP flows with DSR whose handshake is not over.
const (
	OpeningNumber = MaxNodes + 2                                 // the backend has not answered yet
	RepliedNumber = MaxNodes + 3                                 // it has
	HandshakeMask = (OpeningNumber & RepliedNumber) << NodeShift // all of it: one of both
)

// Bits of packet marks and ct marks.
const (
	RoutedBit    = 0x20000000          // of packet marks: the packet goes to the node with the number, whatever the routes say
	TunnelBit    = 0x80000000          // of packet and ct marks: through the tunnel, also to a node on the link
	HandedBit    = 0x40000000          // of ct marks: what comes in the first direction goes to the node; without it answers do
	CameBit      = 0x20000000          // of ct marks: the flow was handed on to this node through the tunnel
	UntrackedBit = 0x40000000          // of packet marks: allowed by untracked policy; before admit, of a first packet for a Service, it is HandedBit
	EgressBits   = HandedBit | CameBit // of ct marks: the flow leaves the cluster by an egress gateway, with TunnelBit by that node's, else by one of this node, whose number it is
	RoutedMask   = RoutedBit | TunnelBit | NodeMask
)

// PluginBit is the bit of both marks that Amazon's VPC CNI sets and reads
// (AWS_VPC_K8S_CNI_CONNMARK): it says nothing here, and stays as it is where policy marks a flow.
const PluginBit = 0x80

// EpochMask are the bits of a ct mark that say under which policy the flow was evaluated.
const EpochMask = 0xffff &^ PluginBit

// AgentEpoch is that of the agent's own connections: a number that no policy has, whether PluginBit
// is set or not. It has that bit, so that the mark stays the same when somebody sets it.
const AgentEpoch = EpochMask | PluginBit

// Hex writes bits as rules do.
func Hex(bits uint32) string { return fmt.Sprintf("%#x", bits) }
