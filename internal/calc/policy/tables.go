// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/subject"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// tables is what policy puts into a state, with what it was made from: a change costs what it
// changes. The number of a policy set is made from what names its policies, in their order, and
// what they find at its endpoints: a change of a rule changes what is under the set, of the
// classes that the rule is about.
type tables struct {
	ingress, egress map[netip.Addr]nodestate.Isolation // of the isolated endpoints
	policy          nodestate.Map[nodestate.PolicyKey, nodestate.PolicyValue]
	peers           nodestate.Map[netip.Addr, nodestate.Class]
	peerCIDRs       map[netip.Prefix]nodestate.Class
	ruleIDs         *ruleIDs
	staged          map[netip.Addr]nodestate.StagedIsolation
	unfit           []nodestate.Rule
	hosts           map[nodestate.HostInterface]nodestate.HostEndpoint
	hostsStaged     map[nodestate.HostInterface]nodestate.HostEndpoint
	names           nodestate.Names // patterns and sets

	subjects   *subject.Index
	setDomains bool           // compiled is of network sets that have domain names
	withStaged *subject.Index // with the staged policies in force; nil where there are none
	compiled   [directions]map[*model.Policy]*bound
	serial     int // of bounds
	limits     Limits
	// The rest is nil while nothing here is isolated.
	sets    *sets
	pods    *peer.PodIndex
	atoms   *peer.Atoms
	classes *peer.Classes
	written map[nodestate.SetID]*setEntries
	refused []nodestate.SetID // that did not fit
	// measured is how much those would take, and overdrawn says of which namespaces they are.
	measured  map[nodestate.SetID]measure
	overdrawn []nodestate.Overdrawn
	// hostOffers and tenants are the sets of host endpoints and of pods as they were offered last,
	// tenants for tenantRoom entries together.
	hostOffers, tenants []*offer
	tenantRoom          int
	tenantsChanged      bool // since asked
	// withheld are policies that are not in force, because they distinguish too many peers (see
	// Compiler.updateClassBudget).
	withheld                  map[policySide]bool
	overClasses, overNetworks []nodestate.Overdrawn
	maxNetworks               int  // networks that fit: Settings.MaxNetworks
	crowded                   bool // there are more than that: no set of pods that asks for any fits
	// hostsCrowded says that host endpoints alone ask for more than fit.
	hostsCrowded bool
	leftOut      int // classes that there were when staged policies were left out; 0 = they are not
}

func newTables(l Limits, rules *table.Table[nodestate.RuleID, nodestate.Rule]) *tables {
	return &tables{limits: l, ruleIDs: newRuleIDs(rules), peerCIDRs: map[netip.Prefix]nodestate.Class{}, names: nodestate.NewNames()}
}

// update brings the tables up to date. It reports whether the isolation of endpoints may have
// changed.
func (p *tables) update(c *cluster.View, dirty *model.Dirty) bool {
	var at []netip.Addr // whose pods changed
	if p.pods != nil {
		at = p.pods.Update(c, dirty)
	}
	p.maxNetworks = c.Settings.MaxNetworks
	if p.affected(c, dirty) {
		p.bind(c, dirty, at)
		return true
	}
	if p.sets == nil {
		return false
	}
	for n := range p.sets.named {
		if !p.atoms.KnowsPorts(n, p.pods) {
			p.bind(c, dirty, at) // such a port was not there before
			return true
		}
	}
	p.atoms.Keep()
	p.classes.Update(p.pods, p.atoms, nil, at)
	if p.writeSets() || p.classes.Len() < p.leftOut {
		p.bind(c, dirty, nil) // sets that did not fit do, or the other way round
		return true
	}
	return false
}

// affected reports whether a change may concern the sets, rather than the classes of pods
// elsewhere alone.
func (p *tables) affected(c *cluster.View, dirty *model.Dirty) bool {
	if dirty.Has(inputs) || p.sets != nil && p.atoms.Affected(c, dirty) {
		return true
	}
	if len(dirty.Pods) == 0 {
		return false
	}
	for _, ep := range c.Local.Endpoints {
		if _, ours := dirty.Pods[ep.Pod]; ours {
			return true
		}
	}
	return false
}

