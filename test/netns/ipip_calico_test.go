// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/agent/fromcalico/remains"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/model"
)

// besideCalico are three nodes with Calico and IP in IP, two of them on one link, that change to
// Weir and back. Of Calico there is what Felix (3.28) and BIRD leave in a kernel: the device tunl0
// with its address, BIRD's routes, and Felix's chains in the tables of iptables, with sets of
// nftables in the place of ipsets.
type besideCalico struct {
	*fixture
	n3   *node
	e    *pod // on n3
	mode model.EncapMode
	weir map[*node]bool // that are changed
}

// isolated are those pods that a policy lets no other than each other ask.
var isolated = []string{"a", "c", "e"}

func newBesideCalico(t *testing.T, mode model.EncapMode) *besideCalico {
	f := &besideCalico{fixture: newFixtureWith(t, ipv4, "172.30.1.9"), mode: mode, weir: map[*node]bool{}}
	f.forwarder("gw", 1)
	f.n3 = f.newNode("n3", "172.30.0.10")
	run(t, "ip -n %s route add default via 172.30.0.1", f.n3.netns)
	f.e = f.n3.newPod("e", map[string]string{"app": "e"})
	for _, nw := range networks {
		f.e.listen(nw, ":8080")
	}
	f.ipip(mode)
	for _, app := range isolated {
		var others []model.Peer
		for _, other := range isolated {
			if other != app {
				others = append(others, model.Peer{Pods: &model.Selector{Namespace: "default", Pods: hasApp(other)}})
			}
		}
		f.put(allow(app, others...))
	}
	f.service("d", "10.96.0.4", 30004, f.d)
	for _, n := range f.nodes {
		f.calico(n)
		f.hasCalico(n)
		n.kubeProxy("nftables", []proxied{{"10.96.0.4", 30004, f.d.local.Addrs[0].String()}})
	}
	return f
}

// block is that of a node's pods, and tunnel the address that its device has with Calico.
func (f *besideCalico) block(n *node) (block netip.Prefix, tunnel netip.Addr) {
	block = netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/26", slices.Index(f.nodes, n)+1))
	return block, block.Addr().Next()
}

// hasCalico is what nodes with Weir know of one with Calico, hasWeir of one with Weir.
func (f *besideCalico) hasCalico(n *node) { f.knows(n, false) }
func (f *besideCalico) hasWeir(n *node)   { f.knows(n, true) }

func (f *besideCalico) knows(n *node, weir bool) {
	f.weir[n] = weir
	block, tunnel := f.block(n)
	single := netip.PrefixFrom(tunnel, 32)
	is, isNot, mac := single, block, [6]byte{}
	if weir {
		is, isNot, mac = block, single, n.mac
	}
	delete(f.cluster.Blocks, isNot)
	f.cluster.Blocks[is] = &model.Block{CIDR: is, Node: n.name}
	with := *f.cluster.Nodes[n.name]
	with.LinkAddress = mac
	f.cluster.Nodes[n.name] = &with
}

// calico makes of a node what calico-node does when it starts. What BIRD cannot write, because
// there is such a route, it does not.
func (f *besideCalico) calico(n *node) {
	f.t.Helper()
	block, tunnel := f.block(n)
	run(f.t, "ip -n %s link show tunl0 >/dev/null 2>&1 || ip -n %s tunnel add tunl0 mode ipip; ip -n %s link set tunl0 mtu %d up; ip -n %s addr replace %s/32 dev tunl0; "+
		"ip -n %s route add blackhole %s proto bird || true", n.netns, n.netns, n.netns, inIPIP, n.netns, tunnel, n.netns, block)
	for _, m := range f.nodes {
		if m == n {
			continue
		}
		to, _ := f.block(m)
		dev := "tunl0"
		if !f.tunnelled(n, m) {
			dev = "eth0"
		}
		run(f.t, "ip -n %s route add %s via %s dev %s proto bird onlink || true", n.netns, to, m.addr, dev)
	}
	cmd := exec.Command("ip", "netns", "exec", n.netns, "nft", "-f", "/dev/stdin")
	cmd.Stdin = strings.NewReader(f.felix(n))
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("%s: Felix's rules: %v: %s", n.name, err, out)
	}
}

// tunnelled reports whether two nodes send each other pods' packets by IP in IP.
func (f *besideCalico) tunnelled(n, m *node) bool {
	return f.mode == model.EncapAlways || n.addr.As4()[2] != m.addr.As4()[2]
}

