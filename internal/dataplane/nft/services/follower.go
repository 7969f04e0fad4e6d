// SPDX-License-Identifier: Apache-2.0

// Package services follows the Services of a state and wants the elements and chains by which
// nftables finds a backend. There are three steps, none of which depends on how many Services there
// are: the frontend gives the number of a list of backends (as the packet's priority), the list's
// number the chain for its length, and that chain a random slot of it the backend. An endpoint that
// comes or goes is two or three elements, whatever the Service has; chains exist for each length in
// use, and have one rule. Affinity, consistent hashing and the flows that end with their backend
// belong to it.
package services

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/dataplane/nft/expr"
	"github.com/weir-net/weir/internal/dataplane/nft/marks"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Sets and maps of Services.
const (
	MapServices        = "services"         // address . protocol . port → list
	MapServicesOutside = "services-outside" // the same for clients outside
	MapPorts           = "node-ports"       // protocol . port → list
	MapPortsOutside    = "node-ports-outside"
	SetPortsLocal      = "node-ports-local" // with externalTrafficPolicy Local: for other nodes to evaluate on their addresses
	MapHostPorts       = "host-ports"       // on every address of the node
	MapLoopback        = "loopback-ports"   // address . protocol . port → list: host ports at loopback addresses
	MapLists           = "lists"            // list → chain
	MapRanged          = "ranged-lists"     // the same, of ports with source ranges
	MapBackends        = "backends"         // list . slot → address . port
	MapSlots           = "affine-slots"     // list . slot → number of a backend; of Services with affinity
	MapRemote          = "homes"            // list . slot (or number) → mark of the node where the backend is
	MapLive            = "affine-backends"  // list . number → address . port
	MapAffinity        = "affinity"         // list . client → number
	SetRanges          = "source-ranges"    // frontend . prefix
	MapRefused         = "refused"          // frontends without any backend
	MapRefusedPorts    = "refused-ports"
)

// The lists of a service port have numbers that differ in these bits: that of all backends has
// none, that of this node's own has LocalList, and that for clients outside, of whom those for
// backends on other nodes are handed on, has HandList. Those that choose by consistent hashing have
// HashList, too.
const (
	LocalList = 1
	HandList  = 2
	HashList  = 4
	// RestrictedBit leads by the source ranges of a frontend to the list without it.
	RestrictedBit = 8
	listBits      = LocalList | HandList | HashList | RestrictedBit
)

// affinitySize bounds how many clients are remembered: bpfMapSizeNATAffinity's default.
const affinitySize = 65536

// Sink takes elements and chains.
type Sink interface {
	Set(set, key, value string)
	Unset(set, key string)
	// Pick desires the chains that choose among n backends; affinity in seconds, 0 = none.
	Pick(name string, rules []string)
	Unpick(name string)
}

// Follower follows the Services of a family.
type Follower struct {
	f              table.Family
	ports          map[nodestate.Frontend]*port // by id
	taken          map[uint32]nodestate.Frontend
	nodes          *marks.Numbers
	remotePrefixes map[netip.Prefix]int // what is on other nodes: the node's number
	picks          map[string]int       // how many lists use each chain
	proxied        bool                 // a kube-proxy carries Services (kube_proxy.go)
	endings        endings              // flows that are to end
	floating       floatingFlows        // those of floating addresses that go elsewhere

	dsr           bool // what Services do that do not say
	seenFrontends nodestate.Map[nodestate.Frontend, nodestate.Service]
	seenBackends  nodestate.Map[nodestate.Frontend, []nodestate.Backend]
	seenRanges    nodestate.Map[nodestate.Frontend, []netip.Prefix]
}

// port is a service port as it was rendered last.
type port struct {
	number         uint32 // of the list of all; with LocalList of the local one
	faces          map[nodestate.Frontend]nodestate.Service
	cluster, local []netip.AddrPort       // by slot
	remote         map[netip.AddrPort]int // of backends on other nodes: the node's number
	live           map[netip.AddrPort]bool
	ranges         []netip.Prefix
	// proxied: a kube-proxy carries it (kube_proxy.go).
	proxied bool

	table   []netip.AddrPort          // of consistent hashing, by slot; nil = there is none
	numbers map[netip.AddrPort]uint32 // of backends where there is one
}

