// SPDX-License-Identifier: Apache-2.0

package object

// What pods whose egress is limited send passes two programs that are in the kernel only while
// there is such a pod: weir_from_limited, which takes the place of weir_from_workload at its
// interface, and weir_from_queue, at the device by which its packets come back from their queue.

// The names of the two programs, and the map that leads from interfaces to queues and back.
const (
	LimitedProgram = "weir_from_limited"
	QueueProgram   = "weir_from_queue"
	Queues         = "weir_queues"
)

var limitedNames = []string{LimitedProgram, QueueProgram}

// LoadLimited loads the two programs of IPv4, which carry IPv6 as the others do, alongside those
// that a collection has, with the same maps.
func LoadLimited(l *Collection) (*Programs, error) {
	return loadPrograms(l, nil, limitedNames...)
}
