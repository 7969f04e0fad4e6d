// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	nftnames "github.com/weir-net/weir/internal/dataplane/nft/names"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	whywire "github.com/weir-net/weir/internal/why/wire"
)

// inBothPlanes plays a test about domain names with each family, by each driver.
func inBothPlanes(t *testing.T, play func(t *testing.T, fam family)) {
	inEBPF(t, play)
	inNFTablesWithQueues(t, play)
}

// inNFTablesWithQueues plays a test with each family by the nftables driver, where the kernel has
// queues for packets.
func inNFTablesWithQueues(t *testing.T, play func(t *testing.T, fam family)) {
	if hasQueues(t) {
		playNFTables(t, play)
	}
}

// hasQueues reports whether the kernel has queues for packets; else a part of the test is skipped.
func hasQueues(t *testing.T) bool {
	t.Helper()
	plane, err := nftnames.New(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer plane.Close()
	err = plane.Lacks()
	if err != nil {
		t.Run("nft", func(t *testing.T) { t.Skip(err) })
	}
	return err == nil
}

// namesFixture is one in which pod a may send to DNS and to addresses of domain names alone. The
// name server is pod c on the other node, behind the Service of the cluster's DNS; the addresses of
// its zone are outside of the cluster.
func namesFixture(t *testing.T, fam family, domains ...string) *fixture {
	f := newFixture(t, fam)
	run(t, "ip -n %s route add local 198.18.0.0/16 dev lo; ip -n %s -6 route add local fd98::/64 dev lo; "+
		"ip netns exec %s sysctl -qw net.ipv6.ip_nonlocal_bind=1", f.client.netns, f.client.netns, f.client.netns)
	for _, n := range f.nodes {
		run(t, "ip -n %s route add 198.18.0.0/16 via %s", n.netns, f.client.addr)
		if fam == ipv6 {
			run(t, "ip -n %s -6 route add fd98::/64 via %s", n.netns, six(f.client.addr))
		}
	}
	for _, p := range []*pod{f.b, f.c} {
		if a := p.call(request{Op: "name server", Addr: ":53"}); a.Err != "" {
			t.Fatal(a.Err)
		}
	}
	f.dns("kube-system", "kube-dns", "10.96.0.10", f.c)
	f.domains(domains...)
	f.n1.driver.kill()
	f.n1.driver.runs = true // reads what programs cannot
	f.n1.explains()
	f.apply()
	if len(domains) > 0 && strings.Contains(t.Name(), "/nft") {
		f.readerComes(6800)
	}
	return f
}

// dns makes a Service of a name server.
func (f *fixture) dns(namespace, name, clusterIP string, p *pod) {
	full := model.Name{Namespace: namespace, Name: name}
	f.cluster.Services[full] = &model.Service{Name: full, ClusterIPs: f.pairOf(netip.MustParseAddr(clusterIP)), Ports: []model.ServicePort{
		{Name: "tcp", Protocol: model.ProtocolTCP, Port: 53}, {Name: "udp", Protocol: model.ProtocolUDP, Port: 53}}}
	for i, a := range p.obj.Addrs {
		slice := model.Name{Namespace: namespace, Name: fmt.Sprint(name, i)}
		f.cluster.Slices[slice] = &model.EndpointSlice{Name: slice, Service: full,
			Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{a}, Node: p.obj.Node, Ready: true, Serving: true}},
			Ports:     []model.EndpointPort{{Name: "tcp", Protocol: model.ProtocolTCP, Port: 53}, {Name: "udp", Protocol: model.ProtocolUDP, Port: 53}}}
	}
}

