// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"crypto/rand"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/model"
)

// openMost is how many connections one interval may have.
const openMost = 131072

// Namer knows what addresses and numbers mean.
type Namer interface {
	events.Namer
	// Describe returns a pod's labels and the node of an address; empty where they are not known.
	Describe(pod model.Name, a netip.Addr) (labels map[string]string, node string)
}

// Status is how a collector is.
type Status struct {
	Node     string        `json:"node"`
	Interval time.Duration `json:"interval"` // 0 = flows are not accounted for
	Oldest   time.Time     `json:"oldest"`   // End of the oldest record that is kept; zero = there is none
	Kept     int           `json:"kept"`
	// Lost are records that are not kept, by why: old (newer ones took their place), interval (more
	// connections in one interval than fit), ring, expired, events (the data plane reported more
	// than was read).
	Lost map[string]uint64 `json:"lost"`
}

// key is a connection; of what was denied the client's port is 0: each try is the same record.
type key struct {
	src, dst, asked netip.AddrPort
	proto           string // with the message of ICMP
	verdict, reason string
}

// Collector keeps the records of a node. It is safe for concurrent use.
type Collector struct {
	node     string
	boot     string
	interval time.Duration
	most     int // records that are kept
	by       Namer
	// OnHandshake is told once of each connection how long its handshake took, where it is known,
	// with the lock held; set before anything is added. nil = nobody wants to know.
	OnHandshake func(path dataplane.FlowPath, took time.Duration)
	// Aggregation is asked at the end of each interval; set before anything is added. nil =
	// AggregateNothing.
	Aggregation func() Aggregation

	mu          sync.Mutex
	open        map[key]*Flow // of this interval
	ring        []*Flow       // the latest, oldest at next once it is full
	next        int
	old, beyond uint64
	flushed     chan struct{} // closed by the next Flush
}

// New returns a collector that keeps the latest records, most of them. With an interval of 0 it
// keeps nothing.
func New(node string, interval time.Duration, most int, by Namer) *Collector {
	return &Collector{node: node, boot: rand.Text(), interval: interval, most: most, by: by, open: map[key]*Flow{}, flushed: make(chan struct{})}
}

// Boot names this collector among all: records are numbered from its start on.
func (c *Collector) Boot() string { return c.boot }

// Interval is how long a record is about at most.
func (c *Collector) Interval() time.Duration { return c.interval }

// Add takes what a direction of a flow carried.
func (c *Collector) Add(r dataplane.FlowRecord) {
	k := key{src: netip.AddrPortFrom(r.Src, r.Sport), dst: netip.AddrPortFrom(r.ToDst, r.ToDport), asked: netip.AddrPortFrom(r.Dst, r.Dport), proto: r.Proto.String(), verdict: Allowed}
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.open[k]
	if f == nil {
		if f = c.begin(k); f == nil {
			return
		}
		c.describe(f, r)
	}
	if r.Started.Before(f.Start) {
		f.Start = r.Started
	}
	if r.Until.After(f.End) {
		f.End = r.Until
	}
	if r.End != dataplane.FlowGoesOn {
		f.Ended = string(r.End)
	}
	if s := c.by.State(); r.Name != 0 && f.Egress != nil && s != nil {
		f.Egress.Domain = s.Names.Texts[r.Name]
	}
	if r.AskedName != "" && f.Egress != nil {
		f.Egress.Name = r.AskedName
	}
	if r.Reply {
		f.Received.add(r.Packets, r.Bytes)
		f.Return = string(r.Path)
	} else {
		f.Sent.add(r.Packets, r.Bytes)
		f.Path = string(r.Path)
	}
	if r.RetransmittedKnown && r.Proto == model.ProtocolTCP {
		f.retransmitted(r.Reply, r.Retransmitted)
	}
	f.DSR, f.SNAT, f.HandedOn = f.DSR || r.DSR, f.SNAT || r.SNAT, f.HandedOn || r.HandOn
	if r.Proto == model.ProtocolTCP {
		f.TCPFlags = flagNames(f.TCPFlags, r.TCPFlags)
		if r.First && !r.Reply && r.Handshake > 0 && c.OnHandshake != nil {
			c.OnHandshake(r.Path, r.Handshake)
		}
		f.Handshake = uint32(max(int64(f.Handshake), min(r.Handshake.Microseconds(), math.MaxInt32)))
	}
}

func (f *Flow) retransmitted(reply bool, segments uint64) {
	if f.Retransmitted == nil {
		f.Retransmitted = &Retransmitted{}
	}
	if reply {
		f.Retransmitted.Received += segments
	} else {
		f.Retransmitted.Sent += segments
	}
}

// begin makes the record of a connection in this interval; nil = there is no room.
func (c *Collector) begin(k key) *Flow {
	if len(c.open) >= openMost {
		c.beyond++
		return nil
	}
	f := &Flow{Start: time.Now(), Node: c.node, Verdict: k.verdict, Reason: k.reason}
	c.open[k] = f
	return f
}

