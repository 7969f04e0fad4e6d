// SPDX-License-Identifier: Apache-2.0

// Package table has records of flows as rows of numbers, which refer to tables of what records have
// in common: the peers, what was decided, how a connection went. So they are small in memory, on a
// disk (package flowstore) and in messages (package wire).
package table

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
)

// NoStart is row.Lasted of a record without a start.
const NoStart = math.MinInt64

// AgainMost bounds Row.SentAgain and Row.ReceivedAgain.
const AgainMost = math.MaxInt32

// AddAgain is the sum of two of Row.SentAgain or of Row.ReceivedAgain.
func AddAgain(a, b uint32) uint32 {
	if a == 0 || b == 0 {
		return a + b
	}
	return uint32(min(uint64(a)+uint64(b)-1, AgainMost))
}

// Values of Row.At: the record's node is that of an end, or that of the table, from AtOther on.
const (
	AtSource int32 = iota
	AtDestination
	AtOther
)

// Row is a record. What it has in common with others is in Tables, of which it has the numbers.
type Row struct {
	End          int64 // milliseconds since 1970
	Lasted       int64 // milliseconds from the start of the connection to End; NoStart
	Sent         flows.Counters
	Received     flows.Counters
	Source       [16]byte // the address of an end that is no pod; zeroes = the peer has it
	Destination  [16]byte
	From, To     int32 // Tables.Peers
	What         int32 // Tables.Whats
	How          int32 // Tables.Hows
	At           int32
	Sport, Dport uint16
	Handshake    uint32 // microseconds; 0 = not known
	// SentAgain and ReceivedAgain are flows.Flow.Retransmitted, each and 1; 0 = not counted.
	SentAgain, ReceivedAgain uint32
	// Records is of how many records it is the sum, with so many Connections that ended; 0 = it is
	// one.
	Records, Connections uint32
}

// What is what was decided about a connection.
type What struct {
	Verdict, Reason, Service, Asked string
	Egress, Ingress                 *events.End
	Rule                            *events.Rule
}

// How is how a connection went in an interval.
type How struct {
	Ended, Protocol, ICMP, Path, Return, TCPFlags string
	HandedOn, DSR, SNAT                           bool
}

// Tables are what rows refer to. A pod's peer has its address, other peers have none, and no peer
// has a port.
type Tables struct {
	Peers []flows.Peer
	Whats []What
	Hows  []How
	Nodes []string
}

// Numbers gives what Tables have their numbers, while rows are added. It is for one goroutine.
type Numbers struct {
	Tables
	peer  map[string]int32
	what  map[string]int32
	how   map[How]int32
	node  map[string]int32
	key   []byte
	names []string // of labels, to sort them
	Bytes int      // of what is in the tables, about
}

// NewNumbers returns Numbers with empty tables.
func NewNumbers() *Numbers {
	return &Numbers{peer: map[string]int32{}, what: map[string]int32{}, how: map[How]int32{}, node: map[string]int32{}}
}

// Add makes a row of a record, and adds to the tables what they do not have.
func (n *Numbers) Add(f *flows.Flow) Row {
	r := Row{
		End: f.End.UnixMilli(), Lasted: NoStart, Sent: f.Sent, Received: f.Received, Sport: f.Source.Port, Dport: f.Destination.Port,
		Records: f.Records, Connections: f.Connections, Handshake: f.Handshake, From: n.Peer(&f.Source), To: n.Peer(&f.Destination),
		What: n.What(&What{Verdict: f.Verdict, Reason: f.Reason, Service: f.Service, Asked: f.Asked, Egress: f.Egress, Ingress: f.Ingress, Rule: f.Rule}),
		How:  n.How(How{Ended: f.Ended, Protocol: f.Protocol, ICMP: f.ICMP, Path: f.Path, Return: f.Return, TCPFlags: f.TCPFlags, HandedOn: f.HandedOn, DSR: f.DSR, SNAT: f.SNAT}),
	}
	if again := f.Retransmitted; again != nil {
		r.SentAgain, r.ReceivedAgain = uint32(min(again.Sent, AgainMost-1))+1, uint32(min(again.Received, AgainMost-1))+1
	}
	if !f.Start.IsZero() {
		r.Lasted = r.End - f.Start.UnixMilli()
	}
	if f.Source.Pod == "" {
		r.Source = As16(f.Source.Address)
	}
	if f.Destination.Pod == "" {
		r.Destination = As16(f.Destination.Address)
	}
	n.SetNode(&r, f.Node)
	return r
}

