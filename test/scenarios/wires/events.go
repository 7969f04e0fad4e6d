// SPDX-License-Identifier: Apache-2.0

package wires

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/packet"
	"github.com/weir-net/weir/internal/reason"
	"github.com/weir-net/weir/internal/sim"
)

// Reporter is a driver that reports what it evaluated.
type Reporter interface {
	// Reported returns the events since the last call.
	Reported() ([]dataplane.Event, error)
}

// reported returns what the driver reported of the packet at hand.
func (c *carrier) reported() ([]dataplane.Event, error) {
	if t, ok := c.driver.(Reporter); ok {
		return t.Reported()
	}
	return nil, nil
}

// saidOf is what an event says. The place where it was seen, and whether a Service was asked, are
// the data plane's own.
func saidOf(e *dataplane.Event) string {
	end := func(name string, d dataplane.EventEnd) string {
		if !d.Local {
			return ""
		}
		s := fmt.Sprintf(" %s=%08x", name, uint32(d.Rule))
		if d.Staged {
			s += fmt.Sprintf(" staged denied=%t by %08x", d.StagedDenied, uint32(d.StagedRule))
		}
		return s
	}
	host := func(name string, h dataplane.EventHost) string {
		if !h.Evaluated {
			return ""
		}
		s := fmt.Sprintf(" %s=%08x", name, uint32(h.Rule))
		if h.Staged {
			s += fmt.Sprintf(" staged denied=%t by %08x", h.StagedDenied, uint32(h.StagedRule))
		}
		return s
	}
	s := fmt.Sprintf("%s %s:%d > %s:%d allowed=%t", e.Proto, e.Src, e.Sport, e.Dst, e.Dport, e.Allowed)
	if !e.Allowed {
		s += " " + reason.Reason(e.Reason).String()
		if e.Reason == uint32(reason.HostPreDNAT) || e.Reason == uint32(reason.ToHost) {
			return s + host("in", e.In) // nothing else was asked, or all of it is of before
		}
	}
	return s + end("egress", e.Egress) + end("ingress", e.Ingress) + host("in", e.In) + host("out", e.Out)
}

// oracleEvent is an event of the oracle as a driver reports it.
func oracleEvent(e *sim.Event) *dataplane.Event {
	end := func(d sim.End) dataplane.EventEnd {
		return dataplane.EventEnd{Local: d.Local, Rule: d.Rule, Staged: d.Staged, StagedDenied: d.StagedDenied, StagedRule: d.StagedRule}
	}
	host := func(h sim.HostEnd) dataplane.EventHost {
		return dataplane.EventHost{Evaluated: h.Evaluated, Rule: h.Rule, Staged: h.Staged, StagedDenied: h.StagedDenied, StagedRule: h.StagedRule}
	}
	return &dataplane.Event{Src: e.Src, Dst: e.Dst, Sport: e.Sport, Dport: e.Dport, Proto: e.Proto, Allowed: e.Allowed, Again: e.Again, Reason: uint32(e.Reason),
		Egress: end(e.Egress), Ingress: end(e.Ingress), In: host(e.In), Out: host(e.Out)}
}

// unlike says how what a driver reported differs from what the oracle reports; "" when it does not.
// What is denied is the same to the letter, and what begins and is allowed is reported by both.
// Whether an open flow is evaluated again is for each data plane to say. Rules with action Log,
// which decide nothing, are not looked for.
func (c *carrier) unlike(steps []step) string {
	got := c.events
	var denied, reported, wantDenied []string
	for i := range got {
		c.simplify(&got[i])
		if text := saidOf(&got[i]); got[i].Allowed {
			reported = append(reported, text)
		} else {
			denied = append(denied, text)
		}
	}
	for _, s := range steps {
		for i := range s.result.Events {
			e := oracleEvent(&s.result.Events[i])
			c.simplify(e)
			text := saidOf(e)
			switch {
			case !e.Allowed && e.Proto == model.ProtocolUDP && e.Dport == c.state.Settings.Tunnel.Port && e.Reason == uint32(reason.HostIngress):
				// Who is no node does not get as far.
			case !e.Allowed:
				wantDenied = append(wantDenied, text)
			case e.Again || e.Reason != 0, c.known(s.in.Packet, e):
			case s.result.Reason == reason.UntrackedEgress: // is asked first here, and nothing else then
			case !slices.Contains(reported, text):
				return fmt.Sprintf("the event %q is not among %q", text, reported)
			}
		}
	}
	if len(denied) == 1 && len(wantDenied) == 1 && c.oppositeHosts(got, steps) {
		return ""
	}
	slices.Sort(denied)
	slices.Sort(wantDenied)
	if !slices.Equal(denied, wantDenied) {
		return fmt.Sprintf("denied is %s instead of %s", strings.Join(denied, "; "), strings.Join(wantDenied, "; "))
	}
	return ""
}

// known: may this be a flow of the node's own that only connection tracking knows already? The eBPF
// data plane looks at none before there are host endpoints. Connection tracking has ideas of its
// own about GRE.
func (c *carrier) known(p *packet.Packet, e *dataplane.Event) bool {
	const gre = 47
	if e.Proto == gre {
		return true
	}
	return !e.Egress.Local && !e.Ingress.Local && !(p.Kind == packet.TCP && p.Flags&(packet.SYN|packet.ACK) == packet.SYN)
}

// oppositeHosts: did both say of a connection that a host endpoint denied it, each of the direction
// that it takes for the first? One that is older than the tables was begun by whom the data plane
// saw first.
func (c *carrier) oppositeHosts(got []dataplane.Event, steps []step) bool {
	for i := range got {
		for _, s := range steps {
			for _, w := range s.result.Events {
				g, hosts := got[i], func(r uint32) bool { return r == uint32(reason.HostIngress) || r == uint32(reason.HostEgress) }
				if !g.Allowed && !w.Allowed && hosts(g.Reason) && hosts(uint32(w.Reason)) && g.Proto == model.ProtocolTCP && g.Src == w.Dst && g.Dst == w.Src && g.Sport == w.Dport {
					return true
				}
			}
		}
	}
	return false
}

// simplify takes away what not every data plane knows of a flow: what was evaluated before
// Services, of one that is allowed, and what staged policies would have said there.
func (c *carrier) simplify(e *dataplane.Event) {
	for at, h := range c.state.HostEndpoints {
		would, staged := c.state.HostStaged[at]
		before := h.PreDNAT.Set != 0
		switch staged = staged && (before || would.PreDNAT.Set != 0); {
		case e.Allowed && (before || staged):
			e.In = dataplane.EventHost{}
		case before && (e.Reason == uint32(reason.PolicyIngress) || e.Reason == uint32(reason.PolicyEgress)):
			e.In = dataplane.EventHost{} // that preDNAT allowed it before a pod's policy denied it
		case staged:
			e.In = dataplane.EventHost{Evaluated: e.In.Rule != 0, Rule: e.In.Rule}
		}
	}
}
