// SPDX-License-Identifier: Apache-2.0

// Package events turns what the rules show to nflog into events of the data plane. The prefix of a
// packet has what was said of it, by which rule, and its place in the flow; everything else is
// looked up in the state. Where policy is evaluated, packets have the addresses by which that is
// done: the destination is translated, and the source not yet; of the return path it is the other
// way round. So it is not known who was asked before a Service chose.
package events

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// Words of prefixes: a packet that is denied, one that a rule with action Log lets pass, and, while
// somebody listens, one of a flow that was evaluated and goes on.
const (
	Deny  = "deny"
	Allow = "allow"
	Pass  = "pass"
)

// Places of a packet in its flow.
const (
	placeNew  = "new"  // no answer was seen
	placeOpen = "open" // one was, and the packet goes as the first one did
	placeBack = "back"
)

// logGroup is where denied packets and those of Log rules are shown (nflog); the prefix has the
// reason's and the rule's number.
const logGroup = 5184

// shownBytes are how much of a packet is shown: enough for the headers.
const shownBytes = 128

// NewView is what events are made from: a state, the index of weir0, and whether every flow is
// shown.
func NewView(s *nodestate.State, host int, listening bool) *View {
	return &View{State: s, host: host, listening: listening}
}

// View is what events are made from.
type View struct {
	State *nodestate.State
	// Named are the patterns of domain names that led the pod at an interface to an address, Began
	// the one by which a connection began (0 = none). Both may be nil.
	Named func(ifindex int, a netip.Addr) []dataplane.NamedBy
	Began func(connection uint32) nodestate.NameID
	// Asked is the name that the pod at an interface asked for and that led to an address; empty =
	// none is known. It may be nil.
	Asked func(ifindex int, a netip.Addr) string

	host      int // index of weir0
	listening bool
}

// EventReader reads the events of a network namespace. Read is for one goroutine; Close may be
// called from another.
type Reader struct {
	view   func() *View // the latest; nil = there is none yet
	lost   func()       // the kernel had no room for packets
	log    *kernel.PacketLog
	wake   [2]int // a pipe: Close writes
	closed atomic.Bool
	busy   sync.Mutex // held by Read
	queue  []dataplane.Event
}

// Open begins to read events. One reader can be there in a network namespace.
func Open(v func() *View, lost func()) (*Reader, error) {
	r := &Reader{view: v, lost: lost}
	var err error
	if r.log, err = kernel.OpenPacketLog(logGroup, shownBytes); err != nil {
		return nil, err
	}
	if err := unix.Pipe2(r.wake[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("opening a pipe: %w", err), r.log.Close())
	}
	return r, nil
}

// Read waits for the next event; os.ErrClosed when the reader was closed.
func (r *Reader) Read() (dataplane.Event, error) {
	r.busy.Lock()
	defer r.busy.Unlock()
	for len(r.queue) == 0 {
		if r.closed.Load() {
			return dataplane.Event{}, os.ErrClosed
		}
		fds := []unix.PollFd{{Fd: int32(r.log.Fd()), Events: unix.POLLIN}, {Fd: int32(r.wake[0]), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return dataplane.Event{}, fmt.Errorf("waiting for packets of nflog: %w", err)
		}
		if err := r.readEvents(); err != nil {
			return dataplane.Event{}, err
		}
	}
	e := r.queue[0]
	r.queue = r.queue[1:]
	return e, nil
}

// readEvents makes events of the packets that wait.
func (r *Reader) readEvents() error {
	got, err := r.log.Waiting()
	switch {
	case errors.Is(err, unix.ENOBUFS):
		r.lost()
	case err != nil:
		return err
	}
	v := r.view()
	for i := range got {
		if e, ok := v.event(&got[i]); ok {
			r.queue = append(r.queue, e)
		}
	}
	return nil
}

// Waiting returns the events that are there, and does not wait.
func (r *Reader) Waiting() ([]dataplane.Event, error) {
	r.busy.Lock()
	defer r.busy.Unlock()
	err := r.readEvents()
	out := r.queue
	r.queue = nil
	return out, err
}

// Close ends Read.
func (r *Reader) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	_, err := unix.Write(r.wake[1], []byte{0})
	r.busy.Lock()
	defer r.busy.Unlock()
	return errors.Join(err, r.log.Close(), unix.Close(r.wake[0]), unix.Close(r.wake[1]))
}