// SetNode makes a row of Numbers one of a node.
func (n *Numbers) SetNode(r *Row, node string) {
	switch node {
	case n.Peers[r.From].Node:
		r.At = AtSource
	case n.Peers[r.To].Node:
		r.At = AtDestination
	default:
		r.At = AtOther + n.nodeOf(node)
	}
}

// Translation gives rows of other tables the numbers of Numbers.
type Translation struct{ peers, whats, hows, nodes []int32 }

// Merge adds what other tables have. how changes what is the same then, where it is not nil.
func (n *Numbers) Merge(t *Tables, how func(*How)) *Translation {
	x := &Translation{}
	for i := range t.Peers {
		x.peers = append(x.peers, n.Peer(&t.Peers[i]))
	}
	for i := range t.Whats {
		x.whats = append(x.whats, n.What(&t.Whats[i]))
	}
	for _, h := range t.Hows {
		if how != nil {
			how(&h)
		}
		x.hows = append(x.hows, n.How(h))
	}
	for _, name := range t.Nodes {
		x.nodes = append(x.nodes, n.nodeOf(name))
	}
	return x
}

// Translate changes the numbers of a row.
func (x *Translation) Translate(r *Row) {
	r.From, r.To, r.What, r.How = x.peers[r.From], x.peers[r.To], x.whats[r.What], x.hows[r.How]
	if r.At >= AtOther {
		r.At = AtOther + x.nodes[r.At-AtOther]
	}
}

func (n *Numbers) nodeOf(name string) int32 {
	i, have := n.node[name]
	if !have {
		i = int32(len(n.Nodes))
		n.node[name] = i
		n.Bytes += 2*len(name) + 64
		n.Nodes = append(n.Nodes, name)
	}
	return i
}

// As16 is an address as a Row has it; zeroes for none. "::" is not told from none.
func As16(a netip.Addr) [16]byte {
	if !a.IsValid() {
		return [16]byte{}
	}
	return a.As16()
}

// AddrOf is the address that As16 was given. One without a zone is as it was; of IPv4 in IPv6 there
// are none among packets' addresses.
func AddrOf(a [16]byte) netip.Addr {
	if a == ([16]byte{}) {
		return netip.Addr{}
	}
	return netip.AddrFrom16(a).Unmap()
}

func appendText(b []byte, texts ...string) []byte {
	for _, t := range texts {
		b = binary.AppendUvarint(b, uint64(len(t)))
		b = append(b, t...)
	}
	return b
}

// Peer is the number of a peer.
func (n *Numbers) Peer(p *flows.Peer) int32 {
	b := appendText(n.key[:0], p.Namespace, p.Workload, p.Pod, p.Node)
	if p.Pod != "" {
		a := As16(p.Address)
		b = append(b, a[:]...)
	}
	if len(p.Labels) > 0 {
		n.names = slices.AppendSeq(n.names[:0], maps.Keys(p.Labels))
		slices.Sort(n.names)
		for _, name := range n.names {
			b = appendText(b, name, p.Labels[name])
		}
	}
	n.key = b
	i, have := n.peer[string(b)]
	if !have {
		i = int32(len(n.Peers))
		n.peer[string(b)] = i
		n.Bytes += 2*len(b) + 256
		own := *p
		own.Port = 0
		if own.Pod == "" {
			own.Address = netip.Addr{}
		}
		n.Peers = append(n.Peers, own)
	}
	return i
}

func appendRule(b []byte, r *events.Rule) []byte {
	if r == nil {
		return append(b, 0)
	}
	return appendText(append(b, 1), r.Kind, r.Name, r.Tier, r.Detail)
}

func appendEnd(b []byte, e *events.End) []byte {
	if e == nil {
		return append(b, 0)
	}
	b = appendText(appendRule(append(b, 1), e.Rule), e.Domain, e.Name)
	if e.Staged == nil {
		return append(b, 0)
	}
	return appendRule(appendText(append(b, 1), e.Staged.Verdict), e.Staged.Rule)
}

