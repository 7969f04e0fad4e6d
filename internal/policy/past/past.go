// SPDX-License-Identifier: Apache-2.0

// Package past makes records of flows into the questions that they are to policy: who asked whom
// for which port, with the labels that the pods had then, and what was said. Records that ask the
// same are one question with counts; a connection that two nodes have seen counts once. What a
// record does not say, and no other record of the same pod either, is not made up.
package past

import (
	"cmp"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/reason"
)

// Said is what a record says of policy at one end.
type Said uint8

// What is said.
const (
	Nothing Said = iota // the record is of a node that does not evaluate that end
	Allowed
	Denied
)

// Pod is a pod with the labels that it had: pods that differ in labels are different ones.
type Pod struct {
	Name     model.Name
	Workload string // "Deployment web", empty = not known
	Node     string // empty = not known
	Labels   map[string]string
	// Known: the labels are. Where they are not, Labels is nil.
	Known bool

	First, Last time.Time // when records that name it were complete
	addrs       map[netip.Addr]struct{}
}

// End is an address with the pod that had it; nil = no pod is known to.
type End struct {
	Addr netip.Addr
	Pod  *Pod
}

// Question is what records ask of policy.
type Question struct {
	From, To End
	Protocol model.Protocol
	// Port is of the destination, after a Service chose the backend; of ICMP type * 256 + code.
	Port uint16
	// SourcePort is the client's, where HasSource: no record has it for what was denied more than
	// once.
	SourcePort uint16
	HasSource  bool
	Egress     Said // at the source
	Ingress    Said // at the destination
	// FromHost: the source, which is no pod, may be the destination's node, whatever addresses are
	// known of that: its own packets reach its pods past policy.
	FromHost bool
	Service  string    // that was asked, as flows.Flow has it; of one of the records
	Lacking  string    // what the records do not say, a reason of Unknown; empty = nothing
	First    time.Time // of connections
	Last     time.Time // seen
	Nodes    []string  // that have records

	ended time.Time // when the first of the records was complete
	seen  map[string]*tally
}

// What may be lacking.
const (
	LackPort     = "the port"
	LackProtocol = "the protocol, or the message of ICMP"
	LackLabels   = "the labels that a pod had"
)

// tally is what one node has seen.
type tally struct {
	conns          map[uint64]struct{}
	tries          uint64 // packets that were denied
	sums           uint64 // connections of records that are sums
	records, bytes uint64
}

// Count returns how many connections, or tries of what was denied, the records are about: as many
// as the node has seen that has seen most of them.
func (q *Question) Count() (n uint64) {
	for _, t := range q.seen {
		n = max(n, uint64(len(t.conns))+t.tries+t.sums)
	}
	return n
}

// Records returns how many records ask it.
func (q *Question) Records() (n uint64) {
	for _, t := range q.seen {
		n += t.records
	}
	return n
}

// Bytes returns how many bytes of IP both directions carried, as the node has seen that has seen
// most.
func (q *Question) Bytes() (n uint64) {
	for _, t := range q.seen {
		n = max(n, t.bytes)
	}
	return n
}

// endKey and key identify ends and questions.
type endKey struct {
	addr netip.Addr
	pod  podKey
}

type key struct {
	from, to        endKey
	proto           model.Protocol
	port, source    uint16
	hasSource       bool
	egress, ingress Said
	fromHost        bool
	lacking         string
}

// Past collects records.
type Past struct {
	bySource bool // questions differ by the source port
	seed     maphash.Seed
	pods     map[podKey]*Pod
	all      map[key]*Question
	// Other counts records that ask nothing of policy, by why.
	Other map[string]uint64
	// Records counts all records, Denied those that policy denied.
	Records, Denied uint64
}

type podKey struct {
	name         model.Name
	labels, node string
	known        bool
}

// New returns an empty past. bySource: policy looks at source ports, so questions are to differ by
// them.
func New(bySource bool) *Past {
	return &Past{bySource: bySource, seed: maphash.MakeSeed(), pods: map[podKey]*Pod{}, all: map[key]*Question{}, Other: map[string]uint64{}}
}

