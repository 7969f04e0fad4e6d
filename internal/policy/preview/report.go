// SPDX-License-Identifier: Apache-2.0

package preview

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/policy/past"
	"github.com/weir-net/weir/internal/terminal"
)

// Report is an outcome for people and for programs: flows in groups of pairs of workloads and
// ports.
type Report struct {
	Since time.Time `json:"since,omitzero"` // zero = all that is kept
	// Records are those that were read; Flows what they are about: connections, and tries of what
	// was denied.
	Records   uint64 `json:"records"`
	Flows     uint64 `json:"flows"`
	Unchanged uint64 `json:"unchanged"` // flows
	// Denied would be denied and are allowed now, Allowed the other way round.
	Denied  []Group `json:"denied"`
	Allowed []Group `json:"allowed"`
	Unknown []Group `json:"unknown"` // with Why
	// Otherwise are decided otherwise by the policies of now than when they were recorded.
	Otherwise []Group `json:"otherwise"`
	// NotAsked are records that ask nothing of the policy of pods, by why.
	NotAsked map[string]uint64 `json:"notAsked,omitempty"`
	Gaps     []string          `json:"gaps,omitempty"`  // what of the time is missing
	Notes    []string          `json:"notes,omitempty"` // what else is to be known
}

// Group are flows of one pair of workloads, or of what is none, and one port.
type Group struct {
	From     Side   `json:"from"`
	To       Side   `json:"to"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port,omitempty"`
	ICMP     string `json:"icmp,omitempty"`     // "type/code"
	Recorded string `json:"recorded,omitempty"` // what was said then: allowed, denied
	// End is where Rule decides, egress or ingress, and Before the rule of now; absent = no policy
	// selects an end.
	End     string       `json:"end,omitempty"`
	Rule    *events.Rule `json:"rule,omitempty"`
	Before  *events.Rule `json:"before,omitempty"`
	Why     string       `json:"why,omitempty"` // of what is unknown
	Flows   uint64       `json:"flows"`
	Records uint64       `json:"records"`
	Bytes   uint64       `json:"bytes"`
	First   time.Time    `json:"first"`
	Last    time.Time    `json:"last"`
	Service string       `json:"service,omitempty"` // that one of them asked
}

// Side is one end of a group.
type Side struct {
	Namespace string `json:"namespace,omitempty"`
	Workload  string `json:"workload,omitempty"` // "Deployment web", or "Pod web" of what no workload is known of
	Node      string `json:"node,omitempty"`     // of an address of a node
	// Addresses are those of ends that are no pods, the first of them; Of is how many there are.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Of        int          `json:"of,omitempty"`
}

// mostAddresses is how many of a side are named.
const mostAddresses = 5

// String names a side for people.
func (s *Side) String() string {
	switch {
	case s.Workload != "":
		return s.Namespace + "/" + s.Workload
	case s.Node != "":
		return "node " + s.Node
	}
	var names []string
	for _, a := range s.Addresses {
		names = append(names, a.String())
	}
	if more := s.Of - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "outside (" + strings.Join(names, ", ") + ")"
}

// group is a Group with what it is made of.
type group struct {
	Group
	addrs [2]map[netip.Addr]bool
}

// groupKey is what flows of a group have in common.
type groupKey struct {
	sides              [2]string
	proto              model.Protocol
	port               uint16
	recorded, end, why string
	rule, before       events.Rule
	hasRule, hasBefore bool
}

// Report groups an outcome.
func (o *Outcome) Report() *Report {
	r := &Report{}
	of := func(all []*Changed, otherwise bool) []Group {
		in := map[groupKey]*group{}
		for _, c := range all {
			put(in, c, o.nodes, otherwise)
		}
		out := make([]Group, 0, len(in))
		for _, g := range in {
			for i, s := range []*Side{&g.From, &g.To} {
				if g.addrs[i] != nil {
					named := slices.SortedFunc(maps.Keys(g.addrs[i]), netip.Addr.Compare)
					s.Addresses, s.Of = named[:min(len(named), mostAddresses)], len(named)
				}
			}
			out = append(out, g.Group)
		}
		slices.SortFunc(out, func(a, b Group) int {
			return cmp.Or(-cmp.Compare(a.Flows, b.Flows), cmp.Compare(a.line(), b.line()))
		})
		return out
	}
	r.Denied, r.Allowed, r.Unknown, r.Otherwise = of(o.Denied, false), of(o.Allowed, false), of(o.Unknown, false), of(o.Otherwise, true)
	for _, q := range o.Unchanged {
		r.Unchanged += q.Count()
	}
	r.Flows = r.Unchanged + Flows(r.Denied) + Flows(r.Allowed) + Flows(r.Unknown)
	return r
}

// Flows sums groups.
func Flows(all []Group) (n uint64) {
	for i := range all {
		n += all[i].Flows
	}
	return n
}