// domains lets pod a send to these names, and to port 53, and nothing else.
func (f *fixture) domains(names ...string) {
	p := &model.Policy{Kind: model.KindClusterNetworkPolicy, Name: model.Name{Name: "names"}, Tier: model.TierAdmin, AppliesEgress: true,
		Subject: model.Selector{Pods: hasApp("a")},
		Egress: []model.Rule{
			{Action: model.Allow, Ports: []model.PortRange{{Protocol: model.ProtocolUDP, First: 53, Last: 53}, {Protocol: model.ProtocolTCP, First: 53, Last: 53}}},
			{Action: model.Allow, Name: "names", Peers: []model.Peer{{Domains: names}}, Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: 7000, Last: 7000}}},
			{Action: model.Deny, Name: "rest"},
		}}
	if len(names) == 0 {
		p.Egress = append(p.Egress[:1], p.Egress[2])
	}
	f.put(p)
}

// another gives pod a names of its own for another port, beside those that it has.
func (f *fixture) another(names ...string) {
	p := *f.cluster.Policies[model.PolicyID{Kind: model.KindClusterNetworkPolicy, Name: model.Name{Name: "names"}}]
	p.Egress = slices.Insert(slices.Clone(p.Egress), 1, model.Rule{Action: model.Allow, Peers: []model.Peer{{Domains: names}}, Ports: []model.PortRange{{Protocol: model.ProtocolTCP, First: 7001, Last: 7001}}})
	f.put(&p)
}

// connects looks names up and connects to each address at once: so many connections are made, and
// so many not.
func (f *fixture) connects(what, server, name string, first, names, connected, denied int) {
	f.t.Helper()
	ip := map[family]string{ipv4: "ip4", ipv6: "ip6"}[f.family]
	r := request{Op: "firsts", Net: ip, From: server + ":53", Name: name, ID: first, Size: names}
	if denied > 0 {
		r.Timeout = 300
	}
	a := f.a.call(r)
	if names >= 5_000 { // make bench-flows asks for these
		nettest.Figure(f.t, what+", made", float64(a.Counters["connected"]))
		nettest.Figure(f.t, what+", denied", float64(a.Counters["denied"]+a.Counters["late"]+a.Counters["not found"]))
		nettest.Figure(f.t, what+", look-up p50, ms", float64(a.Counters["look-up p50, us"])/1000)
		nettest.Figure(f.t, what+", look-up p99, ms", float64(a.Counters["look-up p99, us"])/1000)
	}
	if a.Counters["connected"] != connected || a.Counters["denied"] != denied || a.Counters["late"]+a.Counters["not found"] > 0 {
		f.t.Errorf("%s: %v, want %d connected and %d denied: %s", what, a.Counters, connected, denied, a.Err)
	}
}

// TestDomainNames holds that pods reach the addresses that a trusted server told them of the names
// of their policy, from the first connection on, and no others.
func TestDomainNames(t *testing.T) {
	t.Parallel()
	inBothPlanes(t, testDomainNames)
}