// Add takes a record.
func (p *Past) Add(f *flows.Flow) {
	p.Records++
	q := Question{Service: f.Service, First: f.Start, Last: f.End, ended: f.End}
	if f.Start.IsZero() {
		q.First = f.End
	}
	switch {
	case f.Verdict == flows.Allowed: // without ends it was open before flows were recorded
		if f.Egress != nil || here(f.Source, f) {
			q.Egress = Allowed
		}
		if f.Ingress != nil || here(f.Destination, f) {
			q.Ingress = Allowed
		}
	case f.Reason == reason.PolicyEgress.String():
		q.Egress = Denied
	case f.Reason == reason.PolicyIngress.String():
		if q.Ingress = Denied; f.Egress != nil {
			q.Egress = Allowed
		}
	default:
		p.Other["dropped for another reason than the policy of pods: "+cmp.Or(f.Reason, "none is named")]++
		return
	}
	if q.Egress == Denied || q.Ingress == Denied {
		p.Denied++
	}
	var from, to endKey
	q.From, from = p.end(f.Source, f)
	q.To, to = p.end(f.Destination, f)
	q.FromHost = mayBeHost(f)
	q.Lacking = q.ask(f)
	if p.bySource {
		tries := f.Verdict != flows.Allowed && f.Sent.Packets > 1
		if q.HasSource = f.Source.Port != 0 && !tries; q.HasSource {
			q.SourcePort = f.Source.Port
		}
	}
	k := key{from, to, q.Protocol, q.Port, q.SourcePort, q.HasSource, q.Egress, q.Ingress, q.FromHost, q.Lacking}
	have := p.all[k]
	if have == nil {
		have = &q
		have.seen = map[string]*tally{}
		p.all[k] = have
	}
	have.count(f, p.seed)
}

// count takes a record that asks the question.
func (q *Question) count(f *flows.Flow, seed maphash.Seed) {
	if f.Start.Before(q.First) {
		q.First = f.Start
	}
	if f.End.After(q.Last) {
		q.Last = f.End
	}
	if f.End.Before(q.ended) {
		q.ended = f.End
	}
	q.Service = cmp.Or(q.Service, f.Service)
	t := q.seen[f.Node]
	if t == nil {
		t = &tally{conns: map[uint64]struct{}{}}
		q.seen[f.Node] = t
		q.Nodes = slices.Sorted(maps.Keys(q.seen))
	}
	t.records++
	t.bytes += f.Sent.Bytes + f.Received.Bytes
	if f.Verdict != flows.Allowed {
		t.tries += f.Sent.Packets
		return
	}
	if f.Records > 0 { // it may be of connections that went on
		t.sums += uint64(max(f.Connections, 1))
		return
	}
	// Two records of a connection tell its start by two looks at the clock.
	conn := func(second int64) uint64 {
		return maphash.Comparable(seed, [2]int64{int64(f.Source.Port), second})
	}
	second := f.Start.Unix()
	for _, near := range []int64{second - 1, second + 1} {
		if _, is := t.conns[conn(near)]; is {
			return
		}
	}
	t.conns[conn(second)] = struct{}{}
}

// ask reads the protocol and the port. It returns what is lacking.
func (q *Question) ask(f *flows.Flow) string {
	var ok bool
	if q.Protocol, ok = protocolOf(f.Protocol); !ok {
		return LackProtocol
	}
	switch q.Protocol {
	case model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP:
		if q.Port = f.Destination.Port; q.Port == 0 {
			return LackPort
		}
	case model.ProtocolICMP, model.ProtocolICMPv6:
		t, c, is := strings.Cut(f.ICMP, "/")
		of, err := strconv.ParseUint(t, 10, 8)
		code, err2 := strconv.ParseUint(c, 10, 8)
		if !is || err != nil || err2 != nil {
			return LackProtocol
		}
		q.Port = uint16(of)<<8 | uint16(code)
	}
	return ""
}

// protocolOf reads what model.Protocol.String writes.
func protocolOf(text string) (model.Protocol, bool) {
	for _, p := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP, model.ProtocolICMP, model.ProtocolICMPv6} {
		if p.String() == text {
			return p, true
		}
	}
	number, is := strings.CutPrefix(text, "proto")
	n, err := strconv.ParseUint(number, 10, 8)
	return model.Protocol(n), is && err == nil && n != 0
}

