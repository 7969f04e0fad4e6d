// SPDX-License-Identifier: Apache-2.0

package flowstore

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

// noStart is row.Lasted of a record without a start.
const noStart = math.MinInt64

// Values of row.At: the record's node is that of an end, or that of the table, from atOther on.
const (
	atSource int32 = iota
	atDestination
	atOther
)

// row is a record. What it has in common with others is in tables, of which it has the numbers.
type row struct {
	End          int64 // milliseconds since 1970
	Lasted       int64 // milliseconds from the start of the connection to End; noStart
	Sent         flows.Counters
	Received     flows.Counters
	Source       [16]byte // the address of an end that is no pod; zeroes = the peer has it
	Destination  [16]byte
	From, To     int32 // tables.peers
	What         int32 // tables.whats
	How          int32 // tables.hows
	At           int32
	Sport, Dport uint16
}

// what is decided about a connection.
type what struct {
	Verdict, Reason, Service, Asked string
	Egress, Ingress                 *events.End
	Rule                            *events.Rule
}

// how a connection went in an interval.
type how struct {
	Ended, Protocol, ICMP, Path, Return, TCPFlags string
	HandedOn, DSR, SNAT                           bool
}

// tables are what rows refer to. A pod's peer has its address, other peers have none, and no peer
// has a port.
type tables struct {
	peers []flows.Peer
	whats []what
	hows  []how
	nodes []string
}

// numbers gives what tables have their numbers, while rows are added.
type numbers struct {
	tables
	peer  map[string]int32
	what  map[string]int32
	how   map[how]int32
	node  map[string]int32
	key   []byte
	names []string // of labels, to sort them
	bytes int      // of what is in the tables, about
}

func newNumbers() *numbers {
	return &numbers{peer: map[string]int32{}, what: map[string]int32{}, how: map[how]int32{}, node: map[string]int32{}}
}

// add makes a row of a record, and adds to the tables what they do not have.
func (n *numbers) add(f *flows.Flow) row {
	r := row{
		End: f.End.UnixMilli(), Lasted: noStart, Sent: f.Sent, Received: f.Received, Sport: f.Source.Port, Dport: f.Destination.Port,
		From: n.peerOf(&f.Source), To: n.peerOf(&f.Destination), What: n.whatOf(f), How: n.howOf(f),
	}
	if !f.Start.IsZero() {
		r.Lasted = r.End - f.Start.UnixMilli()
	}
	if f.Source.Pod == "" {
		r.Source = as16(f.Source.Address)
	}
	if f.Destination.Pod == "" {
		r.Destination = as16(f.Destination.Address)
	}
	switch f.Node {
	case f.Source.Node:
		r.At = atSource
	case f.Destination.Node:
		r.At = atDestination
	default:
		i, have := n.node[f.Node]
		if !have {
			i = int32(len(n.nodes))
			n.node[f.Node] = i
			n.nodes = append(n.nodes, f.Node)
		}
		r.At = atOther + i
	}
	return r
}

// as16 is an address as a row has it; zeroes for none. "::" is not told from none.
func as16(a netip.Addr) [16]byte {
	if !a.IsValid() {
		return [16]byte{}
	}
	return a.As16()
}

// addrOf is the address that as16 was given. One without a zone is as it was; of IPv4 in IPv6 there
// are none among packets' addresses.
func addrOf(a [16]byte) netip.Addr {
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

func (n *numbers) peerOf(p *flows.Peer) int32 {
	b := appendText(n.key[:0], p.Namespace, p.Workload, p.Pod, p.Node)
	if p.Pod != "" {
		a := as16(p.Address)
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
		i = int32(len(n.peers))
		n.peer[string(b)] = i
		n.bytes += 2*len(b) + 256
		own := *p
		own.Port = 0
		if own.Pod == "" {
			own.Address = netip.Addr{}
		}
		n.peers = append(n.peers, own)
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
	b = appendRule(append(b, 1), e.Rule)
	if e.Staged == nil {
		return append(b, 0)
	}
	return appendRule(appendText(append(b, 1), e.Staged.Verdict), e.Staged.Rule)
}

func (n *numbers) whatOf(f *flows.Flow) int32 {
	b := appendText(n.key[:0], f.Verdict, f.Reason, f.Service, f.Asked)
	b = appendRule(appendEnd(appendEnd(b, f.Egress), f.Ingress), f.Rule)
	n.key = b
	i, have := n.what[string(b)]
	if !have {
		i = int32(len(n.whats))
		n.what[string(b)] = i
		n.bytes += 2*len(b) + 512
		n.whats = append(n.whats, what{Verdict: f.Verdict, Reason: f.Reason, Service: f.Service, Asked: f.Asked, Egress: f.Egress, Ingress: f.Ingress, Rule: f.Rule})
	}
	return i
}

func (n *numbers) howOf(f *flows.Flow) int32 {
	h := how{Ended: f.Ended, Protocol: f.Protocol, ICMP: f.ICMP, Path: f.Path, Return: f.Return, TCPFlags: f.TCPFlags, HandedOn: f.HandedOn, DSR: f.DSR, SNAT: f.SNAT}
	i, have := n.how[h]
	if !have {
		i = int32(len(n.hows))
		n.how[h] = i
		n.bytes += 512
		n.hows = append(n.hows, h)
	}
	return i
}

// flow makes the record of a row. Records share what the tables have.
func (t *tables) flow(r *row) *flows.Flow {
	w, h := &t.whats[r.What], &t.hows[r.How]
	f := &flows.Flow{
		End: time.UnixMilli(r.End).UTC(), Verdict: w.Verdict, Reason: w.Reason, Service: w.Service, Asked: w.Asked, Egress: w.Egress, Ingress: w.Ingress, Rule: w.Rule,
		Ended: h.Ended, Protocol: h.Protocol, ICMP: h.ICMP, Path: h.Path, Return: h.Return, TCPFlags: h.TCPFlags, HandedOn: h.HandedOn, DSR: h.DSR, SNAT: h.SNAT,
		Source: t.peers[r.From], Destination: t.peers[r.To], Sent: r.Sent, Received: r.Received,
	}
	if r.Lasted != noStart {
		f.Start = time.UnixMilli(r.End - r.Lasted).UTC()
	}
	f.Source.Port, f.Destination.Port = r.Sport, r.Dport
	if f.Source.Pod == "" {
		f.Source.Address = addrOf(r.Source)
	}
	if f.Destination.Pod == "" {
		f.Destination.Address = addrOf(r.Destination)
	}
	switch r.At {
	case atSource:
		f.Node = f.Source.Node
	case atDestination:
		f.Node = f.Destination.Node
	default:
		f.Node = t.nodes[r.At-atOther]
	}
	return f
}

// ordered returns the order of peers that makes files small: pods of a workload have numbers next
// to each other. at[i] is the new number of peer i.
func ordered(peers []flows.Peer) (sorted []flows.Peer, at []int32) {
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

// size is about how many bytes a record's texts have.
func size(f *flows.Flow) (n int) {
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
		if e.Staged != nil {
			n += len(e.Staged.Verdict)
			rule(e.Staged.Rule)
		}
	}
	return n
}
