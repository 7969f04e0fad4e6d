// SPDX-License-Identifier: Apache-2.0

// Package conformance is what every driver must do, as tests. A driver's own tests call Run with a
// way to open it; each open within one test works on the same kernel objects, as a restarted agent
// does.
package conformance

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// Instance is an open driver with what the tests must see of it.
type Instance interface {
	dataplane.Driver
	// Load reads from the kernel what state it carries. What a kernel does not hold (owners, the
	// words of rules) is empty.
	Load() (*nodestate.State, error)
	// Writes returns how many entries were written or deleted since the instance was opened.
	Writes() uint64
}

// Bench prepares kernel objects for one test and opens drivers on them. Interfaces returns
// host-side interfaces that exist, for endpoints.
type Bench interface {
	Open(t *testing.T) Instance
	Interfaces() []Interface
}

// Interface is one host-side interface.
type Interface struct {
	Name  string
	Index int
}

// Run runs the suite. newBench makes a Bench that cleans up after itself.
func Run(t *testing.T, newBench func(t *testing.T) Bench) {
	for _, tt := range []struct {
		name string
		run  func(*testing.T, Bench)
	}{
		{"what is applied is what is there", testRoundTrip},
		{"the same state again writes nothing", testIdempotent},
		{"a restart writes nothing", testRestart},
		{"IPv6 comes and goes", testIPv6},
		{"changes one by one end where everything at once does", testIncremental},
		{"a restart with another state writes only differences", testRestartDifferent},
		{"one endpoint's change is a few writes", testOneEndpoint},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, newBench(t)) })
	}
}

func testRoundTrip(t *testing.T, b Bench) {
	d := b.Open(t)
	for seed := range uint64(5) {
		s := Random(seed, b.Interfaces())
		apply(t, d, s, nodestate.All())
		same(t, d, s)
	}
}

func testIdempotent(t *testing.T, b Bench) {
	d := b.Open(t)
	s := Random(1, b.Interfaces())
	apply(t, d, s, nodestate.All())
	before := d.Writes()
	apply(t, d, s, nodestate.All())
	apply(t, d, clone(s), nodestate.All())
	if n := d.Writes() - before; n != 0 {
		t.Errorf("%d writes for a state that was in place", n)
	}
}

func testRestart(t *testing.T, b Bench) {
	s := Random(2, b.Interfaces())
	d := b.Open(t)
	apply(t, d, s, nodestate.All())
	reopened := reopen(t, b, d)
	apply(t, reopened, clone(s), nodestate.All())
	if n := reopened.Writes(); n != 0 {
		t.Errorf("%d writes after a restart with the same state", n)
	}
	same(t, reopened, s)
}

func testRestartDifferent(t *testing.T, b Bench) {
	d := b.Open(t)
	apply(t, d, Random(3, b.Interfaces()), nodestate.All())
	d = reopen(t, b, d)
	s := Random(4, b.Interfaces())
	apply(t, d, s, nodestate.All())
	same(t, d, s)
}

func testIncremental(t *testing.T, b Bench) {
	d := b.Open(t)
	r := rand.New(rand.NewPCG(11, 11))
	s := Random(5, b.Interfaces())
	apply(t, d, s, nodestate.All())
	for seed := range uint64(30) {
		other, before := Random(100+seed, b.Interfaces()), s
		s = clone(s)
		var keys nodestate.Keys
		for _, tab := range []nodestate.Table{
			nodestate.TableSettings, nodestate.TableAddrs, nodestate.TableRoutes,
			nodestate.TableServices, nodestate.TablePolicy, nodestate.TableClients,
		} {
			if r.IntN(3) == 0 {
				copyTable(s, other, tab)
				keys.Tables |= tab
			}
		}
		if !s.Settings.IPv6 {
			s = WithoutIPv6(s)
		}
		if s.Settings.IPv6 != before.Settings.IPv6 {
			keys = nodestate.All()
		}
		apply(t, d, s, keys)
		same(t, d, s)
	}
}

