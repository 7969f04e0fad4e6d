// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"time"

	"github.com/weir-net/weir/internal/nodestate"
)

// Reporter is what a data plane reports, apart from what Apply returns. What a driver does not have
// is empty.
type Reporter interface {
	Status() Status
	// Drops counts dropped packets, by reason and rule.
	Drops() ([]Drop, error)
	DSRFallback() (DSRFallback, error)
	// Pressures returns how full the tables of a fixed size are, sorted by name.
	Pressures() []Pressure
	Held() ([]HeldPod, error)
	ExhaustedPods() ([]ExhaustedPod, error)
	LostEvents() (LostEvents, error)
	// Answers counts what was sent back to senders of dropped packets, by what it was.
	Answers() (map[string]uint64, error)
	// Names counts answers of DNS servers to pods whose policy has domain names, by what became of
	// them.
	Names() (map[string]uint64, error)
}

// NamedBy is a pattern of domain names that led a pod to an address, and for how long it counts.
type NamedBy struct {
	Name nodestate.NameID
	Left time.Duration
}

// Status is how a data plane is.
type Status struct {
	Uplinks   []string          // interfaces with the uplink programs, sorted
	Endpoints int               // pod interfaces that are attached
	Tunnel    bool              // the VXLAN device exists
	Epoch     uint32            // of flows
	Writes    uint64            // entries written or deleted since the start
	Repairs   map[string]uint64 // by what: program, pin, device, route
	Repaired  time.Time         // of the last repair; zero = none
	Problems  []string          // what could not be put in place at the last try
	NoIPIP    string            // why the node cannot take IP in IP; empty = it can, or nobody asked for it
	Entries   map[string]int    // of the tables, by name
	// Arrival says of each uplink where what doNotTrack policy denies is dropped, while there is
	// any: XDPNative, XDPGeneric, or why not in XDP.
	Arrival map[string]string
	Late    uint64 // packets that doNotTrack policy evaluated behind XDP
}

// Where a program in XDP runs.
const (
	XDPNative  = "native"
	XDPGeneric = "generic"
)

// Drop counts packets that were dropped for one reason by one rule.
type Drop struct {
	Reason  uint32 // package reason
	Rule    nodestate.RuleID
	Packets uint64
	Bytes   uint64
}

// DSRFallback are the outside clients that get their answers by the node that they ask, because
// those of direct server return did not arrive.
type DSRFallback struct {
	Clients []netip.Addr // now, the latest first
	Total   uint64       // times that a client fell back since the programs were loaded
}

// Pressure is how full a table is.
type Pressure struct {
	Map      string
	Family   string // ipv4 or ipv6: each has its own table; empty = both share it
	Setting  string // FelixConfiguration field that sets its size; empty = none
	Entries  int
	Capacity int
}

// High reports whether a table is so full that somebody must know.
func (p Pressure) High() bool { return p.Entries*10 > p.Capacity*9 }

// HeldPod begins no other flow: it has more than its share of a table of connections that is nearly
// full.
type HeldPod struct {
	Addr    netip.Addr
	Entries int // of the table, whose flows it began
}

// ExhaustedPod found no port for source NAT towards a destination among those that it may have.
type ExhaustedPod struct {
	Addr     netip.Addr
	Replaced uint64 // flows that were not established, and lost their port to a newer one of the same pod
	Refused  uint64 // packets that were dropped
	Recent   bool   // it goes on
}

// LostEvents are events that nobody got to read.
type LostEvents struct {
	Full    uint64 // there was no room
	Limited uint64 // beyond the rate of a CPU
}

// Places are the interfaces by which packets come that are not a pod's.
type Places struct {
	Uplinks      map[int][6]byte // by index, with their MAC addresses
	Tunnel, Host int             // 0 = there is none
	IPIP         int             // the device of IP in IP, which eBPF does without
	Epoch        uint32
	Behind       string // what of the state is not in the kernel; empty = all is
}
