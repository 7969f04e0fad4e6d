// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"flag"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/weir-net/weir/internal/dataplane/nft/chains"
	"github.com/weir-net/weir/internal/dataplane/nft/services"
	"github.com/weir-net/weir/internal/dataplane/nft/table"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

var update = flag.Bool("update", false, "write the golden files")

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func tcp(a string, port uint16) nodestate.Frontend {
	return nodestate.Frontend{Addr: addr(a), Port: port, Proto: model.ProtocolTCP}
}

// small is a node with two pods, another node on the link, and one Service of each kind.
func small() *nodestate.State {
	s := nodestate.New()
	s.Settings.Node, s.Settings.Node6, s.Settings.IPv6 = addr("172.30.0.8"), addr("fd00::8"), true
	s.Settings.InterfacePrefix = "cali"
	s.Settings.Tunnel = nodestate.Tunnel{Port: 4789, VNI: 4096, MTU: 1450}
	s.Addrs[addr("172.30.0.8")] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true, NodePorts: true}
	s.Addrs[addr("fd00::8")] = nodestate.Addr{Kind: nodestate.AddrHost, Primary: true, NodePorts: true}
	s.Addrs[addr("10.244.1.2")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali1", NATOutgoing: true}
	s.Addrs[addr("10.244.1.3")] = nodestate.Addr{Kind: nodestate.AddrEndpoint, Interface: "cali2"}
	s.Addrs[addr("172.30.0.9")] = nodestate.Addr{Kind: nodestate.AddrNode, Node: addr("172.30.0.9"), SameLink: true, MAC: [6]byte{2, 0, 0, 0, 0, 9}, NodePorts: true}
	s.Routes[netip.MustParsePrefix("10.244.0.0/16")] = nodestate.Route{Pool: true}
	s.Routes[netip.MustParsePrefix("10.244.1.0/26")] = nodestate.Route{Pool: true, Local: true}
	s.Routes[netip.MustParsePrefix("10.244.2.0/26")] = nodestate.Route{Pool: true, Node: addr("172.30.0.9"), SameLink: true}
	web := tcp("10.96.0.1", 80)
	s.Frontends.Set(web, nodestate.Service{ID: web})
	s.Frontends.Set(tcp("0.0.0.0", 30001), nodestate.Service{ID: web, External: true, LocalPolicy: true})
	s.Frontends.Set(tcp("192.0.2.1", 80), nodestate.Service{ID: web, External: true, LocalPolicy: true, Restricted: true})
	s.SourceRanges.Set(web, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("198.51.100.7/32")})
	s.Backends.Set(web, []nodestate.Backend{{Addr: addr("10.244.1.2"), Port: 8080, Local: true}, {Addr: addr("10.244.2.2"), Port: 8080}})
	sticky := tcp("10.96.0.2", 80)
	s.Frontends.Set(sticky, nodestate.Service{ID: sticky, Affinity: 10800})
	s.Backends.Set(sticky, []nodestate.Backend{{Addr: addr("10.244.2.3"), Port: 8080}})
	s.Frontends.Set(tcp("10.96.0.3", 80), nodestate.Service{ID: tcp("10.96.0.3", 80)})
	return s
}

func fakeDriver(t *testing.T) (*Driver, map[knftables.Family]*knftables.Fake) {
	t.Helper()
	fakes := map[knftables.Family]*knftables.Fake{}
	return openFake(t, fakes), fakes
}

