// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/terminal"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// Write prints the story, for people or for programs.
func (s *Story) Write(out io.Writer, form string) error {
	if form == "json" {
		text, err := terminal.JSON(s, "  ")
		if err != nil {
			return err
		}
		_, err = io.WriteString(out, text)
		return err
	}
	var b strings.Builder
	q := &s.Request
	to := q.Destination.String()
	if q.Port != 0 {
		to += fmt.Sprintf(" port %d", q.Port)
	}
	fmt.Fprintf(&b, "%s → %s\n", named(s.Source, q.Source.String()), named(s.Target, fmt.Sprintf("%s/%s", to, q.Protocol)))
	for i := range s.Nodes {
		writeNode(&b, &s.Nodes[i])
	}
	fmt.Fprintf(&b, "\n%s\n", strings.ToUpper(s.Verdict[:1])+s.Verdict[1:])
	if s.Doubtful {
		b.WriteString("What was found does not fit together; see the lines that begin with !!\n")
	}
	for _, line := range strings.SplitAfter(b.String(), "\n") {
		end := strings.HasSuffix(line, "\n")
		line = terminal.OneLine(strings.TrimSuffix(line, "\n"))
		if end {
			line += "\n"
		}
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
	}
	return nil
}

// named is an address with the name that was asked for, when that is not the address itself.
func named(name, address string) string {
	if _, err := netip.ParseAddr(name); err == nil {
		return address
	}
	return fmt.Sprintf("%s (%s)", name, address)
}

func writeNode(b *strings.Builder, a *whywire.Answer) {
	plane := ""
	if a.Plane != "" {
		plane = a.Plane + ", "
	}
	fmt.Fprintf(b, "\nNode %s (%sepoch %d)\n", a.Node, plane, a.Epoch)
	if a.Behind != "" {
		fmt.Fprintf(b, "  !! the kernel is behind what is wanted: %s\n", a.Behind)
	}
	for _, w := range a.Warnings {
		fmt.Fprintf(b, "  !! %s\n", w)
	}
	for _, n := range a.Notes {
		fmt.Fprintf(b, "  note     %s\n", n)
	}
	if a.Service != nil {
		writeService(b, a.Service)
	}
	for i := range a.Policies {
		writeEnd(b, &a.Policies[i])
	}
	if a.Flow != "" {
		fmt.Fprintf(b, "  flow     %s\n", a.Flow)
	}
	p, o := &a.Program, &a.Outcome
	if p.Name != "" {
		same := "the same as loaded"
		if !p.Same {
			same = "NOT the one that is loaded: " + p.Live
		}
		fmt.Fprintf(b, "  proof    %s at %s, tag %s (program %d, %s)", p.Name, p.Interface, p.Tag, p.ID, same)
		if p.Runs > 1 {
			fmt.Fprintf(b, ", run %d times", p.Runs)
		}
		fmt.Fprintf(b, "\n    in     %s\n", a.Packet)
	}
	if a.Tables != nil {
		writeTables(b, a)
	}
	if o.Verdict == whywire.Dropped {
		in := ""
		if a.Tables != nil && a.Tables.Chain != "" {
			in = ", by chain " + a.Tables.Chain
		}
		fmt.Fprintf(b, "    out    dropped: %s (%s)%s\n", o.Text, o.Reason, in)
		return
	}
	fmt.Fprintf(b, "    out    %s: %s, %s\n", o.Verdict, o.Path, o.Text)
	if o.Packet != "" && o.Packet != a.Packet {
		fmt.Fprintf(b, "           %s\n", o.Packet)
	}
	if o.Route != nil {
		fmt.Fprintf(b, "    route  %s\n", o.Route)
	}
}

// writeTables prints what the rules in the kernel were asked.
func writeTables(b *strings.Builder, a *whywire.Answer) {
	t := a.Tables
	same := "all as written"
	if !t.Same {
		same = "NOT as written"
	}
	fmt.Fprintf(b, "  proof    table %s of nftables at %s, generation %d: %d rules, %s; the packet met %d", t.Table, a.Program.Interface, t.Generation, t.Rules, same, t.Met)
	if a.Program.Runs > 1 {
		fmt.Fprintf(b, ", %d choices tried", a.Program.Runs)
	}
	fmt.Fprintf(b, "\n    in     %s\n", a.Packet)
	for _, l := range t.Lookups {
		if !l.Found {
			continue // -o json has these, too
		}
		to := ""
		if l.Value != "" {
			to = " → " + l.Value
		}
		fmt.Fprintf(b, "    asked  %s: %s%s\n", l.Set, l.Key, to)
	}
}

