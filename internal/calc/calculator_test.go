// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/calc/policy"
	"github.com/weir-net/weir/internal/calc/table"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// change does one random thing to the world and marks it.
func (w *world) change(d *model.Dirty) {
	i := w.IntN(24)
	remove := w.IntN(3) == 0
	if w.bgp.IntN(12) == 0 {
		w.addBGP()
		d.Add(model.KindBGP)
	}
	if w.later.IntN(8) == 0 {
		w.addEgressPolicy()
		d.Add(model.KindEgressPolicies)
	}
	switch pick(w, model.KindNamespaces, model.KindPods, model.KindNodes, model.KindServices, model.KindSlices, model.KindSlices,
		model.KindPolicies, model.KindPools, model.KindBlocks, model.KindSettings, model.KindLocal, model.KindTiers, model.KindNetworkSets, model.KindServiceAccounts, model.KindHostEndpoints) {
	case model.KindHostEndpoints:
		w.addHostEndpoint(i % 4)
		drop(w.c.HostEndpoints, remove)
		d.Add(model.KindHostEndpoints)
	case model.KindTiers:
		w.addTier(i)
		drop(w.c.Tiers, remove)
		d.Add(model.KindTiers)
	case model.KindNetworkSets:
		w.addNetworkSet(i % 5)
		drop(w.c.NetworkSets, remove)
		d.Add(model.KindNetworkSets)
	case model.KindServiceAccounts:
		w.addServiceAccount(i)
		drop(w.c.ServiceAccounts, remove)
		d.Add(model.KindServiceAccounts)
	case model.KindNamespaces:
		w.addNamespace(i)
		drop(w.c.Namespaces, remove)
		d.Add(model.KindNamespaces)
	case model.KindPods:
		before, was := w.c.Pods.Clone(), maps.Clone(w.c.Local.Endpoints)
		w.addPod(i)
		dropPod(w.c.Pods, remove)
		markPods(w, before, w.c.Pods, d)
		if !maps.Equal(was, w.c.Local.Endpoints) {
			d.Add(model.KindLocal)
		}
	case model.KindNodes:
		w.addNode(i % 3)
		drop(w.c.Nodes, remove)
		d.Add(model.KindNodes)
	case model.KindServices:
		before := maps.Clone(w.c.Services)
		w.addService(i % 8)
		drop(w.c.Services, remove)
		mark(w, before, w.c.Services, model.KindServices, d.AddService, d)
	case model.KindSlices:
		before := maps.Clone(w.c.Slices)
		w.addSlice(i % 12)
		drop(w.c.Slices, remove)
		mark(w, before, w.c.Slices, model.KindSlices, d.AddSlice, d)
	case model.KindPolicies:
		switch i % 3 {
		case 0:
			w.addPolicy(i % 10)
		case 1:
			w.addCalicoPolicy(i % 10)
		default:
			w.addClusterPolicy(i % 5)
		}
		if w.IntN(3) == 0 {
			w.addStaged(i % 10)
			drop(w.c.Staged, remove)
		}
		drop(w.c.Policies, remove)
		d.Add(model.KindPolicies)
	case model.KindPools:
		w.addPool(pick(w, 0, 1, 2, 3))
		drop(w.c.Pools, remove)
		d.Add(model.KindPools)
	case model.KindBlocks:
		w.addBlock(i % 8)
		drop(w.c.Blocks, remove)
		d.Add(model.KindBlocks)
		if w.claims.IntN(3) == 0 {
			w.addReservation()
			d.Add(model.KindReservations)
		}
	case model.KindSettings:
		w.c.Settings.DSR = !w.c.Settings.DSR
		w.c.Settings.VXLANMTU = pick(w, 0, 1400)
		w.c.Settings.FloatingIPs = w.c.Settings.VXLANMTU == 0
		w.c.Settings.L2Reachability = w.IntN(3) == 0
		w.c.Settings.IPv6Support = w.IntN(4) > 0
		w.c.Settings.NodePorts = model.NodePortAddresses{Primary: w.IntN(4) == 0, CIDRs: pick(w, nil, []netip.Prefix{w.cidr()}, []netip.Prefix{prefix("172.31.0.0/16"), prefix("fd00:31:1::/64")})}
		w.c.Settings.ExcludeFromNAT = pick(w, nil, nil, []netip.Prefix{prefix("10.96.0.0/30"), prefix("fd01::/126")})
		w.c.Settings.WorkloadRoutes = w.claims.IntN(3) == 0
		w.c.Settings.Egress = pick(&world{Rand: w.later}, model.EgressDisabled, model.EgressPerNamespace, model.EgressPerNamespaceOrPerPod, model.EgressPerNamespaceOrPerPod)
		w.c.Settings.ServiceExternalIPs = pick(&world{Rand: w.later}, nil, nil, []netip.Prefix{}, []netip.Prefix{prefix("198.51.100.0/24"), prefix("fd01::/112")})
		w.c.Settings.MaxNetworks = pick(w, 1<<20, 1<<20, 5)
		w.c.Settings.DSROptOut = pick(w, nil, []netip.Prefix{prefix("10.0.0.0/8"), prefix("2001:db8::/32")})
		d.Add(model.KindSettings)
	case model.KindLocal:
		drop(w.c.Local.Endpoints, remove)
		if w.IntN(4) == 0 {
			w.c.Local.Node = pick(w, "n0", "n1")
		}
		w.c.Local.LinkMTU = pick(w, 1500, 9000)
		w.c.Local.Gateways = pick(&world{Rand: w.later}, nil, []netip.Addr{addr("203.0.113.1")})
		w.c.Local.APIServers = pick(&world{Rand: w.later}, nil, []netip.AddrPort{netip.MustParseAddrPort("198.51.100.6:80")})
		w.c.Local.Silent = map[netip.Addr]bool{addr("172.31.1.11"): w.IntN(3) == 0, addr("172.31.1.12"): w.IntN(3) == 0,
			addr("fd00:31:1::11"): w.IntN(3) == 0}
		w.c.Local.Down = map[netip.Addr]bool{addr("172.31.1.11"): w.claims.IntN(3) == 0}
		w.c.Local.Neighbours = map[netip.Addr][6]byte{addr("172.31.1.11"): {2, 1, 0, 0, 0, byte(1 + w.claims.IntN(2))}}
		w.c.ServiceCIDRs = []netip.Prefix{pick(w, prefix("10.96.0.0/16"), prefix("10.96.0.0/12")), prefix("fd01::/112")}
		d.Add(model.KindLocal | model.KindServiceCIDRs)
	}
}

