// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"

	"google.golang.org/protobuf/proto"

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
	b.Handshake = append(b.Handshake, r.Handshake)
	b.SentAgain, b.ReceivedAgain = append(b.SentAgain, r.SentAgain), append(b.ReceivedAgain, r.ReceivedAgain)
	if r.Records > 0 && b.Records == nil { // those before are no sums
		b.Records, b.Connections = make([]uint32, len(b.End)-1), make([]uint32, len(b.End)-1)
	}
	if b.Records != nil {
		b.Records, b.Connections = append(b.Records, r.Records), append(b.Connections, r.Connections)
	}
}

// encoding has the same bytes for the same entry of a table: readers know entries by them.
var encoding = proto.MarshalOptions{Deterministic: true}

// setTables adds what records refer to.
func (b *Batch) setTables(t *table.Tables) (err error) {
	put := func(to *[][]byte, m proto.Message) {
		text, failed := encoding.Marshal(m)
		*to, err = append(*to, text), cmp.Or(err, failed)
	}
	for i := range t.Peers {
		p := &t.Peers[i]
		put(&b.Peers, &Peer{Namespace: p.Namespace, Pod: p.Pod, Workload: p.Workload, Node: p.Node, Address: bytesOf(p.Address), Labels: p.Labels})
	}
	for i := range t.Whats {
		w := &t.Whats[i]
		put(&b.Whats, &What{Verdict: w.Verdict, Reason: w.Reason, Service: w.Service, Asked: w.Asked, Egress: putEnd(w.Egress), Ingress: putEnd(w.Ingress), Rule: putRule(w.Rule)})
	}
	for i := range t.Hows {
		h := &t.Hows[i]
		put(&b.Hows, &How{Ended: h.Ended, Protocol: h.Protocol, Icmp: h.ICMP, Path: h.Path, Return: h.Return, TcpFlags: h.TCPFlags, HandedOn: h.HandedOn, Dsr: h.DSR, Snat: h.SNAT})
	}
	b.Nodes = t.Nodes
	return err
}

func getPeer(message []byte) (out flows.Peer, err error) {
	p := &Peer{}
	if err := proto.Unmarshal(message, p); err != nil {
		return out, fmt.Errorf("%w: %w", errBatch, err)
	}
	out = flows.Peer{Namespace: p.GetNamespace(), Pod: p.GetPod(), Workload: p.GetWorkload(), Node: p.GetNode()}
	if len(p.GetLabels()) > 0 {
		out.Labels = p.GetLabels()
	}
	out.Address, err = addrOf(p.GetAddress())
	return out, err
}

func getWhat(message []byte) (out table.What, err error) {
	w := &What{}
	if err := proto.Unmarshal(message, w); err != nil {
		return out, fmt.Errorf("%w: %w", errBatch, err)
	}
	return table.What{Verdict: w.GetVerdict(), Reason: w.GetReason(), Service: w.GetService(), Asked: w.GetAsked(),
		Egress: getEnd(w.GetEgress()), Ingress: getEnd(w.GetIngress()), Rule: getRule(w.GetRule())}, nil
}

func getHow(message []byte) (out table.How, err error) {
	h := &How{}
	if err := proto.Unmarshal(message, h); err != nil {
		return out, fmt.Errorf("%w: %w", errBatch, err)
	}
	return table.How{Ended: h.GetEnded(), Protocol: h.GetProtocol(), ICMP: h.GetIcmp(), Path: h.GetPath(), Return: h.GetReturn(), TCPFlags: h.GetTcpFlags(),
		HandedOn: h.GetHandedOn(), DSR: h.GetDsr(), SNAT: h.GetSnat()}, nil
}

// row i, or what is wrong with it.
func (b *Batch) row(i int) (table.Row, error) {
	r := table.Row{
		End: b.End[i], Lasted: b.Lasted[i], From: b.From[i], To: b.To[i], What: b.What[i], How: b.How[i], At: b.At[i], Sport: uint16(b.Sport[i]), Dport: uint16(b.Dport[i]),
		Sent: flows.Counters{Packets: b.SentPackets[i], Bytes: b.SentBytes[i]}, Received: flows.Counters{Packets: b.ReceivedPackets[i], Bytes: b.ReceivedBytes[i]},
	}
	if b.Handshake != nil {
		r.Handshake = min(b.Handshake[i], math.MaxInt32)
	}
	if b.SentAgain != nil && b.ReceivedAgain != nil {
		r.SentAgain, r.ReceivedAgain = min(b.SentAgain[i], table.AgainMost), min(b.ReceivedAgain[i], table.AgainMost)
	}
	if b.Records != nil && b.Connections != nil {
		r.Records, r.Connections = b.Records[i], min(b.Connections[i], b.Records[i])
	}
	in := func(n int32, of int) bool { return n >= 0 && int(n) < of }
	if !in(r.From, len(b.Peers)) || !in(r.To, len(b.Peers)) || !in(r.What, len(b.Whats)) || !in(r.How, len(b.Hows)) || !in(r.At, int(table.AtOther)+len(b.Nodes)) ||
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
	out := &End{Rule: putRule(e.Rule), Domain: e.Domain, Name: e.Name}
	if e.Staged != nil {
		out.Staged = &Staged{Verdict: e.Staged.Verdict, Rule: putRule(e.Staged.Rule)}
	}
	return out
}

func getEnd(e *End) *events.End {
	if e == nil {
		return nil
	}
	out := &events.End{Rule: getRule(e.GetRule()), Domain: e.GetDomain(), Name: e.GetName()}
	if s := e.GetStaged(); s != nil {
		out.Staged = &events.Staged{Verdict: s.GetVerdict(), Rule: getRule(s.GetRule())}
	}
	return out
}