// prefix is what the rules say of a packet that they show.
type prefix struct {
	word, place string
	why         reason.Reason
	rule        nodestate.RuleID
}

// String is the prefix as rules have it.
func (p prefix) String() string {
	return fmt.Sprintf("weir %s %s %d %d", p.word, p.place, p.why, p.rule)
}

func parsePrefix(text string) (p prefix, ok bool) {
	w := strings.Fields(text)
	if len(w) != 5 || w[0] != "weir" {
		return p, false
	}
	y, err := strconv.ParseUint(w[3], 10, 32)
	n, err2 := strconv.ParseUint(w[4], 10, 32)
	return prefix{word: w[1], place: w[2], why: reason.Reason(y), rule: nodestate.RuleID(n)}, err == nil && err2 == nil
}

// ShowFirst shows what is denied, where each packet is the first.
func ShowFirst(why reason.Reason, rule nodestate.RuleID) string {
	return showRule("", prefix{Deny, placeNew, why, rule})
}

// ShowRules show a packet, of whichever place in its flow.
func ShowRules(word string, why reason.Reason, rule nodestate.RuleID) []string {
	var out []string
	for _, at := range [][2]string{{placeNew, "ct state new"}, {placeOpen, "ct direction original ct state != new"}, {placeBack, "ct direction reply"}} {
		out = append(out, showRule(at[1]+" ", prefix{word: word, place: at[0], why: why, rule: rule}))
	}
	return out
}

// showRule shows packets of which something is true.
func showRule(of string, says prefix) string {
	return fmt.Sprintf("%slimit rate 1000/second burst 256 packets log prefix \"%s\" snaplen %d group %d", of, says, shownBytes, logGroup)
}

// event makes an event of a packet; not ok when it is none, or another one reports the same.
func (v *View) event(p *kernel.Logged) (e dataplane.Event, ok bool) {
	says, ok := parsePrefix(p.Prefix)
	t, isIP := ParseHeader(p.Packet)
	if !ok || !isIP || v == nil || v.State == nil {
		return e, false
	}
	in, out := p.In, p.Out
	if says.place == placeBack {
		in, out = out, in
		t.Src, t.Dst, t.SrcPort, t.DstPort = t.Dst, t.Src, t.DstPort, t.SrcPort
	}
	e = dataplane.Event{Src: t.Src, Dst: t.Dst, Sport: t.SrcPort, Dport: t.DstPort, Proto: t.Proto, Again: says.place != placeNew, IfIndex: cmp.Or(p.In, p.Out)}
	if t.Proto == model.ProtocolICMP || t.Proto == model.ProtocolICMPv6 {
		if e.Dport = t.Message; says.place == placeBack {
			e.Dport = asking(t)
		}
	}
	if int(p.Hook) < len(hookNames) {
		e.Hook = hookNames[p.Hook]
	}
	said := v.locate(&e, in, out)
	switch says.word {
	case Deny:
		e.Reason = uint32(says.why)
		v.denied(&e, says.why, says.rule)
	case Allow:
		// The last end with such a rule speaks, and only where no other rule denies or everything
		// is shown.
		if said.last != says.why || said.denied || v.listening {
			return e, false
		}
		e.Allowed, e.Log = true, true
	default:
		e.Allowed = true
	}
	return e, e.Egress.Local || e.Ingress.Local || e.In.Evaluated || e.Out.Evaluated || says.why == reason.ToHost
}

// hookNames are those of enum nf_inet_hooks.
var hookNames = [...]string{"prerouting", "input", "forward", "output", "postrouting"}

// Ends says what policy says now of a flow between these ends, the destination as a Service chose
// it: where it leaves a pod of this node, and where it arrives at one.
// began is a pattern of domain names by which the flow began, or 0; by is the one that allows.
func (v *View) Ends(h Header, began nodestate.NameID) (egress, ingress dataplane.EventEnd, by nodestate.NameID) {
	e := dataplane.Event{Src: h.Src, Dst: h.Dst, Sport: h.SrcPort, Dport: h.DstPort, Proto: h.Proto}
	if h.Proto == model.ProtocolICMP || h.Proto == model.ProtocolICMPv6 {
		e.Dport = h.Message
	}
	q := &question{View: v, e: &e, sender: e.Src, began: began}
	q.pods(v.State.Addrs[e.Src].Kind, v.State.Addrs[e.Dst].Kind)
	return e.Egress, e.Ingress, q.by
}