// felix are Felix's chains for a node: who may send IP in IP, what pods may send and get, and what
// leaves the pool. An accepting mark (0x10000) ends the evaluation in FORWARD.
func (f *besideCalico) felix(n *node) string {
	var dispatch, chains, hosts strings.Builder
	for i, m := range f.nodes {
		fmt.Fprintf(&hosts, "%s%s", map[bool]string{true: ", "}[i > 0], m.addr)
	}
	addrs := map[string]netip.Addr{}
	for _, m := range f.nodes {
		for _, p := range m.pods {
			addrs[p.name] = p.local.Addrs[0]
		}
	}
	for _, p := range n.pods {
		i := p.local.Interface
		fmt.Fprintf(&dispatch, "chain cali-from-wl-dispatch { iifname %q goto cali-fw-%s; }\nchain cali-to-wl-dispatch { oifname %q goto cali-tw-%s; }\n", i, i, i, i)
		const open = "ct state established,related accept; ct state invalid drop; meta mark set meta mark and 0xfffeffff; "
		const end = "meta mark and 0x10000 == 0x10000 return; "
		fmt.Fprintf(&chains, "chain cali-fw-%s { %sudp dport 4789 drop; ip protocol 4 drop; meta mark set meta mark or 0x10000; %s}\n", i, open, end)
		rules := "meta mark set meta mark or 0x10000; "
		if slices.Contains(isolated, p.name) {
			rules = ""
			for _, other := range isolated {
				rules += fmt.Sprintf("ip saddr %s meta mark set meta mark or 0x10000; ", addrs[other])
			}
		}
		fmt.Fprintf(&chains, "chain cali-tw-%s { %s%s%sdrop; }\n", i, open, rules, end)
	}
	return `table ip filter {
	set cali40all-hosts-net { type ipv4_addr; elements = { ` + hosts.String() + ` }; }
	chain cali-from-wl-dispatch { }
	chain cali-to-wl-dispatch { }
` + chains.String() + dispatch.String() + `
	chain cali-from-wl-dispatch { drop; }
	chain cali-to-wl-dispatch { drop; }
	chain cali-INPUT {
		ip protocol 4 ip saddr @cali40all-hosts-net fib daddr type local accept
		ip protocol 4 drop
		iifname "cali*" accept
	}
	chain cali-FORWARD {
		meta mark set meta mark and 0xfff1ffff
		iifname "cali*" jump cali-from-wl-dispatch
		oifname "cali*" jump cali-to-wl-dispatch
	}
	chain INPUT { type filter hook input priority filter; policy accept; }
	chain FORWARD { type filter hook forward priority filter; policy accept; }
	chain INPUT { jump cali-INPUT comment "cali:in"; }
	chain FORWARD { jump cali-FORWARD comment "cali:for"; meta mark and 0x10000 == 0x10000 accept comment "cali:accept"; }
}
table ip nat {
	chain cali-POSTROUTING {
		ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade
		oifname "tunl0" fib saddr . oif type != local fib saddr type local masquerade
	}
	chain POSTROUTING { type nat hook postrouting priority srcnat; policy accept; }
	chain POSTROUTING { jump cali-POSTROUTING comment "cali:post"; }
}
`
}

// changes takes a node over from Calico.
func (f *besideCalico) changes(n *node) {
	f.t.Helper()
	_, tunnel := f.block(n)
	n.driver.kill()
	n.driver.takesFrom = tunnel.String()
	n.local = func(l *model.Local) { l.HostAddrs = append(l.HostAddrs, tunnel) } // tunl0 has it
	n.driver.start()
	f.hasWeir(n)
	n.apply()
	f.told(n)
}

// told gives the other nodes with Weir their states.
func (f *besideCalico) told(except *node) {
	f.t.Helper()
	for _, n := range f.nodes {
		if n != except && f.weir[n] {
			n.apply()
		}
	}
}

