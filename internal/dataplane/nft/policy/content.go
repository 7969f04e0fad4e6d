// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// content is all that a set says of the peers of one class.
type content struct {
	head    nodestate.PolicyValue
	protos  map[model.Protocol][]portEntry // by destination port; the numbers of ICMP messages
	sources map[uint16]*sourceTable
	why     reason.Reason // what a packet that it denies is dropped for
	set     nodestate.SetID
	// chain, silent, turned and named are the chains' names, once they are made.
	chain, silent, turned, named string
}

// sourceTable is a table of source ports.
type sourceTable struct {
	head    nodestate.PolicyValue
	entries []portEntry
}

// portEntry says something of the ports that begin with the first bits of one.
type portEntry struct {
	port  uint16
	bits  uint8
	value nodestate.PolicyValue
}

func (e portEntry) last() uint16 { return e.port | 0xffff>>e.bits }

// whysOf are the sets that apply in a family, with what a packet is dropped for that they deny.
func whysOf(s *nodestate.State, f table.Family) map[nodestate.SetID]reason.Reason {
	out := map[nodestate.SetID]reason.Reason{}
	for a, v := range s.Addrs {
		if v.Kind == nodestate.AddrEndpoint && f.Has(a) {
			out[v.Ingress.Set], out[v.Egress.Set] = reason.PolicyIngress, reason.PolicyEgress
		}
	}
	for at, h := range s.HostEndpoints {
		if at.IPv6 != f.Six {
			continue
		}
		out[h.HostIngress.Set], out[h.ForwardIngress.Set] = reason.HostIngress, reason.HostIngress
		out[h.HostEgress.Set], out[h.ForwardEgress.Set] = reason.HostEgress, reason.HostEgress
		out[h.PreDNAT.Set] = reason.HostPreDNAT
		out[h.UntrackedIngress.Set], out[h.UntrackedEgress.Set] = reason.UntrackedIngress, reason.UntrackedEgress
	}
	delete(out, 0)
	return out
}

// contentsOf are the contents of the sets that evaluate, and of those that names lead to. A set
// without heads says nothing.
func contentsOf(s *nodestate.State, whys map[nodestate.SetID]reason.Reason, tried map[nodestate.SetID]bool) map[nodestate.SetID]map[nodestate.Class]*content {
	out := map[nodestate.SetID]map[nodestate.Class]*content{}
	heads := map[*content]bool{}
	for k, v := range s.Policy.All() {
		why, used := whys[k.Set]
		if !used && tried[k.Set] {
			why, used = reason.PolicyEgress, true
		}
		if !used {
			continue
		}
		if out[k.Set] == nil {
			out[k.Set] = map[nodestate.Class]*content{}
		}
		c := out[k.Set][k.Peer]
		if c == nil {
			c = &content{protos: map[model.Protocol][]portEntry{}, sources: map[uint16]*sourceTable{}, why: why, set: k.Set}
			out[k.Set][k.Peer] = c
		}
		e := portEntry{k.Port, k.Len, v}
		switch {
		case k.Sources != 0:
			t := c.sources[k.Sources]
			if t == nil {
				t = &sourceTable{}
				c.sources[k.Sources] = t
			}
			if k.Head {
				t.head = v
			} else {
				t.entries = append(t.entries, e)
			}
		case k.Head:
			c.head, heads[c] = v, true
		default:
			c.protos[k.Proto] = append(c.protos[k.Proto], e)
		}
	}
	for set, classes := range out {
		for class, c := range classes {
			if !heads[c] {
				delete(classes, class)
			}
		}
		if len(classes) == 0 {
			delete(out, set)
		}
	}
	return out
}

// contentChain makes the chain of a content and returns its name. Equal contents share one.
func (r *policyRender) contentChain(c *content) string {
	made, prefix, to, message := &c.chain, "peer-", "ct reply proto-src", "ct original proto-dst"
	switch {
	case r.byName:
		made, prefix = &c.named, "peer-by-name-"
	case isPerPacket(c.why):
		to, message = "th dport", "@th,0,16"
	case r.turned:
		made, prefix, to = &c.turned, "turned-", "ct original proto-src"
	case r.silent:
		made, prefix = &c.silent, "peer-silent-"
	}
	if *made != "" {
		return *made
	}
	var rules []string
	for _, p := range []struct {
		proto model.Protocol
		words string
		key   string
	}{
		{model.ProtocolTCP, "tcp", to}, {model.ProtocolUDP, "udp", to},
		{model.ProtocolSCTP, "sctp", to}, {icmpProtocol(r.Family), r.Words().ICMP, message},
	} {
		bit := nodestate.ProtoBit(p.proto, r.Six)
		if c.head.Protos&bit == 0 {
			continue
		}
		if text := r.ranges(c, c.protos[p.proto], c.head); text != "" {
			rules = append(rules, "meta l4proto "+p.words+" "+p.key+" vmap { "+text+" }")
		}
	}
	if c.head.Protos&nodestate.ProtoBitOther != 0 {
		if text := r.others(c); text != "" {
			rules = append(rules, "meta l4proto vmap { "+text+" }")
		}
	}
	rules = append(rules, r.decision(c, c.head))
	*made = r.chain(prefix, rules)
	*r.sum += table.Hash(*made)
	return *made
}

