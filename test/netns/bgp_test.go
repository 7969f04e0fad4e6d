// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/process"
	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

// bgpMain is the BGP process of a node.
func bgpMain(log *slog.Logger) error {
	dir := os.Getenv("WEIR_TEST_BGP")
	return process.Run(context.Background(), process.Options{Log: log, Socket: filepath.Join(dir, "s"), StateDir: dir, AccountDir: dir, Every: time.Second})
}

// speak gives a node a BGP process, to which it says what to do from then on.
func (n *node) speak() {
	t := n.lan.t
	dir, err := os.MkdirTemp("/tmp", "weir-netns-bgp-") // a path of a socket is short
	nettest.Must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	agent, ended := &feed.Agent{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, make(chan error, 1)
	go func() { ended <- agent.Serve(ctx, filepath.Join(dir, "s")) }()
	cmd := exec.Command("nsenter", "--net=/run/netns/"+n.netns, os.Args[0])
	cmd.Env = append(os.Environ(), "WEIR_TEST_DRIVER=bgp", "WEIR_TEST_BGP="+dir)
	cmd.Stderr = os.Stderr
	nettest.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	n.speaks = agent
}

// racks is a fixture whose nodes are on a link each. A gateway forwards between the links, and
// knows no pod; two more routers know pods by what the nodes' BGP processes tell them.
type racks struct {
	*fixture
	routers []*rackRouter
}

type rackRouter struct {
	*routertest.Router
	netns string
	host  int // the last byte of its addresses
}

const racksASN = 64999

// forwarding are the kinds of routers of racks: they install routes, and can leave in order.
var forwarding = []string{"bird", "frr"}

func nodeASN(i int) uint32 { return 64512 + uint32(i) }

// forwarder makes a router with an address on each link.
func (l *lan) forwarder(name string, host int) string {
	ns := l.newNetns(name)
	run(l.t, "ip netns exec %s sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 "+
		"net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.default.send_redirects=0", ns)
	for i := range l.nodes {
		l.linkUp(ns, fmt.Sprintf("eth%d", i), fmt.Sprintf("172.30.%d.%d", i, host))
	}
	return ns
}

func newRacks(t *testing.T, fam family) *racks {
	t.Parallel()
	for _, kind := range forwarding {
		routertest.Need(t, kind)
	}
	f := &racks{fixture: newFixtureWith(t, fam, "172.30.1.9")}
	f.forwarder("gw", 1)
	for _, c := range []*host{f.client, f.client2} {
		run(t, "ip -n %s route add default via 172.30.0.1", c.netns)
		if fam == ipv6 {
			run(t, "ip -n %s route add default via %s", c.netns, sixOf("172.30.0.1"))
		}
	}
	for i, n := range f.nodes {
		with := *f.cluster.Nodes[n.name]
		with.ASN = nodeASN(i)
		f.cluster.Nodes[n.name] = &with
		n.driver.kill()
		n.driver.runs = true
		n.driver.start()
		n.speak()
	}
	f.cluster.BGPConfigs["default"] = &model.BGPConfig{Name: "default", MeshDisabled: true}
	var starts []func()
	for k, kind := range forwarding {
		r := &rackRouter{netns: f.forwarder("r"+kind, 2+k), host: 2 + k}
		conf := routertest.Config{ASN: racksASN, ID: netip.AddrFrom4([4]byte{192, 0, 2, byte(r.host)})}
		for i, n := range f.nodes {
			local := f.pairOf(netip.AddrFrom4([4]byte{172, 30, byte(i), byte(r.host)}))
			for j, remote := range f.pairOf(n.addr) {
				conf.Neighbours = append(conf.Neighbours, routertest.Neighbour{Local: local[j], Remote: remote, ASN: nodeASN(i)})
				name := fmt.Sprintf("%s-%s-%d", n.name, kind, j)
				f.cluster.BGPPeers[name] = &model.BGPPeer{Name: name, Node: n.name, Addr: local[j], ASN: racksASN}
			}
		}
		starts = append(starts, func() {
			r.Router = routertest.Start(t, nettest.Open(t, "/run/netns/"+r.netns), kind, conf)
			f.routers = append(f.routers, r)
			f.learned()
		})
	}
	f.apply()
	for _, start := range starts {
		start()
	}
	f.by(f.routers...)
	return f
}

// routed waits until what the kernel of a namespace has of protocol, of a block of a node's pods,
// is as wanted.
func (f *racks) routed(ns string, of *node, args string, good func(routes string) bool) {
	f.t.Helper()
	block := fmt.Sprintf("10.244.%d.0/26", slices.Index(f.nodes, of)+1)
	flag := "-4"
	if f.family == ipv6 {
		block, flag = sixPrefix(netip.MustParsePrefix(block)).String(), "-6"
	}
	var got string
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if got = run(f.t, "ip -n %s %s route show %s %s", ns, flag, block, args); good(got) {
			return
		}
	}
	f.t.Fatalf("%s: the routes to %s are %q", ns, block, got)
}