func testDomainNames(t *testing.T, fam family) {
	const server = "10.96.0.10"
	f := namesFixture(t, fam, "*.names.test", "n1.exact.test", "n450.cdn.test")
	many := 200
	if os.Getenv(nettest.FiguresVariable) != "" {
		many = 10_000
	}
	f.connects("first connections", server, "n%d.names.test", 1000, many, many, 0)
	f.connects("capital letters", server, "N%d.Names.TEST", 100, 2, 2, 0)
	f.connects("more labels", server, "n%d.a.b.names.test", 102, 2, 2, 0)
	f.connects("a chain of names", server, "c%d.names.test", 104, 20, 20, 0)
	f.connects("a name within a chain", server, "c450.other.test", 0, 1, 1, 0)
	f.connects("many addresses", server, "many.names.test", 0, 1, zoneMany, 0)
	f.readerComes(7000)
	f.connects("by TCP", server, "huge.names.test", 0, 1, zoneHuge, 0)
	f.connects("one exact name", server, "n1.exact.test", 0, 1, 1, 0)
	f.connects("asked of the server itself", f.c.local.Addrs[0].String(), "n%d.names.test", 200, 2, 2, 0)
	f.connects("another name", server, "n%d.exact.test", 302, 2, 0, 2)
	f.connects("another name of a known address", server, "n5.other.test", 0, 1, 1, 0) // "many" has it
	f.connects("the same, shared", server, "shared.names.test", 0, 1, 1, 0)
	f.connects("a name that ends alike", server, "n%d.badnames.test", 304, 2, 0, 2)
	f.connects("asked of nobody's server", f.b.local.Addrs[0].String(), "n%d.names.test", 400, 2, 0, 2)
	f.connects("the same asked of a trusted one", server, "n%d.names.test", 400, 2, 2, 0)

	f.saysWhy("an address of a name", 400, `egress[1] "names"`, "a name of *.names.test has the address")
	f.saysWhy("an address that nobody was told", 20_000, `egress[2] "rest"`, "")

	// The policy changes: the names that stay are known as before.
	f.domains("*.names.test", "*.other.test")
	f.apply()
	f.connects("a name that came", server, "n%d.other.test", 500, 2, 2, 0)
	f.dials("known before the change", 400, true)
	f.dials("a name that went", 450, false)
	f.domains("*.other.test")
	f.apply()
	f.dials("names that went", 400, false)
}

// TestCalicoDomainNames holds the same of rules as projectcalico.org has them: wildcards anywhere
// in a name, and names of network sets that a rule picks, while those change.
func TestCalicoDomainNames(t *testing.T) {
	t.Parallel()
	inBothPlanes(t, testCalicoDomainNames)
}

func testCalicoDomainNames(t *testing.T, fam family) {
	const server = "10.96.0.10"
	f := namesFixture(t, fam)
	tcp := []model.PortRange{{Protocol: model.ProtocolTCP, First: 7000, Last: 7000}}
	f.cluster.Policies = map[model.PolicyID]*model.Policy{}
	f.put(&model.Policy{Kind: model.KindCalicoNetworkPolicy, Name: model.Name{Namespace: "default", Name: "names"}, Tier: model.TierDefault, AppliesEgress: true,
		Subject: model.Selector{Namespace: "default", Expression: "app == 'a'"},
		Egress: []model.Rule{
			{Action: model.Allow, Ports: []model.PortRange{{Protocol: model.ProtocolUDP, First: 53, Last: 53}}},
			{Action: model.Allow, Peers: []model.Peer{{Domains: []string{"n1.*.names.test", "n2.exact.*"}}}, Ports: tcp},
			{Action: model.Allow, Other: &model.Entity{Selector: "feed == 'x'"}, Ports: tcp},
		}})
	f.apply()
	f.connects("a wildcard within a name", server, "n%d.a.b.names.test", 1, 1, 1, 0)
	f.connects("what it does not match", server, "n%d.names.test", 11, 2, 0, 2)
	f.connects("a wildcard at the end", server, "n%d.exact.test", 2, 1, 1, 0)
	f.connects("a name of no set yet", server, "n%d.exact.test", 30, 2, 0, 2)

	set := &model.NetworkSet{Name: model.Name{Name: "feed"}, Labels: map[string]string{"feed": "x"}, Domains: []string{"*.exact.test"}}
	f.cluster.NetworkSets = map[model.Name]*model.NetworkSet{set.Name: set}
	f.apply()
	f.connects("a name of a set", server, "n%d.exact.test", 40, 2, 2, 0)
	changed := *set
	changed.Domains = []string{"*.other.test"}
	f.cluster.NetworkSets[set.Name] = &changed
	f.apply()
	f.connects("a name that came to the set", server, "n%d.other.test", 50, 2, 2, 0)
	f.dials("a name that the set has no more", 40, false)
	f.cluster.NetworkSets = map[model.Name]*model.NetworkSet{}
	f.apply()
	f.dials("a set that is gone", 50, false)
	f.dials("a rule's own name", 2, true)
}

