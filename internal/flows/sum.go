// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/events"
)

// Aggregation says which records of an interval become one: the kinds of FelixConfiguration
// spec.flowLogsFileAggregationKindForAllowed that this package knows.
type Aggregation uint8

const (
	// AggregateNothing keeps a record a connection.
	AggregateNothing Aggregation = iota
	// AggregateSourcePorts keeps a record of all allowed connections that differ in their source
	// ports alone.
	AggregateSourcePorts
)

// sumKey is what connections have in common that become one record.
type sumKey struct {
	source, destination peerKey
	protocol, icmp      string
	port                uint16
	service, asked      string
	egress, ingress     endKey
	path, returnPath    string
	handedOn, dsr, snat bool
	retransmitted       bool // is counted
}

type peerKey struct {
	address        netip.Addr
	namespace, pod string
}

// endKey is an events.End by value.
type endKey struct {
	known, staged    bool
	rule, stagedRule events.Rule
	verdict          string
	domain, name     string
}

func keyOf(f *Flow) sumKey {
	return sumKey{
		source: peerKeyOf(&f.Source), destination: peerKeyOf(&f.Destination), protocol: f.Protocol, icmp: f.ICMP, port: f.Destination.Port,
		service: f.Service, asked: f.Asked, egress: endKeyOf(f.Egress), ingress: endKeyOf(f.Ingress),
		path: f.Path, returnPath: f.Return, handedOn: f.HandedOn, dsr: f.DSR, snat: f.SNAT, retransmitted: f.Retransmitted != nil,
	}
}

func peerKeyOf(p *Peer) peerKey {
	return peerKey{address: p.Address, namespace: p.Namespace, pod: p.Pod}
}

func endKeyOf(e *events.End) (k endKey) {
	if e == nil {
		return k
	}
	k.known, k.domain, k.name = true, e.Domain, e.Name
	if e.Rule != nil {
		k.rule = *e.Rule
	}
	if e.Staged != nil {
		k.staged, k.verdict = true, e.Staged.Verdict
		if e.Staged.Rule != nil {
			k.stagedRule = *e.Staged.Rule
		}
	}
	return k
}

// summed are the records of an interval by the aggregation: as they are, or sums of those that were
// allowed. What is denied or dropped has one record for all source ports in any case.
func summed(open map[key]*Flow, by Aggregation) []*Flow {
	if by == AggregateNothing {
		return slices.Collect(maps.Values(open))
	}
	out := make([]*Flow, 0, len(open))
	sums := map[sumKey]*Flow{}
	for _, f := range open {
		if f.Verdict != Allowed {
			out = append(out, f)
			continue
		}
		k := keyOf(f)
		sum := sums[k]
		if sum == nil {
			sum = f
			sums[k] = sum
			out = append(out, sum)
		} else {
			sum.merge(f)
		}
		sum.Records++
		if f.Ended != "" {
			sum.Connections++
		}
		sum.Source.Port, sum.TCPFlags, sum.Ended = 0, "", ""
	}
	return out
}

// merge adds what another record with the same sumKey says.
func (f *Flow) merge(o *Flow) {
	if o.Start.Before(f.Start) {
		f.Start = o.Start
	}
	if o.End.After(f.End) {
		f.End = o.End
	}
	f.Sent.add(o.Sent.Packets, o.Sent.Bytes)
	f.Received.add(o.Received.Packets, o.Received.Bytes)
	f.Handshake = max(f.Handshake, o.Handshake)
	if o.Retransmitted != nil {
		f.Retransmitted.Sent += o.Retransmitted.Sent
		f.Retransmitted.Received += o.Retransmitted.Received
	}
}
