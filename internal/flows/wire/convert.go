// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/table"
)

// add adds a record.
func (b *Batch) add(r *table.Row) {
	b.End, b.Lasted = append(b.End, r.End), append(b.Lasted, r.Lasted)
	b.From, b.To = append(b.From, r.From), append(b.To, r.To)
	b.What, b.How, b.At = append(b.What, r.What), append(b.How, r.How), append(b.At, r.At)
	b.Sport, b.Dport = append(b.Sport, uint32(r.Sport)), append(b.Dport, uint32(r.Dport))
	b.Source, b.Destination = append(b.Source, bytesOf(table.AddrOf(r.Source))), append(b.Destination, bytesOf(table.AddrOf(r.Destination)))
	b.SentPackets, b.SentBytes = append(b.SentPackets, r.Sent.Packets), append(b.SentBytes, r.Sent.Bytes)
	b.ReceivedPackets, b.ReceivedBytes = append(b.ReceivedPackets, r.Received.Packets), append(b.ReceivedBytes, r.Received.Bytes)
}

// setTables adds what records refer to.
func (b *Batch) setTables(t *table.Tables) {
	for i := range t.Peers {
		p := &t.Peers[i]
		b.Peers = append(b.Peers, &Peer{Namespace: p.Namespace, Pod: p.Pod, Workload: p.Workload, Node: p.Node, Address: bytesOf(p.Address), Labels: p.Labels})
	}
	for i := range t.Whats {
		w := &t.Whats[i]
		b.Whats = append(b.Whats, &What{Verdict: w.Verdict, Reason: w.Reason, Service: w.Service, Asked: w.Asked, Egress: putEnd(w.Egress), Ingress: putEnd(w.Ingress), Rule: putRule(w.Rule)})
	}
	for i := range t.Hows {
		h := &t.Hows[i]
		b.Hows = append(b.Hows, &How{Ended: h.Ended, Protocol: h.Protocol, Icmp: h.ICMP, Path: h.Path, Return: h.Return, TcpFlags: h.TCPFlags, HandedOn: h.HandedOn, Dsr: h.DSR, Snat: h.SNAT})
	}
	b.Nodes = t.Nodes
}

// Flows returns the records. They share what they refer to; who says so makes their node another:
// what a batch says of that is a node's word.
func (b *Batch) Flows(node string) ([]*flows.Flow, error) {
	n := len(b.End)
	if n > MostRecords {
		return nil, fmt.Errorf("%w: it has %d records", errBatch, n)
	}
	for _, column := range []int{len(b.Lasted), len(b.From), len(b.To), len(b.What), len(b.How), len(b.At), len(b.Sport), len(b.Dport), len(b.Source), len(b.Destination),
		len(b.SentPackets), len(b.SentBytes), len(b.ReceivedPackets), len(b.ReceivedBytes)} {
		if column != n {
			return nil, fmt.Errorf("%w: a column has %d entries of %d", errBatch, column, n)
		}
	}
	t, err := b.tables()
	if err != nil {
		return nil, err
	}
	out := make([]*flows.Flow, n)
	for i := range out {
		r, err := b.row(i, t)
		if err != nil {
			return nil, err
		}
		out[i] = t.Flow(&r)
		out[i].Node = node
	}
	return out, nil
}

func (b *Batch) tables() (*table.Tables, error) {
	t := &table.Tables{Nodes: b.Nodes}
	for _, p := range b.Peers {
		a, err := addrOf(p.GetAddress())
		if err != nil {
			return nil, err
		}
		labels := p.GetLabels()
		if len(labels) == 0 {
			labels = nil
		}
		t.Peers = append(t.Peers, flows.Peer{Namespace: p.GetNamespace(), Pod: p.GetPod(), Workload: p.GetWorkload(), Node: p.GetNode(), Address: a, Labels: labels})
	}
	for _, w := range b.Whats {
		t.Whats = append(t.Whats, table.What{Verdict: w.GetVerdict(), Reason: w.GetReason(), Service: w.GetService(), Asked: w.GetAsked(),
			Egress: getEnd(w.GetEgress()), Ingress: getEnd(w.GetIngress()), Rule: getRule(w.GetRule())})
	}
	for _, h := range b.Hows {
		t.Hows = append(t.Hows, table.How{Ended: h.GetEnded(), Protocol: h.GetProtocol(), ICMP: h.GetIcmp(), Path: h.GetPath(), Return: h.GetReturn(), TCPFlags: h.GetTcpFlags(),
			HandedOn: h.GetHandedOn(), DSR: h.GetDsr(), SNAT: h.GetSnat()})
	}
	return t, nil
}

// row i, or what is wrong with it.
func (b *Batch) row(i int, t *table.Tables) (table.Row, error) {
	r := table.Row{
		End: b.End[i], Lasted: b.Lasted[i], From: b.From[i], To: b.To[i], What: b.What[i], How: b.How[i], At: b.At[i], Sport: uint16(b.Sport[i]), Dport: uint16(b.Dport[i]),
		Sent: flows.Counters{Packets: b.SentPackets[i], Bytes: b.SentBytes[i]}, Received: flows.Counters{Packets: b.ReceivedPackets[i], Bytes: b.ReceivedBytes[i]},
	}
	in := func(n int32, of int) bool { return n >= 0 && int(n) < of }
	if !in(r.From, len(t.Peers)) || !in(r.To, len(t.Peers)) || !in(r.What, len(t.Whats)) || !in(r.How, len(t.Hows)) || !in(r.At, int(table.AtOther)+len(t.Nodes)) ||
		b.Sport[i] > math.MaxUint16 || b.Dport[i] > math.MaxUint16 {
		return r, fmt.Errorf("%w: a record refers to what is not there", errBatch)
	}
	source, err := addrOf(b.Source[i])
	if err != nil {
		return r, err
	}
	destination, err := addrOf(b.Destination[i])
	r.Source, r.Destination = table.As16(source), table.As16(destination)
	return r, err
}

// bytesOf is an address, nil where there is none.
func bytesOf(a netip.Addr) []byte { return a.AsSlice() }

func addrOf(b []byte) (netip.Addr, error) {
	if len(b) == 0 {
		return netip.Addr{}, nil
	}
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return a, fmt.Errorf("%w: an address has %d bytes", errBatch, len(b))
	}
	return a.Unmap(), nil
}

func putRule(r *events.Rule) *Rule {
	if r == nil {
		return nil
	}
	return &Rule{Kind: r.Kind, Name: r.Name, Tier: r.Tier, Detail: r.Detail}
}

func getRule(r *Rule) *events.Rule {
	if r == nil {
		return nil
	}
	return &events.Rule{Kind: r.GetKind(), Name: r.GetName(), Tier: r.GetTier(), Detail: r.GetDetail()}
}

func putEnd(e *events.End) *End {
	if e == nil {
		return nil
	}
	out := &End{Rule: putRule(e.Rule), Domain: e.Domain}
	if e.Staged != nil {
		out.Staged = &Staged{Verdict: e.Staged.Verdict, Rule: putRule(e.Staged.Rule)}
	}
	return out
}

func getEnd(e *End) *events.End {
	if e == nil {
		return nil
	}
	out := &events.End{Rule: getRule(e.GetRule()), Domain: e.GetDomain()}
	if s := e.GetStaged(); s != nil {
		out.Staged = &events.Staged{Verdict: s.GetVerdict(), Rule: getRule(s.GetRule())}
	}
	return out
}