// New follows no Services yet; n are the numbers of other nodes.
func New(f table.Family, n *marks.Numbers) *Follower {
	return &Follower{f: f, nodes: n, endings: endings{}, ports: map[nodestate.Frontend]*port{}, taken: map[uint32]nodestate.Frontend{}, picks: map[string]int{}}
}

// Follow desires what differs from the state that was followed before.
func (v *Follower) Follow(s *nodestate.State, to Sink) {
	v.floating.follow(s)
	faces := map[nodestate.Frontend][]nodestate.Frontend{} // touched, by id
	if v.proxied != s.Settings.KubeProxy {
		v.proxied = s.Settings.KubeProxy
		for f, svc := range s.Frontends.All() {
			if v.renders(f) {
				faces[svc.ID] = append(faces[svc.ID], f)
			}
		}
	}
	if v.dsr != s.Settings.DSR {
		v.updateMode(s.Settings.DSR, to)
	}
	for f, c := range nodestate.Changes(v.seenFrontends, s.Frontends, func(a, b nodestate.Service) bool { return a == b }) {
		if c.Was && v.renders(f) {
			faces[c.Before.ID] = append(faces[c.Before.ID], f)
		}
		if c.Is && v.renders(f) && (!c.Was || c.After.ID != c.Before.ID) {
			faces[c.After.ID] = append(faces[c.After.ID], f)
		}
	}
	for id := range nodestate.Changes(v.seenBackends, s.Backends, slices.Equal[[]nodestate.Backend]) {
		faces[id] = append(faces[id], nil...)
	}
	for id := range nodestate.Changes(v.seenRanges, s.SourceRanges, slices.Equal[[]netip.Prefix]) {
		faces[id] = append(faces[id], nil...)
	}
	if homes := remotePrefixesOf(v.f, s, v.nodes); !maps.Equal(homes, v.remotePrefixes) {
		v.remotePrefixes = homes
		for id := range v.ports {
			faces[id] = append(faces[id], nil...)
		}
	}
	ids := make([]nodestate.Frontend, 0, len(faces))
	for id := range faces {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareFrontends)
	for _, id := range ids {
		v.updatePort(s, id, faces[id], to)
	}
	v.seenFrontends, v.seenBackends, v.seenRanges = s.Frontends, s.Backends, s.SourceRanges
}

// renders reports whether a frontend is one of the table's.
func (v *Follower) renders(f nodestate.Frontend) bool { return v.f.Has(f.Addr) }

// Render adds everything to a table.
func (v *Follower) Render(t *table.Table, s *nodestate.State) { v.Follow(s, tableSink{t}) }

func compareFrontends(a, b nodestate.Frontend) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
}

// updatePort brings a service port up to date; touched are the frontends that are or were its own.
func (v *Follower) updatePort(s *nodestate.State, id nodestate.Frontend, touched []nodestate.Frontend, to Sink) {
	p := v.ports[id]
	if p == nil {
		p = &port{faces: map[nodestate.Frontend]nodestate.Service{}}
	}
	before, chainsBefore, tableBefore := v.elements(p), v.chains(p), p.tableOf()
	p.proxied = v.proxied
	faces := maps.Clone(p.faces)
	for _, f := range touched {
		if svc, ok := s.Frontends.Get(f); ok && svc.ID == id {
			p.faces[f] = svc
		} else {
			delete(p.faces, f)
		}
	}
	now := s.Backends.At(id)
	maps.Copy(faces, p.faces) // after a restart those of before are not known
	live := v.live(now)
	v.noteGone(id, p.live, live, faces)
	p.live = live
	clusterBefore := p.cluster
	p.cluster = place(p.cluster, v.list(now, false))
	p.local = place(p.local, v.list(now, true))
	p.plan(clusterBefore)
	homes := v.remoteBackends(p)
	v.noteLeft(id, p.remote, homes, faces)
	p.remote = homes
	p.ranges = s.SourceRanges.At(id)
	if len(p.faces) == 0 {
		v.noteGone(id, p.live, nil, faces)
		v.noteLeft(id, p.remote, nil, faces)
		p.cluster, p.local, p.remote, p.ranges, p.live, p.table, p.numbers = nil, nil, nil, nil, nil, nil, nil
		if p.number != 0 {
			delete(v.taken, p.number)
		}
		delete(v.ports, id)
	} else {
		if p.number == 0 {
			p.number = v.number(id)
		}
		v.ports[id] = p
	}
	after, chainsAfter := v.elements(p), v.chains(p)
	for k := range before {
		if _, ok := after[k]; !ok {
			to.Unset(k.set, k.key)
		}
	}
	v.countChains(chainsBefore, chainsAfter, to)
	updateSlots(tableBefore, p.tableOf(), to)
	for k, value := range after {
		to.Set(k.set, k.key, value)
	}
}