// bind resolves the policies that bind this node's endpoints. The pods at some addresses changed.
//
// Staged policies make classes of their own, which take room of the sets in force too. Where those
// or the classes do not fit with them, they are left out.
func (p *tables) bind(c *cluster.View, dirty *model.Dirty, at []netip.Addr) {
	if p.subjects == nil || dirty.Has(model.KindPolicies) {
		p.subjects = subject.NewIndex(c.Policies, p.subjects)
		p.stage(c)
	}
	if has := peer.SetsHaveDomains(c); dirty.Has(model.KindTiers) || has != p.setDomains {
		p.setDomains = has
		p.compiled = [directions]map[*model.Policy]*bound{}
	}
	sets := p.resolve(c, dirty, at, p.withStaged)
	p.leftOut = 0
	if len(sets.pairs)+len(sets.hostPairs) == 0 || !sets.cutOff {
		return
	}
	left := sets.leftOut()
	p.resolve(c, dirty, nil, nil)
	if p.classes != nil {
		p.leftOut = p.classes.Len()
	}
	p.unfit = sortedRules(append(slices.Clone(p.unfit), left...))
}

// resolve binds the node's endpoints and makes the tables of their sets.
func (p *tables) resolve(c *cluster.View, dirty *model.Dirty, at []netip.Addr, would *subject.Index) *sets {
	p.ingress, p.egress = map[netip.Addr]nodestate.Isolation{}, map[netip.Addr]nodestate.Isolation{}
	p.staged, p.hosts = map[netip.Addr]nodestate.StagedIsolation{}, map[nodestate.HostInterface]nodestate.HostEndpoint{}
	p.hostsStaged = map[nodestate.HostInterface]nodestate.HostEndpoint{}
	if p.sets == nil {
		p.atoms, p.classes, p.written = peer.NewAtoms(), peer.NewClasses(p.limits.Digest), map[nodestate.SetID]*setEntries{}
	}
	p.atoms.Begin(c, dirty)
	sets := p.bound(c, would, nil)
	p.compiled = sets.compiled
	if crowded := sets.withholdNetworks(p); len(crowded) > 0 {
		p.atoms.Restart()
		sets = p.bound(c, would, crowded)
		p.atoms.Settle()
	}
	if len(sets.byKey) == 0 {
		p.ruleIDs.clear()
		*p = tables{ingress: p.ingress, egress: p.egress, ruleIDs: p.ruleIDs, staged: p.staged, hosts: p.hosts, hostsStaged: p.hostsStaged, peerCIDRs: map[netip.Prefix]nodestate.Class{},
			names: nodestate.NewNames(), subjects: p.subjects, setDomains: p.setDomains, withStaged: p.withStaged, serial: p.serial, limits: p.limits, maxNetworks: p.maxNetworks,
			withheld: p.withheld, tenantsChanged: true}
		sets.isolateStaged(p)
		return sets
	}
	p.pods.KeepNumbers(sets.named)
	gone := p.atoms.End()
	sets.number(p)
	p.sets = sets
	p.classes.Update(p.pods, p.atoms, gone, at)
	p.classes.Changed = true
	p.writeSets()
	sets.isolateStaged(p)
	return sets
}

// bound finds or makes the sets of the node's endpoints, with some policies held back.
func (p *tables) bound(c *cluster.View, would *subject.Index, heldBack map[policySide]bool) *sets {
	s := newSets(c, p)
	s.staged, s.withheld = would, heldBack
	for a, ep := range c.Local.Endpoints {
		if c.Carried(a) {
			s.bind(a, ep)
		}
	}
	s.bindHosts(p)
	if len(s.byKey) > 0 && p.pods == nil {
		p.pods = peer.NewPodIndex(c)
	}
	for n := range s.named {
		p.atoms.Ports(n, p.pods)
	}
	return s
}

// overdrawnAll names the namespaces that are refused something.
func (p *tables) overdrawnAll() []nodestate.Overdrawn {
	return slices.Concat(p.overdrawn, p.overNetworks, p.overClasses)
}

// writeSets writes look-up 1 as the classes have it, and look-up 2 when sets or classes came or
// went. It reports whether other sets than before do not fit.
func (p *tables) writeSets() bool {
	p.peers, p.peerCIDRs = p.classes.OfAddrs, p.classes.OfCIDRs
	if p.crowded = len(p.peerCIDRs) > p.maxNetworks; p.crowded {
		p.peerCIDRs = p.sets.hostCIDRs(p.peerCIDRs) // of those who ask for others nobody is left
	}
	if p.hostsCrowded = len(p.peerCIDRs) > p.maxNetworks; p.hostsCrowded {
		p.peerCIDRs = map[netip.Prefix]nodestate.Class{}
	}
	if !p.classes.Changed {
		return false
	}
	p.classes.Changed = false
	before := p.refused
	p.sets.writeEntries(p)
	return !slices.Equal(before, p.refused)
}

// direction of traffic as the isolated endpoint sees it.
type direction int

const (
	ingress direction = iota
	egress
	directions
)

func (d direction) String() string { return [...]string{"ingress", "egress"}[d] }
