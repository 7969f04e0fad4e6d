// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"

	"github.com/cilium/ebpf"

	"github.com/weir-net/weir/internal/dataplane/ebpf/bpffs"
)

// What limited pods send and get passes programs that are in the kernel only while there is such a
// pod: weir_from_limited and weir_to_limited, which take the places of weir_from_workload and
// weir_to_workload at its interface, and weir_from_queue, at the device by which its packets come
// back from their queue. Alike is weir_to_uplink_marked, at uplinks whose host endpoints have a
// DSCP.

// The names of the programs, and of the maps that they have: from interfaces to queues and back,
// limits, what is used up of them, connections, and the calls of IPv6's.
const (
	LimitedProgram   = "weir_from_limited"
	LimitedToProgram = "weir_to_limited"
	QueueProgram     = "weir_from_queue"
	MarkedProgram    = "weir_to_uplink_marked"
	Queues           = "weir_queues"
	Limits           = "weir_limits"
	LimitStates      = "weir_limit_states"
	Conns            = "weir_conns"
	Departures       = "weir_departures"
	LimitedOfIPv6    = "weir_limited_calls"
)

// limitedNames are all of them, those that there are of IPv6, too, first, in the order of enum
// limited_slot.
var limitedNames = []string{LimitedProgram, LimitedToProgram, MarkedProgram, QueueProgram}

// limitedSlots are those that IPv4's call of IPv6.
var limitedSlots = limitedNames[:3]

// LoadLimited loads the programs of a family alongside those that a collection has, with the same
// maps.
func LoadLimited(l *Collection) (*Programs, error) {
	if l.Family == bpffs.IPv6 {
		return loadPrograms(l, nil, limitedSlots...)
	}
	return loadPrograms(l, nil, limitedNames...)
}

// CallLimited makes these programs of IPv4 call those of IPv6; nil = none.
func (l *Collection) CallLimited(six *Programs) error {
	var errs []error
	for slot, name := range limitedSlots {
		var p *ebpf.Program
		if six != nil {
			p = six.Programs[name]
		}
		_, err := setCall(l.Maps[LimitedOfIPv6], uint32(slot), name+" for IPv6", p)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