// verdicts is what the sets said of a flow together.
type verdicts struct {
	denied bool
	last   reason.Reason // the last end at which a rule with action Log matched; 0 = at none
}

// evaluate looks up what the state says of a flow at each end, and where it comes into the node and
// leaves it.
func (v *View) locate(e *dataplane.Event, in, out int) verdicts {
	q := &question{View: v, e: e, sender: e.Src}
	src, dst := v.State.Addrs[e.Src].Kind, v.State.Addrs[e.Dst].Kind
	if own := v.State.SendsAs(in, e.Src); own.IsValid() {
		q.sender = own
	}
	q.pods(v.State.Addrs[q.sender].Kind, dst)
	if len(v.State.HostEndpoints) > 0 && !q.said.denied {
		q.hosts(src, dst, in, out)
	}
	return q.said
}

// question is a flow that sets are asked about, and what they said.
type question struct {
	*View
	e      *dataplane.Event
	sender netip.Addr // whose egress policy it is: the source, or the pod that sends with it
	said   verdicts
	began  nodestate.NameID // by which the flow began; 0 = none
	by     nodestate.NameID // by which it is allowed; 0 = none
}

// decide is what a set says of an end of the flow: of the destination where peer is true.
func (q *question) decide(iso nodestate.Isolation, peer bool) nodestate.PolicyValue {
	addr := q.e.Src
	if peer {
		addr = q.e.Dst
	}
	return q.State.Decide(iso, addr, q.e.Proto, nodestate.Ports{Src: q.e.Sport, Dst: q.e.Dport})
}

// decideEgress is what a pod's egress set says of the destination, and the pattern of domain names
// by which it allows that, or 0.
func (q *question) decideEgress(iso nodestate.Isolation) (d nodestate.PolicyValue, by nodestate.NameID) {
	if d = q.decide(iso, true); d.Allow || len(q.State.Names.Sets) == 0 {
		return d, 0
	}
	return q.State.DecideNamed(iso, q.names(), q.e.Dst, q.e.Proto, nodestate.Ports{Src: q.e.Sport, Dst: q.e.Dport})
}

// consult asks a set that is in force.
func (q *question) consult(iso nodestate.Isolation, peer bool, why reason.Reason) nodestate.PolicyValue {
	var d nodestate.PolicyValue
	if why == reason.PolicyEgress {
		d, q.by = q.decideEgress(iso)
	} else {
		d = q.decide(iso, peer)
	}
	q.e.Log = q.e.Log || d.Log && !q.said.denied
	if d.Log && !q.said.denied && d.Allow {
		q.said.last = why
	}
	q.said.denied = q.said.denied || !d.Allow
	return d
}

// names are the patterns of domain names that led the sender to the destination, and the one by
// which the flow began.
func (q *question) names() (out []nodestate.NameID) {
	if q.began != 0 {
		out = append(out, q.began)
	}
	if q.Named != nil {
		for _, n := range q.Named(q.State.Addrs[q.sender].IfIndex, q.e.Dst) {
			out = append(out, n.Name)
		}
	}
	return out
}

// pods asks the sets of pods, and those that staged policies would give them.
func (q *question) pods(src, dst nodestate.AddrKind) {
	e, s := q.e, q.State
	if src == nodestate.AddrEndpoint {
		e.Egress.Local = true
		e.Egress.Rule = q.consult(s.Addrs[q.sender].Egress, true, reason.PolicyEgress).Rule
		if staged, ok := s.Staged[e.Src]; ok {
			d, _ := q.decideEgress(staged.Egress)
			e.Egress.Staged, e.Egress.StagedDenied, e.Egress.StagedRule = true, !d.Allow, d.Rule
		}
	}
	if dst == nodestate.AddrEndpoint {
		e.Ingress.Local = true
		if !q.said.denied && src != nodestate.AddrHost {
			e.Ingress.Rule = q.consult(s.Addrs[e.Dst].Ingress, false, reason.PolicyIngress).Rule
		}
		if staged, ok := s.Staged[e.Dst]; ok && src != nodestate.AddrHost {
			d := q.decide(staged.Ingress, false)
			e.Ingress.Staged, e.Ingress.StagedDenied, e.Ingress.StagedRule = true, !d.Allow, d.Rule
		}
	}
}