func icmpProtocol(f table.Family) model.Protocol {
	if f.Six {
		return model.ProtocolICMPv6
	}
	return model.ProtocolICMP
}

// others are the verdicts of protocols without ports, by protocol.
func (r *policyRender) others(c *content) string {
	var out []string
	for proto, entries := range c.protos {
		if nodestate.ProtoBit(proto, r.Six) != nodestate.ProtoBitOther {
			continue
		}
		for _, e := range entries {
			if e.bits == 0 {
				out = append(out, fmt.Sprintf("%d : %s", proto, r.decision(c, e.value)))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// decision is a verdict in words, where the source port may decide.
func (r *policyRender) decision(c *content, v nodestate.PolicyValue) string {
	if v.Sources == 0 {
		return r.withNames(c.set, v, c.why)
	}
	t := c.sources[v.Sources]
	if t == nil {
		return r.withNames(c.set, nodestate.PolicyValue{}, c.why) // Decide finds the zero value, too
	}
	from := "ct original proto-src"
	switch {
	case isPerPacket(c.why):
		from = "th sport"
	case r.turned:
		from = "ct reply proto-src"
	}
	var rules []string
	if text := r.ranges(c, t.entries, t.head); text != "" {
		for _, proto := range []string{"tcp", "udp", "sctp"} {
			rules = append(rules, "meta l4proto "+proto+" "+from+" vmap { "+text+" }")
			rules = append(rules, "meta l4proto "+proto+" "+r.withNames(c.set, t.head, c.why))
		}
	}
	rules = append(rules, r.withNames(c.set, longest(t.entries, 0, t.head), c.why)) // other protocols have the source port 0
	name := r.chain("from-", rules)
	*r.sum += table.Hash(name)
	return "goto " + name
}

// longest is the value of the entry that has the longest prefix of a port.
func longest(entries []portEntry, port uint16, none nodestate.PolicyValue) nodestate.PolicyValue {
	best := -1
	for _, e := range entries {
		if e.port <= port && port <= e.last() && int(e.bits) > best {
			best, none = int(e.bits), e.value
		}
	}
	return none
}

// ranges are the verdicts by ranges of ports, where they differ from what holds for the rest.
func (r *policyRender) ranges(c *content, entries []portEntry, rest nodestate.PolicyValue) string {
	if len(entries) == 0 {
		return ""
	}
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b portEntry) int { return cmp.Or(cmp.Compare(a.bits, b.bits), cmp.Compare(a.port, b.port)) })
	starts := map[int]bool{0: true}
	for _, e := range entries {
		starts[int(e.port)], starts[int(e.last())+1] = true, true
	}
	delete(starts, 0x10000)
	bounds := make([]int, 0, len(starts))
	for b := range starts {
		bounds = append(bounds, b)
	}
	slices.Sort(bounds)
	rest.Protos, rest.Lens = 0, 0
	values := make([]nodestate.PolicyValue, len(bounds))
	for i := range values {
		values[i] = rest
	}
	for _, e := range entries { // shorter prefixes first: longer ones paint over them
		i, _ := slices.BinarySearch(bounds, int(e.port))
		for ; i < len(bounds) && bounds[i] <= int(e.last()); i++ {
			values[i] = e.value
			values[i].Protos, values[i].Lens = 0, 0
		}
	}
	var out []string
	for i := 0; i < len(bounds); {
		j := i + 1
		for j < len(bounds) && values[j] == values[i] {
			j++
		}
		end := 0xffff
		if j < len(bounds) {
			end = bounds[j] - 1
		}
		if values[i] != rest {
			text := fmt.Sprint(bounds[i])
			if end != bounds[i] {
				text = fmt.Sprintf("%d-%d", bounds[i], end)
			}
			out = append(out, text+" : "+r.decision(c, values[i]))
		}
		i = j
	}
	return strings.Join(out, ", ")
}