// describe says what does not change while a connection is open.
func (c *Collector) describe(f *Flow, r dataplane.FlowRecord) {
	s := c.by.State()
	f.Start, f.End, f.Protocol = r.Started, r.Until, r.Proto.String()
	f.Source, f.Destination = c.peer(r.Src, r.Sport), c.peer(r.ToDst, r.ToDport)
	if r.HandOn && r.Backend.IsValid() {
		f.Destination = c.peer(r.Backend.Addr(), r.Backend.Port())
	}
	if r.Proto == model.ProtocolICMP || r.Proto == model.ProtocolICMPv6 {
		f.Source.Port, f.Destination.Port = 0, 0
		f.ICMP = icmpOf(r.Sport, r.Dport)
	}
	f.Service = events.ServiceOf(s, r.Service)
	switch {
	case r.Asked.Addr.IsValid():
		f.Service, f.Asked = events.ServiceOf(s, r.Asked), netip.AddrPortFrom(r.Asked.Addr, r.Asked.Port).String()
	case f.Service != "":
		f.Asked = netip.AddrPortFrom(r.Dst, r.Dport).String()
	}
	f.Egress, f.Ingress = events.EndOf(s, r.Egress), events.EndOf(s, r.Ingress)
	for _, e := range []*events.End{f.Ingress, f.Egress} {
		if e != nil && e.Rule != nil && f.Rule == nil {
			f.Rule = e.Rule
		}
	}
}

// icmpOf is "type/code" of a flow whose ports stand for a message: struct flow_key in
// bpf/abi_flow.h.
func icmpOf(sport, dport uint16) string {
	const oneWay = 0x4000
	if d := dport - sport; d != oneWay {
		return fmt.Sprintf("%d/0", d)
	}
	return fmt.Sprintf("%d/%d", sport>>8, sport&0xff)
}

func (c *Collector) peer(a netip.Addr, port uint16) Peer {
	p := Peer{Address: a, Port: port}
	pod, is := c.by.Pod(a)
	if is {
		p.Namespace, p.Pod = pod.Namespace, pod.Name
	}
	p.Labels, p.Node = c.by.Describe(pod, a)
	p.Workload = WorkloadOf(p.Pod, p.Labels)
	return p
}

// AddEvent takes what was denied or dropped: a packet.
func (c *Collector) AddEvent(e events.Event) {
	if c.interval == 0 {
		return
	}
	k := key{src: netip.AddrPortFrom(e.Source.Address, 0), dst: netip.AddrPortFrom(e.Destination.Address, e.Destination.Port), reason: e.Reason, verdict: Dropped}
	if e.Verdict == Denied {
		k.verdict = Denied
	} else if e.Reason == "" {
		return
	}
	k.proto = e.Protocol + e.ICMP
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.open[k]
	if f == nil {
		if f = c.begin(k); f == nil {
			return
		}
		f.Start, f.Protocol, f.ICMP, f.Service = e.Time, e.Protocol, e.ICMP, e.Service
		f.Source, f.Destination = c.peer(e.Source.Address, e.Source.Port), c.peer(e.Destination.Address, e.Destination.Port)
		f.Egress, f.Ingress, f.Rule = e.Egress, e.Ingress, e.Deciding()
	}
	f.End = e.Time
	f.Sent.add(1, 0)
}

// Flush ends an interval: its records are kept from now on.
func (c *Collector) Flush() {
	by := AggregateNothing
	if c.Aggregation != nil {
		by = c.Aggregation()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range summed(c.open, by) {
		if len(c.ring) < c.most {
			c.ring = append(c.ring, f)
			continue
		}
		c.ring[c.next] = f
		c.next = (c.next + 1) % c.most
		c.old++
	}
	clear(c.open)
	close(c.flushed)
	c.flushed = make(chan struct{})
}

// From returns the records that are kept from number n on, in the order in which intervals ended,
// and the number of the first: above n where newer ones took the place of some. Numbers count from
// 0, from the start of the collector. flushed is closed when there may be more.
func (c *Collector) From(n uint64) (records []*Flow, first uint64, flushed <-chan struct{}) {
	return c.Part(n, c.most)
}

// Part is From for the first of them, most at most.
func (c *Collector) Part(n uint64, most int) (records []*Flow, first uint64, flushed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = min(max(n, c.old), c.old+uint64(len(c.ring)))
	at := int(first - c.old) // from the oldest
	if end := min(len(c.ring), at+most); at < end {
		records = make([]*Flow, 0, end-at)
		for ; at < end; at++ {
			records = append(records, c.ring[(c.next+at)%len(c.ring)])
		}
	}
	return records, first, c.flushed
}

// Most is how many records are kept at most.
func (c *Collector) Most() int { return c.most }

// Each hands on the records that a filter wants, oldest interval first, until give returns false.
func (c *Collector) Each(filter Filter, give func(*Flow) bool) {
	all, _, _ := c.From(0)
	for _, f := range all { // what is kept does not change
		if filter.Wants(f) && !give(f) {
			return
		}
	}
}

// Status says how much is kept, and how much was not. Lost has what the collector itself lost.
func (c *Collector) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{Node: c.node, Interval: c.interval, Kept: len(c.ring), Lost: map[string]uint64{"old": c.old, "interval": c.beyond}}
	if len(c.ring) > 0 {
		s.Oldest = c.ring[c.next].End
	}
	return s
}

// flagNames adds flags of TCP to those that are there.
func flagNames(have string, flags uint8) string {
	for _, f := range []struct {
		bit  uint8
		name string
	}{{2, "SYN"}, {16, "ACK"}, {1, "FIN"}, {4, "RST"}} {
		if flags&f.bit != 0 && !strings.Contains(have, f.name) {
			have = strings.TrimSpace(have + " " + f.name)
		}
	}
	return have
}