// dials connects pod a to an address of the zone, without asking for it.
func (f *fixture) dials(what string, i int, want bool) {
	f.t.Helper()
	a := f.a.callIn(ipv4, request{Op: "get", Net: "tcp", Addr: f.zone(i), Timeout: map[bool]int{false: 300}[want]})
	if (a.Err == "") != want {
		f.t.Errorf("%s: %q, want an answer: %v", what, a.Err, want)
	}
}

// TestDomainNamesLast holds that names are known while no driver runs and after it starts again,
// that an address counts no more when its time is over, and that a connection that was open then
// goes on, also when flows are evaluated again.
func TestDomainNamesLast(t *testing.T) {
	t.Parallel()
	inBothPlanes(t, testDomainNamesLast)
}

func testDomainNamesLast(t *testing.T, fam family) {
	const server, id = "10.96.0.10", 1
	f := namesFixture(t, fam, "*.names.test")
	f.connects("a name", server, "n%d.names.test", 100, 1, 1, 0)
	if a := f.a.callIn(ipv4, request{Op: "open", Net: "tcp", Addr: f.zone(100), ID: id}); a.Err != "" {
		t.Fatal(a.Err)
	}
	f.connects("a name for long", server, "n%d.long.names.test", 105, 1, 1, 0)
	f.n1.driver.kill()
	f.dials("a known name while no driver runs", 105, true)
	known := 105
	if f.n1.dataplane() == "nft" { // who reads answers is not there, and they go on all the same
		f.connects("names that are asked while no driver runs", server, "n%d.long.names.test", 110, 2, 0, 2)
	} else {
		f.connects("names that are asked while no driver runs", server, "n%d.long.names.test", 110, 5, 5, 0)
		known = 112
	}
	f.dials("an address that nobody asked for", 120, false)
	f.n1.driver.start()
	f.apply()
	f.dials("known from before the start", known, true)
	f.connects("names after the start", server, "n%d.names.test", 130, 2, 2, 0)

	time.Sleep(12 * time.Second) // an address counts for ten seconds at least
	f.dials("a name whose time is over", 100, false)
	f.put(allow("b", model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp("a")}}))
	f.apply()
	if a := f.a.callIn(ipv4, request{Op: "talk", ID: id}); a.Err != "" {
		t.Errorf("an open connection whose name's time is over: %s", a.Err)
	}
	f.domains("*.other.test")
	f.apply()
	if a := f.a.callIn(ipv4, request{Op: "talk", ID: id, Timeout: 500}); a.Err == "" {
		t.Error("an open connection whose name policy has no more goes on")
	}
}

// saysWhy fails the test unless `weir why` says by which rule pod a may send to an address of the
// zone, or may not, and by which name.
func (f *fixture) saysWhy(what string, i int, rule, note string) {
	f.t.Helper()
	to := netip.MustParseAddrPort(f.zone(i))
	a := f.n1.whyHere(whywire.Request{Hook: whywire.FromWorkload, Source: netip.MustParseAddr(f.family.addr("10.244.1.2")), Destination: to.Addr(),
		Protocol: model.ProtocolTCP, SourcePort: 50000, Port: to.Port()})
	by := a.Outcome.Rule
	if f.n1.dataplane() == "nft" && len(a.Policies) > 0 { // rules of nftables do not say which of them allows
		by = a.Policies[0].TableRule.String()
	}
	if !strings.Contains(by, rule) || (a.Outcome.Verdict == whywire.Dropped) != (note == "") || note != "" && !strings.Contains(strings.Join(a.Notes, "\n"), note) {
		f.t.Errorf("%s: %+v, notes %q", what, a.Outcome, a.Notes)
	}
}

// zone is the address and port of an address of the zone.
func (f *fixture) zone(i int) string {
	four, six := zoneAddr(i)
	if f.family == ipv6 {
		four = six
	}
	return netip.AddrPortFrom(four, 7000).String()
}
