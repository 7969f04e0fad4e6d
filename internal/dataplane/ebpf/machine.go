// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/ebpf/abi"
)

// clock turns durations into the programs' units of 256 jiffies.
type clock struct{ hz int }

func (c clock) units(d time.Duration) uint32 {
	u := math.Ceil(d.Seconds() * float64(c.hz) / 256)
	return uint32(min(max(u, 1), math.MaxInt32))
}

// now is about what the programs' clock says: jiffies begin 300 s before they overflow 32 bits (the
// kernel's INITIAL_JIFFIES) and follow the monotonic clock.
func (c clock) now() uint32 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	hz := uint64(c.hz)
	return uint32((1<<32 - 300*hz + uint64(ts.Nano())*hz/1e9) >> 8)
}

// fineUnits turns a short duration into units of 16 jiffies.
func (c clock) fineUnits(d time.Duration) uint16 {
	return uint16(min(max(math.Round(d.Seconds()*float64(c.hz)/16), 1), math.MaxUint16/2))
}

// perThousandSeconds is settings.per_second: units in a thousand seconds.
func (c clock) perThousandSeconds() uint32 { return uint32(1000 * c.hz / 256) }

// machine is what a settings entry says of the kernel rather than of the state.
type machine struct {
	clock      clock
	hostNetns  uint64
	host       int  // interface index of weir0
	tunnel     int  // of the VXLAN device; 0 = none
	listening  bool // somebody listens to events
	handOver   bool // another data plane has what has no flow yet
	marks      bool // all programs that are attached put marks on what they translate when told to
	apart      bool // what is translated for the node's own processes is marked
	hostPolicy bool // there are host endpoints still in the map
	untracked  bool // some of them evaluate each packet by itself
	flows      int  // entries that weir_flows has room for; 0 = what the state says
	// uplinks are their MAC addresses by interface index.
	uplinks map[uint32]abi.WeirLinkKey
}
