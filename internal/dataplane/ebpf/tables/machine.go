// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// Clock turns durations into the programs' units of 256 jiffies. HZ is how many jiffies are in a
// second.
type Clock struct{ HZ int }

// Units turns a duration into units of the programs' clock, 256 jiffies, rounded up.
func (c Clock) Units(d time.Duration) uint32 {
	u := math.Ceil(d.Seconds() * float64(c.HZ) / 256)
	return uint32(min(max(u, 1), math.MaxInt32))
}

// Now is about what the programs' clock says: jiffies begin 300 s before they overflow 32 bits (the
// kernel's INITIAL_JIFFIES) and follow the monotonic clock.
func (c Clock) Now() uint32 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	hz := uint64(c.HZ)
	return uint32((1<<32 - 300*hz + uint64(ts.Nano())*hz/1e9) >> 8)
}

// fineUnits turns a short duration into units of 16 jiffies.
func (c Clock) fineUnits(d time.Duration) uint16 {
	return uint16(min(max(math.Round(d.Seconds()*float64(c.HZ)/16), 1), math.MaxUint16/2))
}

// perThousandSeconds is settings.per_second: units in a thousand seconds.
func (c Clock) perThousandSeconds() uint32 { return uint32(1000 * c.HZ / 256) }

// Machine is what a settings entry says of the kernel rather than of the state. Node adds what it
// knows of host endpoints.
type Machine struct {
	Clock      Clock
	HostNetns  uint64 // cookie of the network namespace of the node's own processes
	Host       int    // interface index of weir0
	Tunnel     int    // of the VXLAN device; 0 = none
	Listening  bool   // somebody listens to events
	HandOver   bool   // another data plane has what has no flow yet
	Marks      bool   // all programs that are attached put marks on what they translate when asked to
	Apart      bool   // what is translated for the node's own processes is marked
	hostPolicy bool   // there are host endpoints still in the map
	untracked  bool   // some of them evaluate each packet by itself
	Flows      int    // entries that weir_flows has room for; 0 = what the state says
	// Uplinks are their MAC addresses by interface index.
	Uplinks map[uint32]abi.WeirLinkKey
}
