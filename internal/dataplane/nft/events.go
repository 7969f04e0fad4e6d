package nft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// What the rules show to nflog becomes events. The prefix of a packet has what was said of it, by which rule, and its place in the flow; all
// else that an event has is looked up in the state. Where policy judges, packets have the addresses by which it does: the destination is
// translated, and the source not yet; of the way back it is the other way round. So who was asked before a Service chose is not known.

// Words of prefixes: a packet that is denied, one that a rule with action Log lets pass, and, while somebody listens, one of a flow
// that was judged and goes on.
const (
	wordDeny  = "deny"
	wordAllow = "allow"
	wordPass  = "pass"
)

// Places of a packet in its flow.
const (
	placeNew  = "new"  // no answer was seen
	placeOpen = "open" // one was, and the packet goes as the first one did
	placeBack = "back"
)

// shownBytes are how much of a packet is shown: enough for the headers.
const shownBytes = 128

// view is what events are made from.
type view struct {
	state     *nodestate.State
	host      int // index of weir0
	listening bool
}

// EventReader reads the events of a network namespace. Read is for one goroutine; Close may be called from another.
type EventReader struct {
	driver *Driver
	log    *kernel.PacketLog
	wake   [2]int // a pipe: Close writes
	closed atomic.Bool
	busy   sync.Mutex // held by Read
	queue  []dataplane.Event
}

// Events begins to read events. One reader can be there in a network namespace.
func (d *Driver) Events() (*EventReader, error) {
	r := &EventReader{driver: d}
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
func (r *EventReader) Read() (dataplane.Event, error) {
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
		if err := r.take(); err != nil {
			return dataplane.Event{}, err
		}
	}
	e := r.queue[0]
	r.queue = r.queue[1:]
	return e, nil
}

// take makes events of the packets that wait.
func (r *EventReader) take() error {
	got, err := r.log.Waiting()
	switch {
	case errors.Is(err, unix.ENOBUFS):
		r.driver.lost.Add(1)
	case err != nil:
		return err
	}
	v := r.driver.view.Load()
	for i := range got {
		if e, ok := v.event(&got[i]); ok {
			r.queue = append(r.queue, e)
		}
	}
	return nil
}

// Waiting returns the events that are there, and does not wait.
func (r *EventReader) Waiting() ([]dataplane.Event, error) {
	r.busy.Lock()
	defer r.busy.Unlock()
	err := r.take()
	out := r.queue
	r.queue = nil
	return out, err
}

// Close ends Read.
func (r *EventReader) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	_, err := unix.Write(r.wake[1], []byte{0})
	r.busy.Lock()
	defer r.busy.Unlock()
	return errors.Join(err, r.log.Close(), unix.Close(r.wake[0]), unix.Close(r.wake[1]))
}

// LostEvents counts how often the kernel had no room for packets that were to be shown.
func (d *Driver) LostEvents() uint64 { return d.lost.Load() }

// Listen makes the rules show every flow that is judged, or only what is denied or to be logged. No flow is judged again by it.
func (d *Driver) Listen(on bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listening == on {
		return nil
	}
	d.listening = on
	if d.state == nil {
		return nil // the first Apply writes it
	}
	return d.reconcile(context.Background())
}

// prefix is what the rules say of a packet that they show.
type prefix struct {
	word, place string
	why         reason.Reason
	rule        nodestate.RuleID
}

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

// showRules show a packet, of whichever place in its flow.
func showRules(word string, why reason.Reason, rule nodestate.RuleID) []string {
	var out []string
	for _, at := range [][2]string{{placeNew, "ct state new"}, {placeOpen, "ct direction original ct state != new"}, {placeBack, "ct direction reply"}} {
		out = append(out, fmt.Sprintf("%s limit rate 1000/second burst 256 packets log prefix \"%s\" snaplen %d group %d", at[1],
			prefix{word: word, place: at[0], why: why, rule: rule}, shownBytes, logGroup))
	}
	return out
}

// event makes an event of a packet; not ok when it is none, or another one tells the same.
func (v *view) event(p *kernel.Logged) (e dataplane.Event, ok bool) {
	says, ok := parsePrefix(p.Prefix)
	t, isIP := header(p.Packet)
	if !ok || !isIP || v == nil || v.state == nil {
		return e, false
	}
	in, out := p.In, p.Out
	if says.place == placeBack {
		in, out = out, in
		t.src, t.dst, t.sport, t.dport = t.dst, t.src, t.dport, t.sport
	}
	e = dataplane.Event{Src: t.src, Dst: t.dst, Sport: t.sport, Dport: t.dport, Proto: t.proto, Again: says.place != placeNew, IfIndex: cmp.Or(p.In, p.Out)}
	if t.proto == model.ProtocolICMP || t.proto == model.ProtocolICMPv6 {
		if e.Dport = t.message; says.place == placeBack {
			e.Dport = asking(t)
		}
	}
	if int(p.Hook) < len(hookNames) {
		e.Hook = hookNames[p.Hook]
	}
	said := v.judge(&e, in, out)
	switch says.word {
	case wordDeny:
		e.Reason = uint32(says.why)
		v.denied(&e, says.why, says.rule)
	case wordAllow:
		// The last end with such a rule speaks, and only where no other rule denies or everything is told.
		if said.last != says.why || said.denied || v.listening {
			return e, false
		}
		e.Allowed, e.Log = true, true
	default:
		e.Allowed = true
	}
	return e, e.Egress.Local || e.Ingress.Local || e.In.Judged || e.Out.Judged || says.why == reason.ToHost
}