// drop removes something, the same for equal maps.
func drop[K comparable, V any](m map[K]V, really bool) {
	if !really || len(m) == 0 {
		return
	}
	keys := slices.SortedFunc(maps.Keys(m), func(a, b K) int { return slices.Compare([]byte(fmt.Sprint(a)), []byte(fmt.Sprint(b))) })
	delete(m, keys[len(keys)/2])
}

func dropPod(t *model.PodTable, really bool) {
	left := t.ByName()
	drop(left, really)
	for n := range t.ByName() {
		if left[n] == nil {
			t.Delete(n)
		}
	}
}

// markPods is mark for pods.
func markPods(w *world, before, after *model.PodTable, d *model.Dirty) {
	if w.IntN(6) == 0 {
		d.Add(model.KindPods)
		return
	}
	for p := range after.All() {
		if was := before.Get(p.Name); was == nil || !was.Equal(p) {
			d.AddPod(p.Name, was)
		}
	}
	for p := range before.All() {
		if after.Get(p.Name) == nil {
			d.AddPod(p.Name, p)
		}
	}
}

// mark marks by name what differs, or now and then the whole kind.
func mark[V comparable](w *world, before, after map[model.Name]V, kind model.Kind, one func(model.Name), d *model.Dirty) {
	if w.IntN(6) == 0 {
		d.Add(kind)
		return
	}
	for n, v := range after {
		if before[n] != v {
			one(n)
		}
	}
	for n := range before {
		if _, ok := after[n]; !ok {
			one(n)
		}
	}
}

// frozen is a copy of a state that notices when the state is changed after it was handed out.
type frozen struct {
	state *nodestate.State
	text  string
}

// weak says in which worlds the numbers of classes collide.
func weak(seed int) bool { return seed%5 == 2 }