// mostBackends is how many endpoints of a Service are shown.
const mostBackends = 8

func writeService(b *strings.Builder, s *whywire.Service) {
	fmt.Fprintf(b, "  service  %s at %s, translated %s", s.Name, s.Frontend, s.Where)
	if s.Affinity > 0 {
		fmt.Fprintf(b, ", affinity %d s", s.Affinity)
	}
	b.WriteString("\n")
	if len(s.Backends) == 0 {
		b.WriteString("    no endpoint is ready\n")
	}
	for i, e := range s.Backends {
		if i >= mostBackends && e.Address != s.Chosen {
			continue
		}
		line := "    " + e.Address
		if e.Pod != "" {
			line += "  " + e.Pod
		}
		if e.Node != "" {
			line += " on " + e.Node
		}
		if !e.Usable {
			line += "  (not for such connections)"
		}
		if e.Address == s.Chosen {
			line += "  ← chosen here"
		}
		b.WriteString(line + "\n")
	}
	if more := len(s.Backends) - mostBackends; more > 0 {
		fmt.Fprintf(b, "    %d endpoints in all\n", len(s.Backends))
	}
}

// hostUses name what a host endpoint evaluates, by whywire.End.Host.
var hostUses = map[string]string{"host": "what the node's own processes exchange", "forward": "what the node hands on", "preDNAT": "what comes in, before Services",
	"doNotTrack": "each packet by itself"}

// endOf names whose policies these are.
func endOf(e *whywire.End) string {
	if e.Host == "" {
		return "pod " + e.Explanation.Pod.String()
	}
	return fmt.Sprintf("host endpoint %s at %s", e.Explanation.HostEndpoint, e.Interface)
}

// writeEnd prints the tiers, policies and rules of one end.
func writeEnd(b *strings.Builder, e *whywire.End) {
	x := &e.Explanation
	if !x.Isolated && e.Host != "" {
		fmt.Fprintf(b, "  %-8s no policy of %s is about %s: allowed\n", e.Direction, endOf(e), hostUses[e.Host])
		return
	}
	if !x.Isolated {
		fmt.Fprintf(b, "  %-8s no policy selects pod %s: allowed\n", e.Direction, x.Pod)
		return
	}
	with := "to"
	if e.Direction == "ingress" {
		with = "from"
	}
	fmt.Fprintf(b, "  %-8s of %s, %s %s", e.Direction, endOf(e), with, e.Peer)
	if e.Host != "" {
		b.WriteString(": " + hostUses[e.Host])
	}
	b.WriteString("\n")
	if !x.Known {
		b.WriteString("    the pod, or its namespace, is not known to the agent yet: every policy that may select it isolates it, and none allows\n")
	}
	for _, t := range x.Tiers {
		fmt.Fprintf(b, "    tier %s: %s\n", t.Name, t.End)
		for _, p := range t.Policies {
			writePolicy(b, &p)
		}
	}
	verdict := "denied"
	if x.Allow {
		verdict = "allowed"
	}
	fmt.Fprintf(b, "    %s by %s\n", verdict, x.Rule)
}

// mostRules is how many rules of a policy that do not match are shown one by one.
const mostRules = 4

func writePolicy(b *strings.Builder, p *policy.ExplainedPolicy) {
	fmt.Fprintf(b, "      %s %s", p.Kind, p.Name)
	if p.Invalid != "" {
		fmt.Fprintf(b, " (not in force as written: %s)", p.Invalid)
	}
	if len(p.Rules) == 0 {
		b.WriteString(": no rules in this direction")
	}
	b.WriteString("\n")
	matched := slices.ContainsFunc(p.Rules, func(r policy.ExplainedRule) bool { return r.Matched })
	others := len(p.Rules)
	if matched {
		others--
	}
	if others > mostRules {
		counts := map[string]int{}
		for _, r := range p.Rules {
			if !r.Matched {
				counts[r.Why]++
			}
		}
		var parts []string
		for why, n := range counts {
			parts = append(parts, fmt.Sprintf("%d by %s", n, why))
		}
		slices.Sort(parts)
		fmt.Fprintf(b, "        %d rules do not match: %s\n", others, strings.Join(parts, ", "))
	}
	for _, r := range p.Rules {
		if r.Matched {
			fmt.Fprintf(b, "        %-12s %-5s matches\n", r.Detail, r.Action)
		} else if others <= mostRules {
			fmt.Fprintf(b, "        %-12s %-5s no: %s\n", r.Detail, r.Action, r.Why)
		}
	}
}