// countChains follows which chains are in use.
func (v *Follower) countChains(before, after map[string][]string, to Sink) {
	for name, rules := range after {
		if _, was := before[name]; was {
			continue
		}
		if v.picks[name]++; v.picks[name] == 1 {
			to.Pick(name, rules)
		}
	}
	for name := range before {
		if _, is := after[name]; is {
			continue
		}
		if v.picks[name]--; v.picks[name] == 0 {
			delete(v.picks, name)
			to.Unpick(name)
		}
	}
}

// number gives an id a number for its lists: without listBits, not 0, made from the id.
func (v *Follower) number(id nodestate.Frontend) uint32 {
	b := id.Addr.AsSlice()
	b = append(b, byte(id.Port>>8), byte(id.Port), byte(id.Proto))
	n := table.Hash32(b) &^ listBits
	for {
		if _, ok := v.taken[n]; !ok && n != 0 && n != ^uint32(listBits) { // "none" and "root" to nft
			v.taken[n] = id
			return n
		}
		n += listBits + 1
	}
}

// list returns the backends of one list, of the family.
func (v *Follower) list(all []nodestate.Backend, local bool) []netip.AddrPort {
	var out []netip.AddrPort
	for _, b := range all {
		if b.InList(local) && v.f.Has(b.Addr) {
			out = append(out, netip.AddrPortFrom(b.Addr, b.Port))
		}
	}
	return out
}

// affinity is how long clients keep their backend, seconds; 0 = not at all.
func (p *port) affinity() (seconds uint32) {
	for _, svc := range p.faces {
		seconds = max(seconds, svc.Affinity)
	}
	return seconds
}

// direct reports whether answers to outside clients go directly to them.
func (p *port) direct(otherwise bool) bool {
	for _, svc := range p.faces {
		switch svc.Mode {
		case model.ExternalModeDSR:
			return true
		case model.ExternalModeTunnel:
			return false
		}
	}
	return otherwise
}

// restricted reports whether a frontend has source ranges.
func (p *port) restricted() bool {
	for f, svc := range p.faces {
		if svc.Restricted && !f.Addr.IsUnspecified() {
			return true
		}
	}
	return false
}

// updateMode follows the mode of Services that have none of their own.
func (v *Follower) updateMode(dsr bool, to Sink) {
	for _, p := range v.ports {
		before := v.elements(p)
		v.dsr = dsr
		for k := range v.elements(p) {
			if _, ok := before[k]; !ok {
				to.Set(k.set, k.key, "")
			}
			delete(before, k)
		}
		for k := range before {
			to.Unset(k.set, k.key)
		}
		v.dsr = !dsr
	}
	v.dsr = dsr
}

// listText is the number of a list as nft writes a priority.
func listText(n uint32) string { return fmt.Sprintf("%x:%x", n>>16, n&0xffff) }

type elementKey struct{ set, key string }

// elements are those of a port as it is.
func (v *Follower) elements(p *port) map[elementKey]string {
	out := map[elementKey]string{}
	if p.number == 0 || len(p.faces) == 0 {
		return out
	}
	for f, svc := range p.faces {
		v.face(p, f, svc, out)
	}
	for _, l := range p.lists() {
		v.listElements(p, l, out)
	}
	return out
}

// list is one of a service port.
type list struct {
	number uint32
	slots  []netip.AddrPort
}

// lists are those of a port; none while it has no number.
func (p *port) lists() []list {
	if p.number == 0 || len(p.faces) == 0 {
		return nil
	}
	out := []list{{p.number, p.cluster}, {p.number | LocalList, p.local}}
	switch {
	case p.hashed():
		out = append(out, p.hashLists()...)
	case p.handsOn():
		out = append(out, list{p.number | HandList, p.cluster})
	}
	return p.kubeProxyLists(out)
}

