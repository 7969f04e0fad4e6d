// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// FlowRecord is what one direction of a flow carried through this node since it was reported last.
type FlowRecord struct {
	// Src to Dport are of the flow's original direction, as its first packet came; of ICMP the
	// ports are those of struct flow_key in bpf/abi_flow.h.
	Src, Dst     netip.Addr
	Sport, Dport uint16
	Proto        model.Protocol
	// ToSrc to ToDport are the same after translation. Of a flow that was handed on they are as
	// before.
	ToSrc, ToDst     netip.Addr
	ToSport, ToDport uint16
	Reply            bool // the counters are of the answers
	Packets, Bytes   uint64
	TCPFlags         uint8 // of this direction, that open and close: RFC 9293, section 3.1
	Started, Until   time.Time
	First            bool // the first record of this direction; the data plane may not know (nftables)
	// Handshake is how long that of TCP took, of either direction; 0 = not known.
	Handshake time.Duration
	// Retransmitted are the segments of TCP with data, of this direction, that brought nothing
	// beyond those before; RetransmittedKnown = the data plane counts them.
	Retransmitted      uint64
	RetransmittedKnown bool
	End                FlowEnd
	Service            nodestate.Frontend // its id, zero when none
	// Asked is the frontend that the client's socket asked for, where it got the backend by
	// connect(); zero when it did not.
	Asked   nodestate.Frontend
	Backend netip.AddrPort // of the Service
	Path    FlowPath       // of this direction
	HandOn  bool           // the node of the backend evaluates it
	DSR     bool           // answers go straight to the client
	SNAT    bool           // the source became the node's
	// Egress is what was said at the source, Ingress at the destination.
	Egress, Ingress EventEnd
	// Name is the pattern of domain names by which the rule at the source allows; 0 = by none. A
	// record of answers does not have it.
	Name nodestate.NameID
	// AskedName is the domain name that the client asked for, in lower case, where DNS led it to
	// the destination and a pattern of its policy matches. A record of answers does not have it.
	AskedName string
}

// AskedAddr is the address that the client asked: that of a Service, where it asked one.
func (r *FlowRecord) AskedAddr() netip.Addr {
	if r.Asked.Addr.IsValid() {
		return r.Asked.Addr
	}
	return r.Dst
}

// FlowEnd says why a flow was reported.
type FlowEnd string

// The reasons.
const (
	FlowGoesOn   FlowEnd = ""         // the interval is over
	FlowClosed   FlowEnd = "closed"   // by both ends, or reset
	FlowReplaced FlowEnd = "replaced" // its entry went to a newer flow
	FlowExpired  FlowEnd = "expired"  // no packet came
)

// FlowPath is how packets go on from the node's hook.
type FlowPath string

// The paths.
const (
	PathStack  FlowPath = "stack"  // the kernel's stack
	PathLocal  FlowPath = "local"  // into a pod of the node
	PathDirect FlowPath = "direct" // out of an uplink, to a neighbour
	PathVXLAN  FlowPath = "vxlan"
	PathIPIP   FlowPath = "ipip"
)

// LostRecords are records of flows that nobody got to read, since the maps were made.
type LostRecords struct {
	Begun uint64 // flows that are accounted for
	Full  uint64 // records of flows that ended, for which the ring had no room
	Queue uint64 // of flows that expired, while nobody read
	// Evicted counts flows that the kernel took out of a full table before they ended, as far as it
	// is certain; EvictedKnown = it was counted.
	Evicted      uint64
	EvictedKnown bool
}
