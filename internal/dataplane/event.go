// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Event is what policy said of a flow: in its original direction, after translation of the
// destination, before that of the source. docs/design/datapath.md says of which flows there is one.
type Event struct {
	Src, Dst     netip.Addr
	Sport, Dport uint16 // of ICMP Dport is type * 256 + code
	Proto        model.Protocol
	Hook         string // as docs/design/datapath.md calls it
	IfIndex      int
	Service      nodestate.Frontend // its id, zero when none
	Allowed      bool               // by policy, and no limit of a pod's drops it
	Log          bool               // a rule with action Log matched
	Again        bool               // a flow that was there is evaluated again
	Reason       uint32             // enum drop_reason: why the packet was dropped, 0 = it was not
	// Egress is what was said at the source, Ingress at the destination.
	Egress, Ingress EventEnd
	// In is what a host endpoint said where the flow comes into the node, Out where it leaves it.
	In, Out EventHost
}

// EventHost is what a host endpoint said of a flow.
type EventHost struct {
	Evaluated bool             // policy applies there, or staged policy would
	Rule      nodestate.RuleID // that decided, 0 = none did
	Staged    bool             // staged policies would change the policy there
	// StagedDenied is what they would have said, StagedRule by which rule.
	StagedDenied bool
	StagedRule   nodestate.RuleID
}

// EventEnd is what policy said at one end of a flow.
type EventEnd struct {
	Local  bool             // a pod of this node
	Rule   nodestate.RuleID // that decided, 0 = none did
	Staged bool             // staged policies select it
	// StagedDenied is what they would have said, StagedRule by which rule.
	StagedDenied bool
	StagedRule   nodestate.RuleID
}
