// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	nftdryrun "github.com/weir-net/weir/internal/dataplane/nft/dryrun"
	"github.com/weir-net/weir/internal/sim"
	"github.com/weir-net/weir/internal/why/wire"
)

// errProxied: Weir knows of such a packet what comes before a kube-proxy's rules alone.
var errProxied = errors.New("a kube-proxy carries Services on this node, and its rules are not Weir's to explain: ask for the address of an endpoint")

// maxChoices bounds how many of the numbers among which rules choose at random are tried.
const (
	maxChoices       = 32
	maxWantedChoices = 1000 // where one endpoint is wished for
)

// evaluateRules lets the packet pass the rules that are in the kernel.
func (i *inquiry) evaluateRules(ctx context.Context, r Rules) error {
	proxied := i.answer.Service != nil && i.state.Settings.KubeProxy
	if proxied && i.ask.Received == nil {
		return errProxied
	}
	// The first choice is made at random, as in a real connection; then all others are tried.
	var got *nftdryrun.Trace
	reached := map[string]bool{}
	runs := &i.answer.Program.Runs
	first, whole := rand.Uint32N(1<<16), false
	for *runs = 0; ; {
		p, err := i.dryRun(r, first, *runs)
		if err != nil {
			return err
		}
		*runs++
		i.noteReached(p, reached)
		if i.adopt(p, got == nil) {
			got = p
		}
		n := 1
		if len(p.Choices) > 0 {
			n = int(slices.Max(p.Choices))
		}
		most := maxChoices
		if i.ask.Backend.IsValid() {
			most = maxWantedChoices // each choice is tried, to find the one that was wished for
		}
		if whole = *runs >= n; whole || *runs >= most || ctx.Err() != nil {
			break
		}
	}
	i.adopt(got, true)
	if i.chosen = i.reached(got); proxied && i.chosen == "" && !i.refusedBy() {
		return errProxied // it is not what another node hands on
	}
	i.describeTables(got)
	if whole {
		i.compareBackends(reached)
	}
	if !i.gotWantedBackend() {
		what := "of all choices"
		if !whole {
			what = fmt.Sprintf("of the %d choices that were tried", *runs)
		}
		i.warn("backend %s was never chosen, %s", i.ask.Backend, what)
	}
	return nil
}

// dryRun lets the packet pass, with the choice that comes so many after the first.
func (i *inquiry) dryRun(r Rules, first uint32, after int) (*nftdryrun.Trace, error) {
	q := nftdryrun.Question{In: i.in.IfIndex, Frame: i.frame, Pick: func(n uint32) uint32 { return (first + uint32(after)) % n }}
	switch i.in.Hook {
	case sim.ToUplink:
		q.In = 0
	case sim.FromTunnel:
		q.From = i.in.Source
		if i.ask.Received.Encrypted {
			q.By = i.wireGuard(q.From).Interface
		}
		q.IPIP = i.in.IPIP
	}
	return r.DryRun(q)
}

// adopt makes a passage the result, when it is the first or the one that was wished for.
func (i *inquiry) adopt(p *nftdryrun.Trace, first bool) bool {
	before, led := i.result, i.led
	i.result, i.led = i.resultOf(p), p.Gateway
	if want := i.ask.Backend; first || want.IsValid() && (i.reached(p) == want.String() || i.reached(p) == "" && p.Node.IsValid() && p.Node == i.nodeOf(want.Addr())) {
		return true
	}
	i.result, i.led = before, led
	return false
}

// resultOf is a passage in the words of the oracle.
func (i *inquiry) resultOf(p *nftdryrun.Trace) sim.Result {
	out := sim.Result{Packet: i.in.Packet, Reason: p.Reason, Rule: p.Rule, IfIndex: p.IfIndex, NextHop: p.NextHop}
	switch p.Path {
	case nftdryrun.PathDropped, nftdryrun.PathNowhere:
		out.Action = sim.Drop
		if p.Refused {
			out.Action = sim.Answer
		}
		return out
	case nftdryrun.PathPod:
		out.Action = sim.Local
	case nftdryrun.PathNode:
		out.Action = sim.Pass
	case nftdryrun.PathLink:
		out.Action = sim.Neigh
	case nftdryrun.PathTunnel:
		out.Action = sim.Tunnel
	}
	out.Packet = i.in.Packet.Clone()
	out.Packet.Rewrite(p.Src, p.Dst, p.SrcPort, p.DstPort)
	if i.in.Hook != sim.ToUplink && p.Path != nftdryrun.PathNode {
		out.Packet.IP.TTL--
	}
	return out
}

// reached is the endpoint that a packet was translated to, "" = none.
func (i *inquiry) reached(p *nftdryrun.Trace) string {
	if p.Dst == i.in.Packet.IP.Dst && p.DstPort == i.in.Packet.DstPort {
		return ""
	}
	return netip.AddrPortFrom(p.Dst, p.DstPort).String()
}

// noteReached notes an endpoint, or the node that the packet was handed on to.
func (i *inquiry) noteReached(p *nftdryrun.Trace, reached map[string]bool) {
	if to := i.reached(p); to != "" {
		reached[to] = true
	} else if p.Node.IsValid() {
		reached["node "+p.Node.String()] = true
	}
}

// compareBackends says which endpoints of a Service the kernel's lists have and should not have, or
// the other way round.
func (i *inquiry) compareBackends(reached map[string]bool) {
	s := i.answer.Service
	if s == nil || i.answer.Flow != "" || s.Affinity > 0 {
		return // none was chosen anew
	}
	for _, b := range s.Backends {
		at, err := netip.ParseAddrPort(b.Address)
		if err != nil || !b.Usable {
			continue
		}
		if !reached[b.Address] && !reached["node "+i.nodeOf(at.Addr()).String()] && len(reached) > 0 {
			i.warn("endpoint %s of %s is in no list of the kernel's", b.Address, s.Name)
		}
	}
	for to := range reached {
		if !strings.HasPrefix(to, "node ") && !slices.ContainsFunc(s.Backends, func(b wire.Backend) bool { return b.Address == to && b.Usable }) {
			i.warn("the kernel's lists of %s have %s, which is none of its endpoints", s.Name, to)
		}
	}
}

// describeTables says what was looked at.
func (i *inquiry) describeTables(p *nftdryrun.Trace) {
	t := &wire.Tables{Table: p.Proof.Family + " weir", Generation: p.Proof.Generation, Rules: p.Proof.Rules, Met: p.Proof.Met, Chains: p.Proof.Chains,
		Chain: p.Chain, Same: len(p.Proof.Differs) == 0}
	for _, l := range p.Proof.Lookups {
		t.Lookups = append(t.Lookups, wire.Lookup{Set: l.Set, Key: l.Key, Found: l.Found, Value: l.Value})
	}
	i.answer.Tables = t
	for _, d := range p.Proof.Differs {
		i.warn("the kernel has not what the agent wrote: %s", d)
	}
	if p.Known {
		i.answer.Flow = "connection tracking knows a connection of these addresses and ports that was not answered yet; the packet is evaluated as one of it"
		if p.Established {
			i.answer.Flow = "connection tracking knows a connection of these addresses and ports; the packet is evaluated as one of it"
		}
	}
	if others := p.Proof.Others; len(others) > 0 {
		i.answer.Notes = append(i.answer.Notes, fmt.Sprintf("tables of others that packets meet, too, and that were not looked at: %s", strings.Join(others, ", ")))
	}
}
