// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
)

// recorded records an attack for the data plane and family that the test is played by.
func recorded(t *testing.T, attack, actor string, fam family) {
	plane := hostile.EBPF
	if strings.Contains(t.Name(), "/nft-") {
		plane = hostile.NFTables
	}
	hostile.Record(t, attack, actor, plane, map[family]string{ipv4: hostile.IPv4, ipv6: hostile.IPv6}[fam])
}

// freeRoutes does what an agent does at its start before it dials.
func freeRoutes(r request) answer {
	at, err := netip.ParseAddrPort(r.Addr)
	if err == nil {
		_, err = kernel.FreeRoutes([]netip.Addr{at.Addr()})
	}
	return fromErr(err)
}

// api is the API server of these tests, on the nodes' link.
const api = "172.30.0.70:6443"

// lockedOut is a fixture on whose node n1 everything leads away from the API server: a Service
// answers at its address, with a pod as the backend, a route leads there by weir0, a host endpoint
// denies everything in both directions, and a pod's connection to it has the node's port 40000.
func lockedOut(t *testing.T, fam family) (*fixture, *nodestate.State) {
	f := newFixture(t, fam)
	at := netip.MustParseAddrPort(fam.endpoint(api))
	server := f.newClient("api", "172.30.0.70")
	server.listen("tcp", ":6443")
	f.cluster.Settings.SNATPortFirst, f.cluster.Settings.SNATPortLast = 40000, 40000
	f.apply()
	if a := f.a.call(request{Op: "open", Net: "tcp", Addr: api, ID: 1}); a.Err != "" || a.Reply != "api 172.30.0.8:40000" {
		t.Fatalf("a pod to the API server: %q (%s)", a.Reply, a.Err)
	}
	right := f.n1.state()

	f.guardNode()
	f.put(forHosts("nothing", []model.Rule{}, []model.Rule{}))
	f.cluster.Settings.FailsafeIn, f.cluster.Settings.FailsafeOut = nil, nil
	wrong := *f.n1.state()
	id := nodestate.Frontend{Addr: netip.MustParseAddr(fam.addr("10.96.0.66")), Port: 6443, Proto: model.ProtocolTCP}
	frontends, backends := wrong.Frontends.Edit(), wrong.Backends.Edit()
	for _, face := range []nodestate.Frontend{id, {Addr: at.Addr(), Port: at.Port(), Proto: model.ProtocolTCP}} {
		frontends.Set(face, nodestate.Service{ID: id, External: face != id})
	}
	backends.Set(id, []nodestate.Backend{{Addr: f.b.local.Addrs[len(f.b.local.Addrs)-1], Port: 8080, Local: true}})
	wrong.Frontends, wrong.Backends = frontends.Map(), backends.Map()
	wrong.Settings.PoolRoutes = map[netip.Prefix]int{netip.PrefixFrom(at.Addr(), at.Addr().BitLen()): 1400}
	f.n1.driver.apply(&wrong)
	return f, right
}

// TestHostileLockedOut: whatever is in the tables, what bears the mark of the agent's own sockets
// reaches the API server, after the agent took the routes away that the kernel has no other reason
// for; other processes do once the tables are right again.
func TestHostileLockedOut(t *testing.T) { inBoth(t, testHostileLockedOut) }

func testHostileLockedOut(t *testing.T, fam family) {
	recorded(t, "frontend, route, NAT entry and deny at the API server's address at once keep the agent from it", hostile.Tenant, fam)
	recorded(t, "a pod's connection to the API server has the port that the agent takes", hostile.Pod, fam)
	recorded(t, "a host endpoint without failsafe ports denies the API server", hostile.Operator, fam)
	f, right := lockedOut(t, fam)
	if a := f.n1.get("tcp", api, 400); strings.HasPrefix(a.Reply, "api ") {
		t.Fatal("nothing is in the way of other processes of the node")
	}
	if a := f.n1.call(request{Op: "free", Addr: api}); a.Err != "" {
		t.Fatal(a.Err)
	}
	for _, from := range []string{"", "172.30.0.8:40000"} {
		a := f.n1.call(request{Op: "get", Net: "tcp", Addr: api, From: from, Own: true, Timeout: 10_000})
		if !strings.HasPrefix(a.Reply, "api ") {
			t.Errorf("the agent, from %q: %q (%s), want an answer of the API server", from, a.Reply, a.Err)
		}
	}
	f.n1.driver.apply(right)
	f.n1.reaches("api", "tcp", api)
}

// TestOwnNode: an agent alongside an API server reaches it at its own node's address, and at
// loopback.
func TestOwnNode(t *testing.T) { inBoth(t, testOwnNode) }

func testOwnNode(t *testing.T, fam family) {
	f := newFixture(t, fam)
	f.n1.listen("tcp", ":6443")
	f.apply()
	for range 3 {
		for _, addr := range []string{"172.30.0.8:6443", "127.0.0.1:6443"} {
			a := f.n1.call(request{Op: "get", Net: "tcp", Addr: addr, Own: true, Timeout: 10_000})
			if !strings.HasPrefix(a.Reply, "n1 ") {
				t.Errorf("the agent of n1 at %s: %q (%s), want an answer of n1", addr, a.Reply, a.Err)
			}
		}
	}
}

// TestHostileOpenHostFlow: a Service that comes takes no connection that the node's own processes
// have open, in either direction.
func TestHostileOpenHostFlow(t *testing.T) { inBoth(t, testHostileOpenHostFlow) }

func testHostileOpenHostFlow(t *testing.T, fam family) {
	recorded(t, "a Service that comes takes open connections of the node's own processes", hostile.Tenant, fam)
	f := newFixture(t, fam)
	server := f.newClient("api", "172.30.0.70")
	server.listen("tcp", ":6443")
	f.cluster.Settings.HostNAT = true
	f.apply()
	f.n1.opens(1, api)
	f.client.opens(2, "172.30.0.8:9000")
	s := f.service("thief", "10.96.0.66", 0, f.a)
	s.ExternalIPs = append(f.pairOf(netip.MustParseAddr("172.30.0.70")), f.pairOf(netip.MustParseAddr("172.30.0.8"))...)
	s.Ports = []model.ServicePort{{Name: "tcp", Protocol: model.ProtocolTCP, Port: 6443}, {Name: "also", Protocol: model.ProtocolTCP, Port: 9000}}
	f.slices("thief", 8080, []model.ServiceEndpoint{{Addrs: f.a.obj.Addrs[:1], Node: "n1", Ready: true, Serving: true}})
	for _, slice := range f.cluster.Slices {
		slice.Ports = append(slice.Ports, model.EndpointPort{Name: "also", Protocol: model.ProtocolTCP, Port: 8080})
	}
	f.apply()
	for id, w := range map[int]*worker{1: f.n1.worker, 2: f.client.worker} {
		if a := w.call(request{Op: "talk", ID: id, Timeout: 3000}); a.Err != "" {
			t.Errorf("connection %d, open before the Service came: %s", id, a.Err)
		}
	}
}