func isThere(routes string) bool { return routes != "" }
func isAway(routes string) bool  { return routes == "" }

// learned waits until nodes and routers know the blocks of pods.
func (f *racks) learned() {
	f.t.Helper()
	for i, n := range f.nodes {
		f.routed(n.netns, f.nodes[1-i], "proto 88", isThere)
		for _, r := range f.routers {
			f.routed(r.netns, n, "", isThere)
		}
	}
}

// by waits until the nodes' learned routes to each other's pods lead to these routers and no
// others.
func (f *racks) by(routers ...*rackRouter) {
	f.t.Helper()
	for i, n := range f.nodes {
		f.routed(n.netns, f.nodes[1-i], "proto 88", func(routes string) bool {
			for _, r := range f.routers {
				via := f.family.addr(fmt.Sprintf("172.30.%d.%d", i, r.host))
				if slices.Contains(routers, r) != strings.Contains(routes+" ", "via "+via+" ") {
					return false
				}
			}
			return true
		})
	}
}

// all asks for everything that goes from node to node.
func (f *racks) all(when string) {
	t := f.t
	t.Helper()
	f.podsReachEachOther(t)
	for _, nw := range networks {
		want(t, when+" Service", f.a.reaches("c", nw, "10.96.0.2:80"), "10.244.1.2")
		want(t, when+" Service, the other way", f.c.reaches("a", nw, "10.96.0.3:80"), "10.244.2.2")
		want(t, when+" node to a Service", f.n1.reaches("c", nw, "10.96.0.2:80"), "172.30.0.8")
		want(t, when+" handed on", f.client.reaches("c", nw, "172.30.0.8:30002"), "172.30.0.55")
		want(t, when+" handed on, the other way", f.client.reaches("a", nw, "172.30.1.9:30003"), "172.30.0.55")
	}
}

// TestBGPPods: between nodes on different links, pods' packets go by what BGP told the nodes, by
// two routers at a time. The router of the nodes' own packets knows no pods.
func TestBGPPods(t *testing.T) { inBoth(t, testBGPPods) }

func testBGPPods(t *testing.T, fam family) {
	f := newRacks(t, fam)
	f.service("dns", "10.96.0.2", 30002, f.c)
	f.service("web", "10.96.0.3", 30003, f.a)
	f.apply()
	f.all("tunnel mode")
	f.policyHolds(t)
	f.cluster.Settings.DSR = true
	f.apply()
	f.all("direct server return")
	if fallen := f.n2.driver.last.Fallen; len(fallen) > 0 {
		t.Errorf("direct server return does not work for %v", fallen)
	}
	f.cluster.Settings.RPFStrict = true
	f.apply()
	f.all("strict reverse paths")
}

// TestBGPPodsLive: an open connection stays when one of two routers goes, and goes on while the
// pool's packets go by VXLAN and back, and while BGP is switched off where VXLAN is.
func TestBGPPodsLive(t *testing.T) { inBoth(t, testBGPPodsLive) }

func testBGPPodsLive(t *testing.T, fam family) {
	f := newRacks(t, fam)
	if a := f.a.call(request{Op: "open", Net: "tcp", Addr: f.c.at("8080"), ID: 1}); a.Err != "" {
		t.Fatal(a.Err)
	}
	talks := func(when string) {
		t.Helper()
		if a := f.a.call(request{Op: "talk", ID: 1}); a.Err != "" {
			t.Errorf("%s: the open connection says %s", when, a.Err)
		}
		want(t, when+" a new one", f.b.reaches("d", "tcp", f.d.at("8080")), "10.244.1.3")
	}
	talks("at first")

	i := slices.IndexFunc(f.routers, func(r *rackRouter) bool { return r.Kind == "bird" })
	leaving, rest := f.routers[i], f.routers[1-i]
	leaving.Leave(t)
	run(t, "ip netns exec %s sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0", leaving.netns)
	f.by(rest)
	talks("by the other router")

	f.encapsulate(model.EncapAlways)
	f.apply()
	talks("by VXLAN")
	for i, n := range f.nodes {
		f.routed(n.netns, f.nodes[1-i], "proto 88", isAway)
	}
	talks("by VXLAN, without learned routes")
	conf, peers := f.cluster.BGPConfigs, f.cluster.BGPPeers
	f.cluster.BGPConfigs, f.cluster.BGPPeers = map[string]*model.BGPConfig{}, map[string]*model.BGPPeer{}
	f.apply()
	f.routed(rest.netns, f.n1, "", isAway)
	talks("without BGP")
	f.cluster.BGPConfigs, f.cluster.BGPPeers = conf, peers
	f.apply()
	for _, n := range f.nodes {
		f.routed(rest.netns, n, "", isThere)
	}
	talks("with BGP again")
	f.encapsulate(model.EncapNever)
	f.apply()
	for i, n := range f.nodes {
		f.routed(n.netns, f.nodes[1-i], "proto 88", isThere)
	}
	talks("by learned routes again")
}