// calculator returns a new one; in some worlds with numbers of classes that collide, in every other
// world with rule numbers of services that collide, in some with so little room for policy that
// some of it is refused.
func calculator(seed int) *Calculator {
	k := New()
	l := policy.NodeLimits()
	if seed%3 == 0 {
		l.Entries, l.Classes = 600, 2
	}
	if weak(seed) {
		l.Digest = func(text string) nodestate.Class {
			if strings.Contains(text, "\x00") { // hashed again
				return table.Digest64[nodestate.Class](text)
			}
			return table.Digest64[nodestate.Class](text) % 13
		}
	}
	k.policy = policy.New(&k.rules, l)
	if seed%2 == 1 {
		k.services.Ids.Digest = func(text string) nodestate.RuleID {
			return table.DigestServiceRule[nodestate.RuleID](text) % 97
		}
		if seed%4 == 1 { // hashed again they are apart
			k.services.Ids.Digest = func(text string) nodestate.RuleID {
				if text[len(text)-2] == 0 {
					return table.DigestServiceRule[nodestate.RuleID](text)
				}
				return table.DigestServiceRule[nodestate.RuleID](text) % 11
			}
		}
	}
	return k
}

func TestUpdatesEqualOneFullCalculation(t *testing.T) {
	t.Parallel()
	worlds := 40
	if testing.Short() {
		worlds = 8
	}
	for seed := range worlds {
		w := newWorld(uint64(1000 + seed))
		if seed%4 > 0 { // else start from nothing
			w.fill()
		}
		k := calculator(seed)
		last, keys := k.Update(w.c, model.Dirty{})
		if keys != nodestate.All() {
			t.Fatalf("the first update must say that all changed, says %x", keys.Tables)
		}
		kept := []frozen{{last, last.String()}}
		for step := range 40 {
			var d model.Dirty
			for range 1 + w.IntN(3) {
				w.change(&d)
			}
			got, keys := k.Update(w.c, d)
			want, _ := calculator(seed).Update(w.c, model.AllDirty())
			if !nodestate.Equal(got, want) {
				t.Fatalf("seed %d step %d, dirty %+v: - updated, + calculated anew\n%s", seed, step, d, nodestate.Diff(got, want))
			}
			if text := got.String(); text != want.String() {
				t.Fatalf("seed %d step %d: equal states, different texts", seed, step)
			}
			checkKeys(t, last, got, keys)
			last = got
			kept = append(kept, frozen{got, got.String()})
		}
		for i, f := range kept {
			if f.state.String() != f.text {
				t.Fatalf("seed %d: the state of step %d changed after it was handed out", seed, i)
			}
		}
	}
}

// checkKeys holds that exactly the tables that differ are named.
func checkKeys(t *testing.T, a, b *nodestate.State, keys nodestate.Keys) {
	t.Helper()
	part := func(s *nodestate.State, table nodestate.Table) string {
		p := nodestate.New()
		switch table {
		case nodestate.TableSettings:
			p.Settings = s.Settings
		case nodestate.TableAddrs:
			p.Addrs = s.Addrs
		case nodestate.TableRoutes:
			p.Routes = s.Routes
		case nodestate.TableServices:
			p.Frontends, p.Backends, p.SourceRanges, p.HealthChecks, p.Refused = s.Frontends, s.Backends, s.SourceRanges, s.HealthChecks, s.Refused
		case nodestate.TablePolicy:
			p.Peers, p.PeerCIDRs, p.Policy, p.HostEndpoints = s.Peers, s.PeerCIDRs, s.Policy, s.HostEndpoints
		case nodestate.TableStaged:
			p.Staged, p.HostStaged, p.Unfit, p.Overdrawn = s.Staged, s.HostStaged, s.Unfit, s.Overdrawn
		case nodestate.TableClients:
			p.Clients = s.Clients
		case nodestate.TableRules:
			p.Rules = s.Rules
		case nodestate.TableAnnounced:
			p.Announced, p.Watched = s.Announced, s.Watched
		case nodestate.TableWireGuard:
			p.WireGuard4, p.WireGuard6 = s.WireGuard4, s.WireGuard6
		case nodestate.TableBGP:
			p.BGP = s.BGP
		case nodestate.TableQoS:
			p.QoS = s.QoS
		case nodestate.TableNames:
			p.Names = s.Names
		case nodestate.TableSources:
			p.Sources = s.Sources
		case nodestate.TableFloating:
			p.Floating = s.Floating
		case nodestate.TableGateways:
			p.Gateways, p.Egress, p.Probed = s.Gateways, s.Egress, s.Probed
		}
		return p.String()
	}
	for table := nodestate.TableSettings; table < nodestate.AllTables; table <<= 1 {
		if differs := part(a, table) != part(b, table); differs != keys.Has(table) {
			t.Fatalf("table %x: differs=%t, hinted=%t", table, differs, keys.Has(table))
		}
	}
}