// hosts asks the sets of host endpoints.
func (q *question) hosts(src, dst nodestate.AddrKind, in, out int) {
	e := q.e
	if src == nodestate.AddrEndpoint && dst == nodestate.AddrHost {
		if q.State.Settings.ToHost == model.ToHostReturn {
			q.host(0, func(h nodestate.HostEndpoint) nodestate.Isolation { return h.HostIngress }, &e.In, false, reason.HostIngress)
		}
		return
	}
	if q.evaluates(in) {
		q.host(in, func(h nodestate.HostEndpoint) nodestate.Isolation {
			if dst == nodestate.AddrHost {
				return h.HostIngress
			}
			return h.ForwardIngress
		}, &e.In, false, reason.HostIngress)
	}
	if q.evaluates(out) && !q.said.denied {
		q.host(out, func(h nodestate.HostEndpoint) nodestate.Isolation {
			if src == nodestate.AddrHost {
				return h.HostEgress
			}
			return h.ForwardEgress
		}, &e.Out, true, reason.HostEgress)
	}
}

// host asks the set of a host endpoint, and the one that staged policies would put in its place.
// What they would say before Services is not known: packets are shown with the address that a
// Service chose.
func (q *question) host(index int, set func(nodestate.HostEndpoint) nodestate.Isolation, end *dataplane.EventHost, peer bool, why reason.Reason) {
	iso := set(q.State.HostEndpointAt(index, q.e.Src))
	h, staged := q.State.HostStagedAt(index, q.e.Src)
	if would := set(h); staged && (iso.Set != 0 || would.Set != 0) {
		end.Evaluated, end.Staged = true, true
		if would.Set != 0 {
			d := q.decide(would, peer)
			end.StagedDenied, end.StagedRule = !d.Allow, d.Rule
		}
	}
	if iso.Set != 0 {
		end.Evaluated, end.Rule = true, q.consult(iso, peer, why).Rule
	}
}

// evaluated reports whether host endpoints are asked about an interface.
func (v *View) evaluates(index int) bool {
	if index == 0 || index == 1 || index == v.host { // none, lo, weir0
		return false
	}
	for _, a := range v.State.Addrs {
		if a.Kind == nodestate.AddrEndpoint && a.IfIndex == index {
			return false
		}
	}
	return true
}

// denied puts the rule that denied in its place: the state may be a later one than that of the
// verdict.
func (v *View) denied(e *dataplane.Event, why reason.Reason, rule nodestate.RuleID) {
	switch why {
	case reason.PolicyEgress:
		e.Egress.Rule, e.Ingress.Rule = rule, 0
		e.In, e.Out = dataplane.EventHost{}, dataplane.EventHost{}
	case reason.PolicyIngress:
		e.Ingress.Rule = rule
		e.In, e.Out = dataplane.EventHost{}, dataplane.EventHost{}
	case reason.PacketRate, reason.Connections: // whatever policy says
		e.Egress.Rule, e.Ingress.Rule, e.Log = 0, 0, false
		e.In, e.Out = dataplane.EventHost{}, dataplane.EventHost{}
	case reason.UntrackedIngress, reason.UntrackedEgress:
		e.Egress, e.Ingress, e.In, e.Out = dataplane.EventEnd{}, dataplane.EventEnd{}, dataplane.EventHost{}, dataplane.EventHost{}
		end := &e.In
		if why == reason.UntrackedEgress {
			end = &e.Out
		}
		*end = dataplane.EventHost{Evaluated: true, Rule: rule}
	case reason.HostPreDNAT:
		e.In, e.Out = dataplane.EventHost{Evaluated: true, Rule: rule}, dataplane.EventHost{}
	case reason.HostIngress:
		e.In.Evaluated, e.In.Rule, e.Out = true, rule, dataplane.EventHost{}
	case reason.HostEgress:
		e.Out.Evaluated, e.Out.Rule = true, rule
	}
}
