// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// QoS is how much a pod may send and get, as its annotations say (qos.projectcalico.org/…,
// kubernetes.io/ingress-bandwidth and egress-bandwidth). It is never changed once it is made.
type QoS struct {
	Ingress, Egress Limits // to the pod, from it
}

// Limits are those of one direction; 0 = none.
type Limits struct {
	Bandwidth uint64 // bits a second
	Burst     uint64 // bits that may go at once; 0 = a small part of what goes in a second
	Peakrate  uint64 // bits a second while a burst goes; 0 = as fast as the machine can
	Minburst  uint32 // bytes that may go at once at Peakrate; 0 = a packet
}

// Equal reports whether two are the same; nil is no limit.
func (q *QoS) Equal(o *QoS) bool {
	if q == nil || o == nil {
		return q == o
	}
	return *q == *o
}

func (l Limits) String() string {
	if l == (Limits{}) {
		return "none"
	}
	return fmt.Sprintf("%d/%d/%d/%d", l.Bandwidth, l.Burst, l.Peakrate, l.Minburst)
}

func (q QoS) String() string { return "ingress=" + q.Ingress.String() + " egress=" + q.Egress.String() }