// put adds a question to its group. otherwise: it is about what was recorded and what is so now.
func put(in map[groupKey]*group, c *Changed, nodes map[netip.Addr]string, otherwise bool) {
	g := &group{Group: Group{Protocol: c.Protocol.String(), Why: c.Unknown}}
	k := groupKey{proto: c.Protocol, port: c.Port, why: c.Unknown}
	for i, e := range []past.End{c.From, c.To} {
		side := []*Side{&g.From, &g.To}[i]
		switch node := nodes[e.Addr]; {
		case e.Pod != nil:
			side.Namespace, side.Workload = e.Pod.Name.Namespace, cmp.Or(e.Pod.Workload, "Pod "+e.Pod.Name.Name)
		case node != "":
			side.Node = node
		default:
			g.addrs[i] = map[netip.Addr]bool{}
		}
		k.sides[i] = side.Namespace + "/" + side.Workload + " " + side.Node
	}
	if c.Protocol == model.ProtocolICMP || c.Protocol == model.ProtocolICMPv6 {
		g.ICMP = fmt.Sprintf("%d/%d", c.Port>>8, c.Port&0xff)
	} else {
		g.Port = c.Port
	}
	if c.Unknown == "" {
		g.Recorded = map[bool]string{true: flows.Allowed, false: flows.Denied}[c.Recorded]
		g.Before = ruleOf(c.Before.Rule)
		if otherwise {
			g.End, g.Rule = c.Before.End, g.Before
			g.Before = nil
		} else {
			g.End, g.Rule = c.After.End, ruleOf(c.After.Rule)
		}
		k.recorded, k.end = g.Recorded, g.End
		if g.Rule != nil {
			k.rule, k.hasRule = *g.Rule, true
		}
		if g.Before != nil {
			k.before, k.hasBefore = *g.Before, true
		}
	}
	if have := in[k]; have != nil {
		g = have
	} else {
		in[k] = g
		g.First, g.Last = c.First, c.Last
	}
	for i, e := range []past.End{c.From, c.To} {
		if g.addrs[i] != nil {
			g.addrs[i][e.Addr] = true
		}
	}
	g.Flows, g.Records, g.Bytes, g.Service = g.Flows+c.Count(), g.Records+c.Question.Records(), g.Bytes+c.Question.Bytes(), cmp.Or(g.Service, c.Service)
	if c.First.Before(g.First) {
		g.First = c.First
	}
	if c.Last.After(g.Last) {
		g.Last = c.Last
	}
}

// line is a group for people, without counts.
func (g *Group) line() string {
	port := g.Protocol
	switch {
	case g.ICMP != "":
		port += ":" + g.ICMP
	case g.Port != 0:
		port += fmt.Sprintf(":%d", g.Port)
	}
	b := fmt.Sprintf("%s → %s %s", &g.From, &g.To, port)
	if g.Service != "" {
		b += " (Service " + g.Service + ")"
	}
	return b
}

// by says which rule decides.
func by(end string, r *events.Rule) string {
	if r == nil {
		return "no policy selects an end"
	}
	return end + " by " + r.String()
}

// Write writes the report for people. What it says came from nodes and objects: nothing of it
// controls the terminal.
func (r *Report) Write(out io.Writer) error {
	var b strings.Builder
	list := func(title string, groups []Group, say func(g *Group) []string) {
		if len(groups) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s: %d\n", title, Flows(groups))
		for i := range groups {
			g := &groups[i]
			fmt.Fprintf(&b, "  %d %s\n", g.Flows, terminal.OneLine(g.line()))
			for _, text := range say(g) {
				fmt.Fprintf(&b, "    %s\n", terminal.OneLine(text))
			}
		}
		b.WriteByte('\n')
	}
	changed := func(g *Group) []string {
		out := []string{by(g.End, g.Rule)}
		if g.Before != nil {
			out = append(out, "now by "+g.Before.String())
		}
		return out
	}
	recorded := func(verdict string) func(g *Group) []string {
		return func(g *Group) []string {
			out := changed(g)
			if g.Recorded != verdict {
				out = append(out, "was "+g.Recorded+" when it was recorded")
			}
			return out
		}
	}
	list("Flows that would be denied", r.Denied, recorded(flows.Allowed))
	list("Flows that would be allowed", r.Allowed, recorded(flows.Denied))
	list("Flows of which that is not known", r.Unknown, func(g *Group) []string { return []string{"not known: " + g.Why} })
	list("Flows that policy decides otherwise now than when they were recorded, without this change", r.Otherwise, func(g *Group) []string {
		return []string{"was " + g.Recorded + "; now " + by(g.End, g.Rule)}
	})
	fmt.Fprintf(&b, "%d flows in %d records: %d would be denied, %d allowed, %d are not known, %d unchanged\n", r.Flows, r.Records, Flows(r.Denied), Flows(r.Allowed), Flows(r.Unknown), r.Unchanged)
	for _, why := range slices.Sorted(maps.Keys(r.NotAsked)) {
		fmt.Fprintf(&b, "%d records were left out: %s\n", r.NotAsked[why], terminal.OneLine(why))
	}
	for _, text := range r.Gaps {
		fmt.Fprintf(&b, "not all is known: %s\n", terminal.OneLine(text))
	}
	for _, text := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", terminal.OneLine(text))
	}
	_, err := io.WriteString(out, b.String())
	return err
}