// back gives a node back to Calico: the agent ends, Felix and BIRD begin, and then goes what Weir
// left.
func (f *besideCalico) back(n *node) {
	f.t.Helper()
	n.driver.kill()
	n.driver.takesFrom, n.local = "", nil
	f.hasCalico(n)
	f.told(n)
	f.calico(n)
	n.driver.spawn("WEIR_TEST_DRIVER=leave")
	n.driver.stdin.Close()
	if err := n.driver.cmd.Wait(); err != nil {
		f.t.Fatalf("%s: cleaning up: %v", n.name, err)
	}
	n.driver.cmd = nil
	var got []string
	for line := range strings.Lines(run(f.t, "ip -n %s -o route show proto bird", n.netns)) {
		if words := strings.Fields(line); words[0] != "blackhole" && strings.Contains(words[0], "/") {
			got = append(got, strings.Join(words[:5], " "))
		}
	}
	var wanted []string
	for _, m := range f.nodes {
		if m != n {
			to, _ := f.block(m)
			wanted = append(wanted, fmt.Sprintf("%s via %s dev %s", to, m.addr, map[bool]string{true: "tunl0", false: "eth0"}[f.tunnelled(n, m)]))
		}
	}
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		f.t.Errorf("%s: BIRD's routes are %q, want %q", n.name, got, wanted)
	}
	if left := run(f.t, "ip -n %s -o route show proto %d; ip -n %s -o link show | grep -E ': (weir|vxlan)' || true", n.netns, kernel.RouteProtocol, n.netns); left != "" {
		f.t.Errorf("%s: of Weir there is left %s", n.name, left)
	}
	// BIRD does that when it looks at the kernel's table.
	run(f.t, "ip -n %s -o route show proto bird | grep -v -e / -e blackhole | while read to rest; do ip -n %s route del $to proto bird; done", n.netns, n.netns)
}

// leaveMain does what the clean-up of a node does that Calico has by now.
func leaveMain() error {
	if err := errors.Join(remains.HandBack(), nft.Remove(context.Background())); err != nil {
		return err
	}
	links, err := kernel.Dump(netlink.LinkList)
	errs := []error{err}
	for _, l := range links {
		if l.Attrs().Alias != kernel.DeviceAlias || l.Attrs().Name == kernel.HostPeer {
			continue
		}
		errs = append(errs, netlink.LinkDel(l))
	}
	return errors.Join(errs...)
}

// before is the node that a driver takes over; nil = it takes over none.
type before struct {
	tunnel netip.Addr // of Calico's device
	begun  bool
}

// openBefore reads from the environment which address the device of Calico has.
func openBefore() (*before, error) {
	tunnel := os.Getenv("WEIR_TEST_CALICO")
	if tunnel == "" {
		return nil, remains.EndIPIP()
	}
	a, err := netip.ParseAddr(tunnel)
	return &before{tunnel: a}, err
}

// begin takes over what leads to other nodes, and end removes what Felix left: before and after the
// first state.
func (b *before) begin() error {
	if b == nil || b.begun {
		return nil
	}
	b.begun = true
	err := errors.Join(remains.TakeIPIP(b.tunnel), remains.AdoptRoutes(), remains.RemoveVXLAN())
	time.Sleep(300 * time.Millisecond) // as long as an agent may take until it has a state
	return err
}

func (b *before) end() error {
	if b == nil {
		return nil
	}
	_, err := remains.Remove(true)
	return err
}

// plainly counts packets from pods to pods that are on a wire without a tunnel: between pods of all
// nodes, or with CrossSubnet to and from those of n2.
func (f *besideCalico) plainly() (count func() string) {
	what := "ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 counter"
	if f.mode == model.EncapCrossSubnet {
		what = "ip saddr 10.244.2.0/26 ip daddr 10.244.0.0/16 counter; ip saddr 10.244.0.0/16 ip daddr 10.244.2.0/26 counter"
	}
	run(f.t, "ip netns exec %s-sw nft 'table bridge seen { chain forwarded { type filter hook forward priority 0; ether type ip %s; }; }'", f.prefix, strings.ReplaceAll(what, "; ", "; ether type ip "))
	return func() string {
		return run(f.t, "ip netns exec %s-sw nft list table bridge seen | grep -o 'counter packets .*' | grep -v 'packets 0 ' || true", f.prefix)
	}
}

// stranger asks, all the time, whom a policy lets it not ask, and end reports what it was told.
func (f *besideCalico) stranger(t *testing.T, w *worker, addr string) (end func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	var served []string
	asked := 0
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			began := time.Now()
			if a := w.get(networks[asked%2], addr, 100); a.Err == "" {
				served = append(served, fmt.Sprintf("%s: %s", began.Format(clock), a.Reply))
			}
			asked++
		}
	}()
	return func() {
		close(stop)
		<-done
		t.Logf("%s asked %s %d times", w.name, addr, asked)
		if len(served) > 0 {
			t.Errorf("%s was served by %s: %q", w.name, addr, served)
		}
	}
}