func TestNothingChangedGivesTheSameState(t *testing.T) {
	t.Parallel()
	c := newWorld(7).fill()
	k := New()
	first, _ := k.Update(c, model.AllDirty())
	again, keys := k.Update(c, model.AllDirty())
	if again != first || keys.Tables != 0 {
		t.Fatalf("got another state (%t) with keys %x", again != first, keys.Tables)
	}
}

// TestOrderDoesNotMatter builds one cluster in several orders, with detours, and wants one state.
func TestOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	for seed := range 20 {
		full := newWorld(uint64(2000 + seed)).fill()
		want := Calc(full)
		for order := range 3 {
			got := buildInOrder(full, rand.New(rand.NewPCG(uint64(seed), uint64(order))))
			if !nodestate.Equal(got, want) {
				t.Fatalf("seed %d order %d:\n%s", seed, order, nodestate.Diff(got, want))
			}
		}
	}
}

// buildInOrder adds the objects of a cluster one by one in a random order, some of them twice with
// a removal between.
func buildInOrder(full *model.Cluster, r *rand.Rand) *nodestate.State {
	c := model.NewCluster()
	c.Settings, c.Reservations = full.Settings, full.Reservations
	c.Local = full.Local
	c.Local.Endpoints = map[netip.Addr]*model.LocalEndpoint{}
	var steps []func() model.Dirty
	var undo []func() model.Dirty
	steps, undo = collect(steps, undo, full.Namespaces, c.Namespaces, model.KindNamespaces)
	steps, undo = collectPods(steps, undo, full.Pods, c.Pods)
	steps, undo = collect(steps, undo, full.Nodes, c.Nodes, model.KindNodes)
	steps, undo = collect(steps, undo, full.Services, c.Services, model.KindServices)
	steps, undo = collect(steps, undo, full.Slices, c.Slices, model.KindSlices)
	steps, undo = collect(steps, undo, full.Policies, c.Policies, model.KindPolicies)
	steps, undo = collect(steps, undo, full.Staged, c.Staged, model.KindPolicies)
	steps, undo = collect(steps, undo, full.Tiers, c.Tiers, model.KindTiers)
	steps, undo = collect(steps, undo, full.NetworkSets, c.NetworkSets, model.KindNetworkSets)
	steps, undo = collect(steps, undo, full.ServiceAccounts, c.ServiceAccounts, model.KindServiceAccounts)
	steps, undo = collect(steps, undo, full.HostEndpoints, c.HostEndpoints, model.KindHostEndpoints)
	steps, undo = collect(steps, undo, full.Pools, c.Pools, model.KindPools)
	steps, undo = collect(steps, undo, full.BGPConfigs, c.BGPConfigs, model.KindBGP)
	steps, undo = collect(steps, undo, full.EgressPolicies, c.EgressPolicies, model.KindEgressPolicies)
	steps, undo = collect(steps, undo, full.Blocks, c.Blocks, model.KindBlocks)
	steps, undo = collect(steps, undo, full.Local.Endpoints, c.Local.Endpoints, model.KindLocal)
	k := New()
	var s *nodestate.State
	for _, i := range r.Perm(len(steps)) {
		d := steps[i]()
		s, _ = k.Update(c, d)
		if r.IntN(5) == 0 {
			k.Update(c, undo[i]())
			s, _ = k.Update(c, steps[i]())
		}
	}
	return s
}

// collectPods is collect for pods.
func collectPods(steps, undo []func() model.Dirty, from, to *model.PodTable) (s, u []func() model.Dirty) {
	change := func(name model.Name, now *model.Pod) func() model.Dirty {
		return func() model.Dirty {
			ch := model.Changes{Pods: map[model.Name]*model.Pod{name: now}}
			return ch.Apply(&model.Cluster{Pods: to})
		}
	}
	pods := slices.SortedFunc(from.All(), func(a, b *model.Pod) int { return strings.Compare(a.Name.String(), b.Name.String()) })
	for _, p := range pods {
		steps, undo = append(steps, change(p.Name, p)), append(undo, change(p.Name, nil))
	}
	return steps, undo
}