// testIPv6: a node begins to carry IPv6, is restarted with it, stops, and is restarted without.
func testIPv6(t *testing.T, b Bench) {
	d := b.Open(t)
	r := rand.New(rand.NewPCG(7, 7))
	with := Random(8, b.Interfaces())
	if !with.Settings.IPv6 {
		addIPv6(r, with)
	}
	without := WithoutIPv6(with)
	for range 2 {
		apply(t, d, without, nodestate.All())
		same(t, d, without)
		apply(t, d, with, nodestate.All())
		same(t, d, with)
	}
	d = reopen(t, b, d)
	apply(t, d, clone(with), nodestate.All())
	if n := d.Writes(); n != 0 {
		t.Errorf("%d writes after a restart with the same state of both families", n)
	}
	same(t, d, with)
	d = reopen(t, b, d)
	apply(t, d, without, nodestate.All())
	if n := d.Writes(); n != 0 {
		t.Errorf("%d writes after a restart whose state has no IPv6 any more", n)
	}
	same(t, d, without)
	apply(t, d, with, nodestate.All())
	same(t, d, with)
}

func testOneEndpoint(t *testing.T, b Bench) {
	d := b.Open(t)
	s := nodestate.New()
	s.Settings = settings()
	id := nodestate.Frontend{Addr: addr(10, 96, 0, 1), Port: 80, Proto: model.ProtocolTCP}
	s.Frontends.Set(id, nodestate.Service{ID: id, Rule: 1})
	var list []nodestate.Backend
	for i := range 1000 {
		list = append(list, nodestate.Backend{Addr: addr(10, 244, byte(i>>8), byte(i)), Port: 8080})
	}
	s.Backends.Set(id, list)
	apply(t, d, s, nodestate.All())
	for name, change := range map[string]func([]nodestate.Backend) []nodestate.Backend{
		"removed": func(l []nodestate.Backend) []nodestate.Backend { return slices.Delete(l, 400, 401) },
		"added": func(l []nodestate.Backend) []nodestate.Backend {
			return append(l, nodestate.Backend{Addr: addr(10, 244, 9, 9), Port: 8080})
		},
	} {
		s = clone(s)
		s.Backends.Set(id, change(slices.Clone(s.Backends.At(id))))
		before := d.Writes()
		apply(t, d, s, nodestate.Keys{Tables: nodestate.TableServices})
		// The slot, the count, the slot that is no longer used, the epoch.
		if n := d.Writes() - before; n > 4 {
			t.Errorf("%s: %d writes for one endpoint of 1000", name, n)
		}
		same(t, d, s)
	}
}

func reopen(t *testing.T, b Bench, d Instance) Instance {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatalf("closing: %v", err)
	}
	return b.Open(t)
}

func apply(t *testing.T, d Instance, s *nodestate.State, keys nodestate.Keys) {
	t.Helper()
	if err := d.Apply(context.Background(), s, keys); err != nil {
		t.Fatalf("applying: %v", err)
	}
}

// same fails when what the kernel holds is not s.
func same(t *testing.T, d Instance, s *nodestate.State) {
	t.Helper()
	got, err := d.Load()
	if err != nil {
		t.Fatalf("reading back: %v", err)
	}
	want := visible(s)
	for _, part := range []struct {
		name      string
		got, want any
	}{
		{"settings", got.Settings, want.Settings}, {"addrs", got.Addrs, want.Addrs}, {"routes", got.Routes, want.Routes},
		{"frontends", plain(got.Frontends), plain(want.Frontends)}, {"backends", plain(got.Backends), plain(want.Backends)},
		{"peers", plain(got.Peers), plain(want.Peers)},
		{"peer CIDRs", got.PeerCIDRs, want.PeerCIDRs}, {"policy", plain(got.Policy), plain(want.Policy)}, {"clients", got.Clients, want.Clients},
	} {
		if !reflect.DeepEqual(part.got, part.want) {
			t.Fatalf("%s:\n got %s\nwant %s", part.name, brief(part.got), brief(part.want))
		}
	}
}