// reach asks from pods and nodes, on whichever plugin each is.
func (f *besideCalico) reach(t *testing.T, when string) {
	t.Helper()
	for _, nw := range networks {
		want(t, when+": "+nw+" same node", f.a.reaches("b", nw, f.b.at("8080")), "10.244.1.2")
		want(t, when+": "+nw+" behind the router", f.a.reaches("c", nw, f.c.at("8080")), "10.244.1.2")
		want(t, when+": "+nw+" back", f.c.reaches("a", nw, f.a.at("8080")), "10.244.2.2")
		want(t, when+": "+nw+" on the link", f.a.reaches("e", nw, f.e.at("8080")), "10.244.1.2")
		want(t, when+": "+nw+" from the link", f.e.reaches("a", nw, f.a.at("8080")), "10.244.3.2")
		want(t, when+": "+nw+" outside", f.a.reaches("client", nw, "172.30.0.55:7000"), "172.30.0.8")
		for _, ask := range []struct {
			from *node
			to   *pod
			at   *node
		}{{f.n1, f.d, f.n2}, {f.n2, f.b, f.n1}, {f.n3, f.b, f.n1}, {f.n3, f.d, f.n2}} {
			source := ask.from.addr
			if !(f.weir[ask.from] && f.weir[ask.at]) && f.tunnelled(ask.from, ask.at) { // Calico's nodes answer it through the tunnel
				_, source = f.block(ask.from)
			}
			want(t, fmt.Sprintf("%s: %s of %s itself", when, nw, ask.from.name), ask.from.reaches(ask.to.name, nw, ask.to.at("8080")), source.String())
		}
		if _, tunnel := f.block(f.n1); f.n1.driver.takesFrom != "" || !f.weir[f.n1] {
			want(t, when+": "+nw+" node port, masqueraded", f.client.reaches("d", nw, "172.30.0.8:30004"), tunnel.String())
		}
		f.b.refused(nw, f.c.at("8080"))
		f.d.refused(nw, f.a.at("8080"))
	}
}

// TestIPIPFromCalico: nodes of a cluster in which Calico sends by IP in IP change to Weir one after
// the other, and one of them back and again, while connections are open between all of them. None
// is lost, no packet of a pod is on a wire that a tunnel is for, and whom a policy lets in nowhere
// gets in at no time.
func TestIPIPFromCalico(t *testing.T) {
	for name, mode := range map[string]model.EncapMode{"nft-always": model.EncapAlways, "nft-crosssubnet": model.EncapCrossSubnet} {
		t.Run(name, func(t *testing.T) {
			needIPIP(t)
			f := newBesideCalico(t, mode)
			plainly := f.plainly()
			f.reach(t, "with Calico")
			var all []*running
			f.client.lines(":8081")
			for _, p := range []*pod{f.a, f.b, f.c, f.e} {
				p.lines(":8081")
			}
			for _, s := range []struct {
				from *pod
				to   string
			}{{f.a, f.c.at("8081")}, {f.c, f.a.at("8081")}, {f.a, f.e.at("8081")}, {f.e, f.c.at("8081")}, {f.a, f.b.at("8081")}, {f.a, "172.30.0.55:8081"}} {
				for _, nw := range networks {
					all = append(all, s.from.stream(t, len(all)+1, 1, 100*time.Millisecond, nw, s.to))
				}
			}
			dropped, none := queueDrops(t), 0
			all = allGoOn(t, all, "with Calico", &none)
			step := func(what string, do func(*node), n *node) {
				t.Helper()
				ends := []func(){f.stranger(t, f.b.worker, f.c.at("8080")), f.stranger(t, f.d.worker, f.a.at("8080"))}
				do(n)
				all = allGoOn(t, all, n.name+" "+what, &none)
				for _, end := range ends {
					end()
				}
				f.reach(t, n.name+" "+what)
			}
			step("has changed", f.changes, f.n1)
			step("has changed", f.changes, f.n2)
			step("has changed", f.changes, f.n3)
			step("is back", f.back, f.n1)
			step("has changed again", f.changes, f.n1)
			for _, n := range f.nodes {
				step("has nothing of Calico's", func(n *node) {
					n.driver.kill()
					n.driver.takesFrom, n.local = "", nil
					n.driver.start()
					n.apply()
				}, n)
			}
			for _, n := range f.nodes {
				if left := run(t, "ip -n %s -o addr show dev tunl0; ip -n %s route show proto bird; ip netns exec %s nft list ruleset | grep cali- || true; ip -n %s -o link show tunl0 up", n.netns, n.netns, n.netns, n.netns); left != "" {
					t.Errorf("%s: of Calico there is left %s", n.name, left)
				}
			}
			endStreams(t, all, dropped)
			if seen := plainly(); seen != "" {
				t.Errorf("packets of pods were on the wire without a tunnel: %s", seen)
			}
		})
	}
}