func collect[K comparable, V any](steps, undo []func() model.Dirty, from, to map[K]V, kind model.Kind) (s, u []func() model.Dirty) {
	dirty := func(key K) model.Dirty {
		var d model.Dirty
		name, named := any(key).(model.Name)
		switch {
		case named && kind == model.KindServices:
			d.AddService(name)
		case named && kind == model.KindSlices:
			d.AddSlice(name)
		default:
			d.Add(kind)
		}
		return d
	}
	for _, key := range slices.SortedFunc(maps.Keys(from), func(a, b K) int { return slices.Compare([]byte(fmt.Sprint(a)), []byte(fmt.Sprint(b))) }) {
		steps = append(steps, func() model.Dirty { to[key] = from[key]; return dirty(key) })
		undo = append(undo, func() model.Dirty { delete(to, key); return dirty(key) })
	}
	return steps, undo
}

// TestNumberOfAClassThatGoesIsTaken holds that a class which comes while another one goes keeps its
// entries although it has that one's number, in whatever order they are looked at.
func TestNumberOfAClassThatGoesIsTaken(t *testing.T) {
	t.Parallel()
	const seed = 142 // numbers collide, and the staged policies are taken in and left out again
	w := newWorld(9000 + seed)
	w.fill()
	var d model.Dirty
	for range 7 {
		w.change(&d)
	}
	want, _ := calculator(seed).Update(w.c, model.AllDirty())
	for range 200 { // one in 30 was wrong
		if got, _ := calculator(seed).Update(w.c, model.AllDirty()); !nodestate.Equal(got, want) {
			t.Fatalf("one cluster, two states:\n%s", nodestate.Diff(got, want))
		}
	}
}

// Which rules a namespace's pods are held against follows its labels, also where these change while
// it has no pods, and the rules that there are.
func TestNamespaceChangesWithoutPods(t *testing.T) {
	t.Parallel()
	c := base()
	run(c, "default", "server", "worker", "10.244.1.5", app("server"))
	run(c, "other", "client", "far", "10.244.2.9", app("client"))
	p := tenantPolicy("default", "blue", model.Selector{Namespace: "default"})
	p.AppliesEgress = false
	p.Ingress = []model.Rule{{Peers: []model.Peer{{Pods: &model.Selector{Namespaces: equals("team", "blue"), Pods: equals("app", "client")}}}}}
	c.Policies[p.ID()] = p
	k := New()
	k.Update(c, model.AllDirty())
	client := name("other", "client")
	put := func(labels map[string]string) (d model.Dirty) {
		d.AddPod(client, c.Pods.Get(client))
		c.Pods.Put(&model.Pod{Name: client, Node: "far", Addrs: []netip.Addr{addr("10.244.2.9")}, Labels: labels})
		return d
	}
	for _, step := range []struct {
		what string
		do   func() model.Dirty
		want bool
	}{
		{"the client gets another label", func() model.Dirty { return put(app("other")) }, false},
		{"and its own again, in a namespace of another team", func() model.Dirty { return put(app("client")) }, false},
		{"the client goes", func() (d model.Dirty) {
			d.AddPod(client, c.Pods.Get(client))
			c.Pods.Delete(client)
			return d
		}, false},
		{"its namespace changes team", func() (d model.Dirty) {
			c.Namespaces["other"] = &model.Namespace{Name: "other", Labels: map[string]string{"team": "blue"}}
			d.Add(model.KindNamespaces)
			return d
		}, false},
		{"the client comes again", func() model.Dirty { return put(app("client")) }, true},
		{"it gets another label", func() model.Dirty { return put(app("other")) }, false},
		{"the rule is about these now", func() (d model.Dirty) {
			q := *p
			q.Ingress = []model.Rule{{Peers: []model.Peer{{Pods: &model.Selector{Namespaces: equals("team", "blue"), Pods: equals("app", "third")}}}}}
			c.Policies[q.ID()] = &q
			d.Add(model.KindPolicies)
			return d
		}, false},
		{"which the client is", func() model.Dirty { return put(app("third")) }, true},
	} {
		s, _ := k.Update(c, step.do())
		allow, _ := s.Verdict(s.Addrs[addr("10.244.1.5")].Ingress, addr("10.244.2.9"), model.ProtocolTCP, nodestate.Ports{Src: 40000, Dst: 80})
		if allow != step.want {
			t.Errorf("%s: the client is let in: %t, want %t", step.what, allow, step.want)
		}
	}
}