// hookNames are those of enum nf_inet_hooks.
var hookNames = [...]string{"prerouting", "input", "forward", "output", "postrouting"}

// verdicts is what the sets said of a flow together.
type verdicts struct {
	denied bool
	last   reason.Reason // the last end at which a rule with action Log matched; 0 = at none
}

// judge looks up what the state says of a flow at each end, and where it comes into the node and leaves it.
func (v *view) judge(e *dataplane.Event, in, out int) (said verdicts) {
	s := v.state
	ports := nodestate.Ports{Src: e.Sport, Dst: e.Dport}
	src, dst := s.Addrs[e.Src], s.Addrs[e.Dst]
	consult := func(iso nodestate.Isolation, peer bool, why reason.Reason) nodestate.PolicyValue {
		addr := e.Src
		if peer {
			addr = e.Dst
		}
		d := s.Decide(iso, addr, e.Proto, ports)
		e.Log = e.Log || d.Log && !said.denied
		if d.Log && !said.denied && d.Allow {
			said.last = why
		}
		said.denied = said.denied || !d.Allow
		return d
	}
	if src.Kind == nodestate.AddrEndpoint {
		e.Egress.Local = true
		d := consult(src.Egress, true, reason.PolicyEgress)
		e.Egress.Rule = d.Rule
		if staged, ok := s.Staged[e.Src]; ok {
			d := s.Decide(staged.Egress, e.Dst, e.Proto, ports)
			e.Egress.Staged, e.Egress.StagedDenied, e.Egress.StagedRule = true, !d.Allow, d.Rule
		}
	}
	if dst.Kind == nodestate.AddrEndpoint {
		e.Ingress.Local = true
		if !said.denied && src.Kind != nodestate.AddrHost {
			e.Ingress.Rule = consult(dst.Ingress, false, reason.PolicyIngress).Rule
		}
		if staged, ok := s.Staged[e.Dst]; ok && src.Kind != nodestate.AddrHost {
			d := s.Decide(staged.Ingress, e.Src, e.Proto, ports)
			e.Ingress.Staged, e.Ingress.StagedDenied, e.Ingress.StagedRule = true, !d.Allow, d.Rule
		}
	}
	if len(s.HostEndpoints) == 0 || said.denied {
		return said
	}
	if src.Kind == nodestate.AddrEndpoint && dst.Kind == nodestate.AddrHost {
		if iso := s.HostEndpointAt(0, e.Src).HostIngress; s.Settings.ToHost == model.ToHostReturn && iso.Set != 0 {
			e.In = dataplane.EventHost{Judged: true, Rule: consult(iso, false, reason.HostIngress).Rule}
		}
		return said
	}
	host := func(index int, set func(nodestate.HostEndpoint) nodestate.Isolation, end *dataplane.EventHost, peer bool, why reason.Reason) {
		if !v.judged(index) || said.denied {
			return
		}
		if iso := set(s.HostEndpointAt(index, e.Src)); iso.Set != 0 {
			*end = dataplane.EventHost{Judged: true, Rule: consult(iso, peer, why).Rule}
		}
	}
	host(in, func(h nodestate.HostEndpoint) nodestate.Isolation {
		if dst.Kind == nodestate.AddrHost {
			return h.HostIngress
		}
		return h.ForwardIngress
	}, &e.In, false, reason.HostIngress)
	host(out, func(h nodestate.HostEndpoint) nodestate.Isolation {
		if src.Kind == nodestate.AddrHost {
			return h.HostEgress
		}
		return h.ForwardEgress
	}, &e.Out, true, reason.HostEgress)
	return said
}

// judged reports whether host endpoints are asked about an interface.
func (v *view) judged(index int) bool {
	if index == 0 || index == 1 || index == v.host { // none, lo, weir0
		return false
	}
	for _, a := range v.state.Addrs {
		if a.Kind == nodestate.AddrEndpoint && a.IfIndex == index {
			return false
		}
	}
	return true
}

// denied puts the rule that denied in its place: the state may be a later one than that of the verdict.
func (v *view) denied(e *dataplane.Event, why reason.Reason, rule nodestate.RuleID) {
	switch why {
	case reason.PolicyEgress:
		e.Egress.Rule, e.Ingress.Rule = rule, 0
		e.In, e.Out = dataplane.EventHost{}, dataplane.EventHost{}
	case reason.PolicyIngress:
		e.Ingress.Rule = rule
		e.In, e.Out = dataplane.EventHost{}, dataplane.EventHost{}
	case reason.HostIngress, reason.HostPreDNAT, reason.UntrackedIngress:
		e.In, e.Out = dataplane.EventHost{Judged: true, Rule: rule}, dataplane.EventHost{}
	case reason.HostEgress, reason.UntrackedEgress:
		e.Out = dataplane.EventHost{Judged: true, Rule: rule}
	}
}