func openFake(t *testing.T, fakes map[knftables.Family]*knftables.Fake) *Driver {
	d, err := New(Options{Logger: slog.New(slog.DiscardHandler), NoMachine: true, Tables: func(f knftables.Family) (knftables.Interface, error) {
		if fakes[f] == nil {
			fakes[f] = newFake(t, f)
		}
		return fakes[f], nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// rawPayloads are what the fake takes for sets: parts of a packet, by their places.
var rawPayloads = []string{"th,96,24", "th,160,8", "th,96,8"}

func newFake(t *testing.T, f knftables.Family) *knftables.Fake {
	fake := knftables.NewFake(f, table.Name)
	tx := fake.NewTransaction()
	tx.Add(&knftables.Table{})
	for _, p := range rawPayloads {
		tx.Add(&knftables.Set{Name: p, Type: "inet_service"})
	}
	if err := fake.Run(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
	return fake
}

func apply(t *testing.T, d *Driver, s *nodestate.State) {
	t.Helper()
	if err := d.Apply(context.Background(), s, nodestate.All()); err != nil {
		t.Fatal(err)
	}
}

func TestGolden(t *testing.T) {
	d, fakes := fakeDriver(t)
	apply(t, d, small())
	for f, file := range map[knftables.Family]string{knftables.IPv4Family: "testdata/small.nft", knftables.IPv6Family: "testdata/small6.nft"} {
		got := fakes[f].Dump()
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs (-update writes it):\n%s", file, got)
		}
	}
}

// TestSecondApply: a state that was applied is not written again, neither by the same driver nor by
// the next one.
func TestSecondApply(t *testing.T) {
	d, fakes := fakeDriver(t)
	apply(t, d, small())
	before := d.Status().Writes
	apply(t, d, small())
	if n := d.Status().Writes - before; n != 0 {
		t.Errorf("the second apply made %d operations", n)
	}
	next := openFake(t, fakes)
	apply(t, next, small())
	if n := next.Status().Writes; n != 0 {
		t.Errorf("the first apply of another driver made %d operations", n)
	}
}

// TestEndpointIsFew: what an endpoint's change writes does not depend on how many there are.
func TestEndpointIsFew(t *testing.T) {
	d, _ := fakeDriver(t)
	s := small()
	web := tcp("10.96.0.1", 80)
	var many []nodestate.Backend
	for i := range 200 {
		many = append(many, nodestate.Backend{Addr: netip.AddrFrom4([4]byte{10, 244, 2, byte(i)}), Port: 8080})
	}
	s.Backends.Set(web, many)
	apply(t, d, s)
	before := d.Status().Writes
	next := *s
	next.Backends.Set(web, append(append([]nodestate.Backend(nil), many[:77]...), many[78:]...))
	apply(t, d, &next)
	if n := d.Status().Writes - before; n > 12 {
		t.Errorf("an endpoint that went took %d operations", n)
	}
}

// TestHostileLoopback: what the node asks at a loopback address, by a source that is one too, is
// not compared with host ports there, and nobody else is.
func TestHostileLoopback(t *testing.T) {
	hostile.Record(t, "a pod's host port on a loopback address is rendered, and breaks what the node asks there", hostile.Tenant, hostile.NFTables, hostile.Both)
	for _, f := range table.Families {
		s := small()
		s.Settings.Node6 = addr("fd00::8")
		at := nodestate.Frontend{Addr: netip.MustParseAddr(map[bool]string{false: "127.0.0.1", true: "::1"}[f.Six]), Port: 54323, Proto: model.ProtocolTCP}
		backend := nodestate.Backend{Addr: netip.MustParseAddr(map[bool]string{false: "10.244.1.9", true: "fd00::9"}[f.Six]), Port: 80, Local: true}
		s.Frontends.Set(at, nodestate.Service{ID: at, LocalOnly: true})
		s.Backends.Set(at, []nodestate.Backend{backend})
		rendered := chains.Render(s, f.Six)
		key := table.Key(at.Addr, at.Proto, at.Port)
		for set, elements := range rendered.Elements {
			if _, has := elements[key]; has != (set == services.MapLoopback) {
				t.Errorf("%s: element of %s: %t", key, set, has)
			}
		}
		if rendered.Elements[services.MapLoopback] == nil {
			t.Errorf("%s is in no map", key)
		}
		w := f.Words()
		leads := map[string]int{}
		for name, c := range rendered.Chains {
			asked := false
			for _, rule := range c.Rules {
				if asked = asked || strings.HasPrefix(rule, w.IP+" saddr "+w.Loopback+" return"); !asked && strings.Contains(rule, "@"+services.MapLoopback) {
					t.Errorf("chain %s compares with no look at the source: %s", name, rule)
				}
				if strings.HasSuffix(rule, "goto at-loopback") {
					leads[name]++
				}
			}
		}
		if !maps.Equal(leads, map[string]int{"translate-own": 1}) {
			t.Errorf("host ports at loopback addresses are compared in %v", leads)
		}
	}
}

// TestBesideKubeProxy: where a kube-proxy carries Services only host ports are ours, and what other
// nodes hand on; when that changes nothing else does, and the table is that of a driver that knows
// no other.
func TestBesideKubeProxy(t *testing.T) {
	s := small()
	host := tcp("10.96.9.9", 9)
	s.Frontends.Set(tcp("0.0.0.0", 8443), nodestate.Service{ID: host, LocalOnly: true})
	s.Backends.Set(host, []nodestate.Backend{{Addr: addr("10.244.1.2"), Port: 8080, Local: true}})
	alongside := *s
	alongside.Settings.KubeProxy = true
	d, fakes := fakeDriver(t)
	same := func(what string, s *nodestate.State, want map[string]int) {
		t.Helper()
		apply(t, d, s)
		fresh, _ := fakeDriver(t)
		apply(t, fresh, s)
		got, anew := d.Status().Entries, fresh.Status().Entries
		for name, n := range anew {
			if got[name] != n {
				t.Errorf("%s: %s has %d elements, that of a new driver %d", what, name, got[name], n)
			}
		}
		for name, n := range want {
			if got["ip "+name] != n {
				t.Errorf("%s: %s has %d elements, want %d", what, name, got["ip "+name], n)
			}
		}
	}
	same("alone", s, map[string]int{services.MapServices: 4, services.MapPorts: 1, services.MapHostPorts: 1, services.MapBackends: 5})
	same("beside", &alongside, map[string]int{services.MapServices: 0, services.MapServicesOutside: 4, services.MapPorts: 0, services.MapPortsOutside: 1, services.MapRefused: 0, services.MapHostPorts: 1, services.MapBackends: 3})
	again := openFake(t, fakes)
	apply(t, again, &alongside)
	if n := again.Status().Writes; n != 0 {
		t.Errorf("a driver that starts alongside a kube-proxy, where one was before, made %d operations", n)
	}
	changed := alongside
	changed.Backends.Set(tcp("10.96.0.1", 80), []nodestate.Backend{{Addr: addr("10.244.2.9"), Port: 8080}})
	same("an endpoint comes", &changed, map[string]int{services.MapServices: 0, services.MapBackends: 2})
	alone := changed
	alone.Settings.KubeProxy = false
	same("alone again", &alone, map[string]int{services.MapServices: 4, services.MapPorts: 1, services.MapHostPorts: 1})
	before := d.Status().Writes
	apply(t, d, &alone)
	if n := d.Status().Writes - before; n != 0 {
		t.Errorf("the second apply made %d operations", n)
	}
}