func brief(v any) string {
	s := fmt.Sprintf("%v", v)
	if len(s) > 1500 {
		s = s[:1500] + "…"
	}
	return s
}

// visible returns the part of s that a kernel can hold.
func visible(s *nodestate.State) *nodestate.State {
	v := clone(s)
	v.Rules = nodestate.Map[nodestate.RuleID, nodestate.Rule]{}
	v.HealthChecks = nodestate.Map[model.Name, nodestate.HealthCheck]{}
	v.Refused = nodestate.Map[nodestate.Object, []nodestate.Refusal]{}
	clear(v.Watched)
	v.Settings = nodestate.Settings{
		Node: s.Settings.Node, Node6: s.Settings.Node6, IPv6: s.Settings.IPv6, DSR: s.Settings.DSR, DSROptOut: s.Settings.DSROptOut, HostNAT: s.Settings.HostNAT, ToHost: s.Settings.ToHost, ConnectTime: s.Settings.ConnectTime,
		SNATFirst: s.Settings.SNATFirst, SNATLast: s.Settings.SNATLast, Tunnel: s.Settings.Tunnel,
	}
	if v.Settings.ToHost == "" {
		v.Settings.ToHost = model.ToHostAccept
	}
	for k, h := range v.HostEndpoints {
		h.Name = ""
		v.HostEndpoints[k] = h
	}
	for k, a := range v.Addrs {
		a.Interface, a.Owner = "", model.Name{}
		v.Addrs[k] = a
	}
	return v
}

func clone(s *nodestate.State) *nodestate.State {
	c := nodestate.New()
	for _, tab := range []nodestate.Table{
		nodestate.TableSettings, nodestate.TableAddrs, nodestate.TableRoutes, nodestate.TableServices,
		nodestate.TablePolicy, nodestate.TableClients, nodestate.TableRules, nodestate.TableAnnounced,
	} {
		copyTable(c, s, tab)
	}
	return c
}

// copyTable gives s a copy of one table of from.
func copyTable(s, from *nodestate.State, tab nodestate.Table) {
	switch tab {
	case nodestate.TableSettings:
		s.Settings = from.Settings
	case nodestate.TableAddrs:
		s.Addrs = copyOf(from.Addrs)
	case nodestate.TableRoutes:
		s.Routes = copyOf(from.Routes)
	case nodestate.TableServices:
		s.Frontends, s.Backends, s.SourceRanges = rebuilt(from.Frontends), rebuilt(from.Backends), rebuilt(from.SourceRanges)
	case nodestate.TablePolicy:
		s.Peers, s.PeerCIDRs, s.Policy = rebuilt(from.Peers), copyOf(from.PeerCIDRs), rebuilt(from.Policy)
		s.HostEndpoints = copyOf(from.HostEndpoints)
	case nodestate.TableAnnounced:
		s.Announced, s.Watched = copyOf(from.Announced), copyOf(from.Watched)
	case nodestate.TableClients:
		s.Clients = copyOf(from.Clients)
	case nodestate.TableRules:
		s.Rules = rebuilt(from.Rules)
	}
}

// rebuilt returns a map with the same entries that shares nothing.
func rebuilt[K comparable, V any](m nodestate.Map[K, V]) nodestate.Map[K, V] {
	return nodestate.MapOf(plain(m))
}

func plain[K comparable, V any](m nodestate.Map[K, V]) map[K]V { return maps.Collect(m.All()) }

func copyOf[K comparable, V any](m map[K]V) map[K]V {
	c := make(map[K]V, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

func addr(a, b, c, d byte) netip.Addr { return netip.AddrFrom4([4]byte{a, b, c, d}) }
