// SPDX-License-Identifier: Apache-2.0

package flowstore

import (
	"iter"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/table"
)

// Sum is what records say together.
type Sum struct {
	Records uint64 `json:"records"`
	// Connections are those that ended in a record, and what was denied or dropped. One that is
	// open is counted when it ends.
	Connections uint64 `json:"connections"`
	Packets     uint64 `json:"packets"` // of both directions
	Bytes       uint64 `json:"bytes"`   // of IP; 0 of what was denied
}

func (s *Sum) add(o Sum) {
	s.Records, s.Connections, s.Packets, s.Bytes = s.Records+o.Records, s.Connections+o.Connections, s.Packets+o.Packets, s.Bytes+o.Bytes
}

// side is which end's node has made a record. A connection between two nodes has records of both,
// so their sums are not added.
type side = uint8

const (
	sideDestination side = iota // what is on one node alone, too
	sideSource
	sideNone // a node that hands the connection on, or no end is a pod
	sides
)

// outcome is what was decided, and by whom.
type outcome struct {
	Verdict, Reason, Protocol string
	Side                      side
	Rule                      events.Rule // the zero value = no policy selects an end
}

// Workload is one end in a roll-up; the zero value = no pod.
type Workload struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"` // "Deployment web"; empty = the record does not say
}

// pair is the key of the finest roll-up. Its numbers are positions in rollup's tables.
type pair struct {
	From, To, Outcome int32
	Port              uint16 // of the destination
}

// spaces are the namespaces of the two ends; empty = no pod.
type spaces struct {
	From, To, Verdict string
	Side              side
}

// rollup is what the records of a part say together.
type rollup struct {
	workloads []Workload
	outcomes  []outcome
	byOutcome []Sum // of outcomes
	pairs     map[pair]Sum
	spaces    map[spaces]Sum
}

// rollUp sums rows.
func rollUp(rows iter.Seq[*table.Row], t *table.Tables) *rollup {
	u := &rollup{pairs: map[pair]Sum{}, spaces: map[spaces]Sum{}}
	workload := make([]int32, len(t.Peers)) // of peers
	seen := map[Workload]int32{}
	for i := range t.Peers {
		w := Workload{Namespace: t.Peers[i].Namespace, Name: t.Peers[i].Workload}
		n, have := seen[w]
		if !have {
			n = int32(len(u.workloads))
			seen[w] = n
			u.workloads = append(u.workloads, w)
		}
		workload[i] = n
	}
	type of struct{ what, how int32 }
	decided, known := map[of]int32{}, map[outcome]int32{}
	for r := range rows {
		k := of{r.What, r.How}
		n, have := decided[k]
		if !have {
			o := outcomeOf(&t.Whats[r.What], &t.Hows[r.How])
			if n, have = known[o]; !have {
				n = int32(len(u.outcomes))
				known[o] = n
				u.outcomes, u.byOutcome = append(u.outcomes, o), append(u.byOutcome, Sum{})
			}
			decided[k] = n
		}
		s := Sum{Records: uint64(max(r.Records, 1)), Connections: uint64(connections(r, t)), Packets: r.Sent.Packets + r.Received.Packets, Bytes: r.Sent.Bytes + r.Received.Bytes}
		u.byOutcome[n].add(s)
		at := pair{From: workload[r.From], To: workload[r.To], Outcome: n, Port: r.Dport}
		s.add(u.pairs[at])
		u.pairs[at] = s
	}
	for at, s := range u.pairs {
		o := &u.outcomes[at.Outcome]
		k := spaces{From: u.workloads[at.From].Namespace, To: u.workloads[at.To].Namespace, Verdict: o.Verdict, Side: o.Side}
		s.add(u.spaces[k])
		u.spaces[k] = s
	}
	return u
}

// connections is how many ended with a record, or were denied or dropped.
func connections(r *table.Row, t *table.Tables) uint32 {
	switch {
	case r.Records > 0:
		return r.Connections
	case t.Hows[r.How].Ended != "" || t.Whats[r.What].Verdict != flows.Allowed:
		return 1
	}
	return 0
}

func outcomeOf(w *table.What, h *table.How) outcome {
	o := outcome{Verdict: w.Verdict, Reason: w.Reason, Protocol: h.Protocol, Side: sideOf(w.Ingress, w.Egress)}
	if w.Rule != nil {
		o.Rule = *w.Rule
	}
	return o
}

func sideOf(ingress, egress *events.End) side {
	switch {
	case ingress != nil:
		return sideDestination
	case egress != nil:
		return sideSource
	}
	return sideNone
}