// here reports whether an end is a pod of the node that has the record.
func here(p flows.Peer, f *flows.Flow) bool {
	return p.Pod != "" && p.Node == f.Node && !f.HandedOn
}

// mayBeHost: nothing says that the client, which is no pod, is not the node of the destination.
// That evaluates what others send to its pods, and answers them by another way than its own stack.
func mayBeHost(f *flows.Flow) bool {
	if f.Source.Pod != "" || f.Verdict != flows.Allowed || f.Ingress == nil && !here(f.Destination, f) || f.Ingress != nil && f.Ingress.Rule != nil {
		return false
	}
	return f.Return == "" || f.Return == "stack"
}

// end interns one end of a record.
func (p *Past) end(of flows.Peer, f *flows.Flow) (End, endKey) {
	e := End{Addr: of.Address.Unmap()}
	if of.Pod == "" {
		return e, endKey{addr: e.Addr}
	}
	name := model.Name{Namespace: of.Namespace, Name: of.Pod}
	// A pod without labels looks as one that is not known.
	k := podKey{name, labelText(of.Labels), of.Node, len(of.Labels) > 0}
	pod := p.pods[k]
	if pod == nil {
		pod = &Pod{Name: name, Node: of.Node, Labels: of.Labels, Known: k.known, First: f.End, Last: f.End, addrs: map[netip.Addr]struct{}{}}
		p.pods[k] = pod
	}
	if f.End.Before(pod.First) {
		pod.First = f.End
	}
	if f.End.After(pod.Last) {
		pod.Last = f.End
	}
	pod.Workload = cmp.Or(pod.Workload, of.Workload)
	pod.addrs[e.Addr] = struct{}{}
	e.Pod = pod
	return e, endKey{e.Addr, k}
}

func labelText(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(strconv.Quote(k) + "=" + strconv.Quote(labels[k]) + ",")
	}
	return b.String()
}

// Questions returns what the records ask. now finds a pod of the cluster as it is; may be nil.
func (p *Past) Questions(now func(model.Name) *model.Pod) []*Question {
	versions := map[model.Name][]*Pod{}
	for _, pod := range p.pods {
		if pod.Known {
			versions[pod.Name] = append(versions[pod.Name], pod)
		}
	}
	var out []*Question
	for _, q := range p.all {
		for _, e := range []*End{&q.From, &q.To} {
			if e.Pod == nil || e.Pod.Known {
				continue
			}
			if pod := labelled(q, *e, versions[e.Pod.Name], now); pod != nil {
				e.Pod = pod
			} else {
				q.Lacking = cmp.Or(q.Lacking, LackLabels)
			}
		}
		out = append(out, q)
	}
	slices.SortFunc(out, func(a, b *Question) int {
		return cmp.Or(a.From.Addr.Compare(b.From.Addr), a.To.Addr.Compare(b.To.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.SourcePort, b.SourcePort), a.First.Compare(b.First), cmp.Compare(a.Egress, b.Egress), cmp.Compare(a.Ingress, b.Ingress))
	})
	return out
}

// labelled finds the labels of a pod that the records of a question do not have: those of other
// records of it, where these agree, or had all but one of them at another time; or that it has
// none.
func labelled(q *Question, e End, all []*Pod, now func(model.Name) *model.Pod) *Pod {
	var versions, then []*Pod
	for _, v := range all {
		if _, is := v.addrs[e.Addr]; !is {
			continue
		}
		versions = append(versions, v)
		if !v.Last.Before(q.ended) && !v.First.After(q.Last) {
			then = append(then, v)
		}
	}
	switch {
	case len(versions) == 1:
		return versions[0]
	case len(then) == 1:
		return then[0]
	case len(versions) > 0 || now == nil:
		return nil
	}
	pod := now(e.Pod.Name)
	if pod == nil || len(pod.Labels) > 0 || !slices.Contains(pod.Addrs, e.Addr) || time.Unix(pod.Created, 0).After(q.ended) {
		return nil
	}
	e.Pod.Known, e.Pod.Node = true, pod.Node
	return e.Pod
}