// What is the number of what was decided.
func (n *Numbers) What(w *What) int32 {
	b := appendText(n.key[:0], w.Verdict, w.Reason, w.Service, w.Asked)
	b = appendRule(appendEnd(appendEnd(b, w.Egress), w.Ingress), w.Rule)
	n.key = b
	i, have := n.what[string(b)]
	if !have {
		i = int32(len(n.Whats))
		n.what[string(b)] = i
		n.Bytes += 2*len(b) + 512
		n.Whats = append(n.Whats, *w)
	}
	return i
}

// How is the number of how a connection went.
func (n *Numbers) How(h How) int32 {
	i, have := n.how[h]
	if !have {
		i = int32(len(n.Hows))
		n.how[h] = i
		n.Bytes += 512
		n.Hows = append(n.Hows, h)
	}
	return i
}

// Flow makes the record of a row. Records share what the tables have.
func (t *Tables) Flow(r *Row) *flows.Flow {
	w, h := &t.Whats[r.What], &t.Hows[r.How]
	f := &flows.Flow{
		End: time.UnixMilli(r.End).UTC(), Verdict: w.Verdict, Reason: w.Reason, Service: w.Service, Asked: w.Asked, Egress: w.Egress, Ingress: w.Ingress, Rule: w.Rule,
		Ended: h.Ended, Protocol: h.Protocol, ICMP: h.ICMP, Path: h.Path, Return: h.Return, TCPFlags: h.TCPFlags, HandedOn: h.HandedOn, DSR: h.DSR, SNAT: h.SNAT,
		Source: t.Peers[r.From], Destination: t.Peers[r.To], Sent: r.Sent, Received: r.Received,
		Records: r.Records, Connections: r.Connections, Handshake: r.Handshake,
	}
	if r.SentAgain > 0 || r.ReceivedAgain > 0 {
		f.Retransmitted = &flows.Retransmitted{Sent: uint64(max(r.SentAgain, 1) - 1), Received: uint64(max(r.ReceivedAgain, 1) - 1)}
	}
	if r.Lasted != NoStart {
		f.Start = time.UnixMilli(r.End - r.Lasted).UTC()
	}
	f.Source.Port, f.Destination.Port = r.Sport, r.Dport
	if f.Source.Pod == "" {
		f.Source.Address = AddrOf(r.Source)
	}
	if f.Destination.Pod == "" {
		f.Destination.Address = AddrOf(r.Destination)
	}
	switch r.At {
	case AtSource:
		f.Node = f.Source.Node
	case AtDestination:
		f.Node = f.Destination.Node
	default:
		f.Node = t.Nodes[r.At-AtOther]
	}
	return f
}

// Ordered returns the order of peers that makes files small: pods of a workload have numbers next
// to each other. at[i] is the new number of peer i.
func Ordered(peers []flows.Peer) (sorted []flows.Peer, at []int32) {
	order := make([]int32, len(peers))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int {
		a, b := &peers[i], &peers[j]
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Pod, b.Pod), a.Address.Compare(b.Address), cmp.Compare(i, j))
	})
	sorted, at = make([]flows.Peer, len(peers)), make([]int32, len(peers))
	for to, from := range order {
		sorted[to], at[from] = peers[from], int32(to)
	}
	return sorted, at
}

// Size is about how many bytes a record's texts have.
func Size(f *flows.Flow) (n int) {
	for _, t := range []string{f.Node, f.Verdict, f.Reason, f.Ended, f.Protocol, f.ICMP, f.Service, f.Asked, f.Path, f.Return, f.TCPFlags} {
		n += len(t)
	}
	for _, p := range []*flows.Peer{&f.Source, &f.Destination} {
		n += len(p.Namespace) + len(p.Pod) + len(p.Workload) + len(p.Node) + len(p.Address.Zone())
		for k, v := range p.Labels {
			n += len(k) + len(v)
		}
	}
	rule := func(r *events.Rule) {
		if r != nil {
			n += len(r.Kind) + len(r.Name) + len(r.Tier) + len(r.Detail)
		}
	}
	rule(f.Rule)
	for _, e := range []*events.End{f.Egress, f.Ingress} {
		if e == nil {
			continue
		}
		rule(e.Rule)
		n += len(e.Domain) + len(e.Name)
		if e.Staged != nil {
			n += len(e.Staged.Verdict)
			rule(e.Staged.Rule)
		}
	}
	return n
}
