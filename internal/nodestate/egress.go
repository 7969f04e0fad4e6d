// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// GatewaysMost is how many egress gateways share what a pod sends.
const GatewaysMost = 8

// GatewayKey names a list of State.Gateways.
type GatewayKey struct {
	Client netip.Addr // the address of a pod
	Group  GatewayGroup
}

// Compare orders keys.
func (k GatewayKey) Compare(o GatewayKey) int {
	return cmp.Or(k.Client.Compare(o.Client), cmp.Compare(k.Group, o.Group))
}

// GatewayGroup numbers which gateways of a client are meant: those that its annotations select, or
// those of rules of an EgressGatewayPolicy. The latter number is made of what selects them, so that
// a list means the same in every state that has it.
type GatewayGroup uint64

// The groups that are not of rules.
const (
	GroupAnnotations GatewayGroup = iota
	GroupDirect                   // no gateway is needed: packets leave as those of other pods do
	GroupNone                     // no rule has the destination; no such list is there
	GroupFirst                    // the least number of a rule's
)

// EgressPolicyID numbers an EgressGatewayPolicy, by its name and all that it says: one that changes
// is another one, so that for each client all of it changes at once.
type EgressPolicyID uint64

// EgressDestination is where the packets go that a rule of an EgressGatewayPolicy is about.
type EgressDestination struct {
	Policy EgressPolicyID
	CIDR   netip.Prefix // the longest one of the policy that has the destination counts
}

// Compare orders destinations.
func (d EgressDestination) Compare(o EgressDestination) int {
	return cmp.Or(cmp.Compare(d.Policy, o.Policy), d.CIDR.Compare(o.CIDR))
}

// Egress is which gateways count where clients have an EgressGatewayPolicy.
type Egress struct {
	// Policies are those of clients, by their addresses: of the node's own pods, and of other
	// nodes' pods that have a list in State.Gateways.
	Policies map[netip.Addr]EgressPolicyID
	// Rules are those of these policies, of the families that the node carries.
	Rules map[EgressDestination]GatewayGroup
	// Names are the names of these policies. No data plane knows them.
	Names map[EgressPolicyID]string
	// Missing are the names, sorted, of policies that pods of this node name and that are not
	// there: nothing of theirs leaves.
	Missing []string
}

// NewEgress returns one without policies.
func NewEgress() Egress {
	return Egress{Policies: map[netip.Addr]EgressPolicyID{}, Rules: map[EgressDestination]GatewayGroup{}, Names: map[EgressPolicyID]string{}}
}

// Equal reports whether two are the same.
func (e *Egress) Equal(o *Egress) bool {
	return maps.Equal(e.Policies, o.Policies) && maps.Equal(e.Rules, o.Rules) && maps.Equal(e.Names, o.Names) && slices.Equal(e.Missing, o.Missing)
}

// Group returns which gateways count for what a client sends to a destination outside of the
// cluster, and the prefix of the rule that says it; invalid = no rule does.
func (e *Egress) Group(client, to netip.Addr) (group GatewayGroup, by netip.Prefix) {
	policy, has := e.Policies[client]
	if !has {
		return GroupAnnotations, netip.Prefix{}
	}
	for bits := to.BitLen(); bits >= 0; bits-- {
		cidr := netip.PrefixFrom(to, bits).Masked()
		if group, is := e.Rules[EgressDestination{policy, cidr}]; is {
			return group, cidr
		}
	}
	return GroupNone, netip.Prefix{}
}

// GatewaysOf returns the gateways by which a client's packets to a destination outside of the
// cluster leave.
func (s *State) GatewaysOf(client, to netip.Addr) []netip.Addr {
	group, _ := s.Egress.Group(client, to)
	return s.Gateways[GatewayKey{client, group}]
}

// MustLeaveByGateway reports whether what an endpoint of the node sends to a destination outside of
// the cluster leaves by a gateway, or not at all.
func (s *State) MustLeaveByGateway(client, to netip.Addr) bool {
	if !s.Addrs[client].Gateways {
		return false
	}
	group, _ := s.Egress.Group(client, to)
	return group != GroupDirect
}

func (g GatewayGroup) String() string {
	switch g {
	case GroupAnnotations:
		return "annotations"
	case GroupDirect:
		return "direct"
	case GroupNone:
		return "none"
	}
	return hex(g)
}

func (d *dumper) gateways(s *State) {
	for _, k := range sortedKeys(s.Gateways, GatewayKey.Compare) {
		of := ""
		if k.Group != GroupAnnotations {
			of = "group=" + k.Group.String()
		}
		d.line("gateways", k.Client.String(), of, fmt.Sprint(s.Gateways[k]))
	}
	e := &s.Egress
	for _, a := range sortedKeys(e.Policies, netip.Addr.Compare) {
		d.line("egress-policy", a.String(), hex(e.Policies[a]))
	}
	for _, id := range sortedKeys(e.Names, cmp.Compare[EgressPolicyID]) {
		d.line("egress-policy-name", hex(id), e.Names[id])
	}
	for _, to := range sortedKeys(e.Rules, EgressDestination.Compare) {
		d.line("egress-rule", hex(to.Policy), to.CIDR.String(), e.Rules[to].String())
	}
	for _, name := range e.Missing {
		d.line("egress-policy-missing", name)
	}
}
