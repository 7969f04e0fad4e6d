// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// QoS is how much a pod may send and get, as its annotations say (qos.projectcalico.org/…,
// kubernetes.io/ingress-bandwidth and egress-bandwidth). It is never changed once it is made.
type QoS struct {
	Ingress, Egress Limits // to the pod, from it
	// DSCP is what packets bear that leave the cluster, plus 1; 0 = what the pod gives them.
	DSCP uint8
}

// Limits are those of one direction; 0 = none.
type Limits struct {
	Bandwidth   uint64 // bits a second
	Burst       uint64 // bits that may go at once; 0 = a small part of what goes in a second
	Peakrate    uint64 // bits a second while a burst goes; 0 = as fast as the machine can
	Minburst    uint32 // bytes that may go at once at Peakrate; 0 = a packet
	PacketRate  uint32 // packets a second
	PacketBurst uint32 // packets that may go at once; 0 = defaultPacketBurst
	Connections uint32 // of TCP that may be open
}

// defaultPacketBurst is Calico's.
const defaultPacketBurst = 5

// PacketsAtOnce returns how many packets may go at once.
func (l Limits) PacketsAtOnce() uint32 {
	if l.PacketBurst == 0 {
		return defaultPacketBurst
	}
	return l.PacketBurst
}

// Equal reports whether two are the same; nil is no limit.
func (q *QoS) Equal(o *QoS) bool {
	if q == nil || o == nil {
		return q == o
	}
	return *q == *o
}

// CountsConnections reports whether the pod's connections are counted, in either direction.
func (q QoS) CountsConnections() bool { return q.Ingress.Connections > 0 || q.Egress.Connections > 0 }

func (l Limits) String() string {
	if l == (Limits{}) {
		return "none"
	}
	text := fmt.Sprintf("%d/%d/%d/%d", l.Bandwidth, l.Burst, l.Peakrate, l.Minburst)
	if l.PacketRate > 0 {
		text += fmt.Sprintf(",packets=%d/%d", l.PacketRate, l.PacketBurst)
	}
	if l.Connections > 0 {
		text += fmt.Sprintf(",connections=%d", l.Connections)
	}
	return text
}

func (q QoS) String() string {
	text := "ingress=" + q.Ingress.String() + " egress=" + q.Egress.String()
	if q.DSCP > 0 {
		text += fmt.Sprintf(" dscp=%d", q.DSCP-1)
	}
	return text
}