// listElements adds the elements of one list.
func (v *Follower) listElements(p *port, l list, out map[elementKey]string) {
	n := listText(l.number)
	at := []string{MapLists}
	if p.restricted() {
		at = append(at, MapRanged)
		out[elementKey{MapLists, listText(l.number | RestrictedBit)}] = "goto " + RangesChain
	}
	for _, at := range at {
		switch {
		case len(l.slots) > 0:
			out[elementKey{at, n}] = "goto " + p.pickName(l)
		case len(p.cluster) > 0 || p.proxied:
			out[elementKey{at, n}] = "drop" // no local backend, while others have some
		}
	}
	if l.number&listBits != 0 && len(l.slots) > 0 && p.direct(v.dsr) {
		out[elementKey{expr.SetDirect, n}] = ""
	}
	if l.number&HashList != 0 {
		v.hashElements(p, l, out)
		return
	}
	var ids []uint32
	if p.affinity() > 0 {
		ids = backendNumbers(l.slots)
	}
	for slot, b := range l.slots {
		at, in := MapBackends, uint32(slot)
		if ids != nil {
			at, in = MapLive, ids[slot]
			out[elementKey{MapSlots, table.Key(n, slot)}] = fmt.Sprint(in)
		}
		out[elementKey{at, table.Key(n, in)}] = table.Key(b.Addr(), b.Port())
		if home := p.remote[b]; home > 0 && l.number&HandList != 0 {
			out[elementKey{MapRemote, table.Key(n, in)}] = fmt.Sprint(uint32(home)<<marks.NodeShift | marks.HandedBit)
		}
	}
}

// face adds the elements of one frontend.
func (v *Follower) face(p *port, f nodestate.Frontend, svc nodestate.Service, out map[elementKey]string) {
	inside, outside := p.number, p.number
	if svc.LocalPolicy {
		outside |= LocalList
		if !svc.External {
			inside |= LocalList
		}
	}
	switch {
	case svc.Maglev && p.hashed():
		inside, outside = inside|HashList, outside|HashList|HandList
	case svc.External && !svc.LocalPolicy && p.handsOn():
		outside |= HandList
	}
	restricted := svc.Restricted && !f.Addr.IsUnspecified()
	if restricted {
		inside, outside = inside|RestrictedBit, outside|RestrictedBit
	}
	at, there, k := MapServices, MapServicesOutside, table.Key(f.Addr, f.Proto, f.Port)
	switch {
	case f.Addr.IsLoopback():
		at, there = MapLoopback, ""
	case f.Addr.IsUnspecified():
		at, there, k = MapPorts, MapPortsOutside, table.Key(f.Proto, f.Port)
		if svc.LocalOnly {
			at, there = MapHostPorts, ""
		}
	}
	at, there = p.kubeProxyMaps(at, there, svc.LocalOnly)
	if at != "" && f.Addr.IsUnspecified() && svc.LocalPolicy {
		out[elementKey{SetPortsLocal, k}] = ""
	}
	if at != "" && at != MapLoopback && len(p.cluster)+len(p.local) == 0 {
		refused := MapRefused
		if f.Addr.IsUnspecified() {
			refused = MapRefusedPorts
		}
		out[elementKey{refused, k}] = "goto refused"
	}
	for name, number := range map[string]uint32{at: inside, there: outside} {
		if name != "" {
			out[elementKey{name, k}] = listText(number)
		}
	}
	if restricted {
		for _, r := range table.DisjointOf(v.f, p.ranges) {
			out[elementKey{SetRanges, k + " . " + table.PrefixText(r)}] = ""
		}
	}
}

// tableSink writes into a Table.
type tableSink struct{ t *table.Table }

// Set implements Sink.
func (s tableSink) Set(set, key, value string) { s.t.Add(set, key, value) }

// Unset implements Sink.
func (s tableSink) Unset(set, key string) { delete(s.t.Elements[set], key) }

// Pick implements Sink.
func (s tableSink) Pick(name string, rules []string) { s.t.Chains[name] = table.Chain{Rules: rules} }

// Unpick implements Sink.
func (s tableSink) Unpick(name string) { delete(s.t.Chains, name) }
