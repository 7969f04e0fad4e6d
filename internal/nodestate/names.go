// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// NameID numbers a pattern of domain names, by its text.
type NameID uint64

// NameKey is a policy set of egress together with a pattern that one of its rules has.
type NameKey struct {
	Set  SetID
	Name NameID
}

// Compare orders keys.
func (k NameKey) Compare(o NameKey) int {
	return cmp.Or(cmp.Compare(k.Set, o.Set), cmp.Compare(k.Name, o.Name))
}

// Names is policy by domain name. Rules with names allow only, so a packet to an address to which
// several names led is allowed where it is because of one of them.
type Names struct {
	// Patterns are those of the rules that bind endpoints here (model.DomainPattern).
	Patterns map[string]NameID
	Texts    map[NameID]string // the other way round
	// Sets say by which set a packet is evaluated that the endpoint's own set denies, where a name
	// of the pattern led to its destination: the same rules, those with the pattern as if they were
	// about every address.
	Sets map[NameKey]SetID
	// Servers are the DNS servers whose answers count, sorted. None while no set has names.
	Servers []netip.Addr
	// ExtraTTL is for how many seconds an address counts after its time to live.
	ExtraTTL uint32
}

// NewNames returns one without names.
func NewNames() Names {
	return Names{Patterns: map[string]NameID{}, Texts: map[NameID]string{}, Sets: map[NameKey]SetID{}}
}

// Equal reports whether two are the same.
func (n *Names) Equal(o *Names) bool {
	return maps.Equal(n.Patterns, o.Patterns) && maps.Equal(n.Sets, o.Sets) && slices.Equal(n.Servers, o.Servers) && n.ExtraTTL == o.ExtraTTL
}

// SetsWithNames returns the sets that have names.
func (n *Names) SetsWithNames() map[SetID]bool {
	out := map[SetID]bool{}
	for k := range n.Sets {
		out[k.Set] = true
	}
	return out
}

// Matching returns the patterns that a name matches, in lower case and without the last dot.
func (n *Names) Matching(name string) (out []NameID) {
	for pattern, id := range n.Patterns {
		if model.DomainMatches(pattern, name) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// DecideNamed is Decide of what an endpoint sends, where names of these patterns led to the peer.
// by is the pattern because of which it is allowed; 0 = the set decides without.
func (s *State) DecideNamed(iso Isolation, names []NameID, peer netip.Addr, proto model.Protocol, ports Ports) (v PolicyValue, by NameID) {
	v = s.Decide(iso, peer, proto, ports)
	if v.Allow {
		return v, 0
	}
	for _, name := range names {
		set, has := s.Names.Sets[NameKey{iso.Set, name}]
		if !has {
			continue
		}
		if w := s.Decide(Isolation{Set: set, Rule: iso.Rule}, peer, proto, ports); w.Allow {
			return w, name
		}
	}
	return v, 0
}

func (d *dumper) names(n *Names) {
	for _, pattern := range sortedKeys(n.Patterns, cmp.Compare[string]) {
		d.line("domain", pattern, hex(n.Patterns[pattern]))
	}
	for _, k := range sortedKeys(n.Sets, NameKey.Compare) {
		d.line("domain-set", hex(k.Set), hex(k.Name), "->", hex(n.Sets[k]))
	}
	for _, a := range n.Servers {
		d.line("dns-server", a.String(), flag(n.ExtraTTL > 0, fmt.Sprintf("extra-ttl=%d", n.ExtraTTL)))
	}
}
