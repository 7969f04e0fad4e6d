// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/model"
)

// machine is a virtual machine: a namespace whose interface is behind a bridge in that of the pod
// in which it runs, as KubeVirt's binding "bridge" has it. To move it, its link to the bridge goes
// to the other pod.
type machine struct {
	*worker
	f            *fixture
	netns        string
	home, target *pod
	addrs        []netip.Addr
	at           string // node to which packets for it go
}

// newMachine makes one in a pod of n1, with a pod of n2 for it to move to.
func (f *fixture) newMachine(t *testing.T) *machine {
	labels := map[string]string{"app": "vm"}
	m := &machine{f: f, home: f.n1.newPod("launcher1", labels), target: f.n2.newPod("launcher2", labels), at: "n1"}
	m.addrs = m.home.local.Addrs
	unused := m.target.local.Addrs
	m.target.local.Addrs, m.target.local.MAC = m.addrs, m.home.local.MAC
	m.home.obj.UID, m.target.obj.UID = "one", "two"
	m.target.obj.Addrs = m.addrs
	f.cluster.Pods.Put(m.home.obj)
	f.cluster.Pods.Put(m.target.obj)
	m.netns = f.newNetns("vm")
	mac := m.home.local.MAC
	for i, p := range []*pod{m.home, m.target} {
		ns := f.prefix + "-" + p.name
		run(t, "ip -n %s addr flush dev eth0; ip -n %s link set eth0 address 02:00:00:00:77:%02x; ip netns exec %s sysctl -qw net.ipv6.conf.default.disable_ipv6=1 net.ipv6.conf.all.disable_ipv6=1; "+
			"ip -n %s link add k6t type bridge; ip -n %s link set eth0 master k6t; ip -n %s link set k6t up", ns, ns, i+1, ns, ns, ns, ns)
	}
	run(t, "ip link add tap0 netns %s-launcher1 type veth peer name eth0 netns %s; ip -n %s-launcher1 link set tap0 master k6t up; "+
		"ip -n %s link set eth0 address %02x:%02x:%02x:%02x:%02x:%02x; ip -n %s link set eth0 up", f.prefix, m.netns, f.prefix, m.netns, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], m.netns)
	for _, a := range m.addrs {
		via := map[bool]string{true: "169.254.1.1", false: "fe80::ecee:eeff:feee:eeee"}[a.Is4()]
		nodad := map[bool]string{true: "", false: "nodad"}[a.Is4()]
		run(t, "ip -n %s addr add %s/%d dev eth0 %s; ip -n %s route add %s dev eth0; ip -n %s route add default via %s dev eth0 onlink; "+
			"ip -n %s neigh add %s lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent", m.netns, a, a.BitLen(), nodad, m.netns, via, m.netns, via, m.netns, via)
	}
	for _, a := range unused {
		run(t, "ip -n %s route del %s dev %s", f.n2.netns, a, m.target.local.Interface)
	}
	m.worker = f.startWorker("vm", m.netns, "")
	for _, nw := range networks {
		m.listen(nw, ":8080")
	}
	m.lines(":8081")
	return m
}

// goes makes a node that of the machine's address; moving says whether it is moved to n2.
func (m *machine) goes(t *testing.T, node string, moving bool) {
	t.Helper()
	for _, a := range m.addrs {
		vm := &model.BlockVM{Name: model.Name{Namespace: "default", Name: "vm"}, Pod: "one"}
		if moving {
			vm.TargetNode, vm.TargetPod = "n2", "two"
		}
		cidr := netip.PrefixFrom(a, a.BitLen())
		m.f.cluster.Blocks[cidr] = &model.Block{CIDR: cidr, Node: node, VM: vm}
		// The agent does that.
		for _, n := range m.f.nodes {
			p := map[string]*pod{"n1": m.home, "n2": m.target}[n.name]
			if n.name == node {
				run(t, "ip -n %s route replace %s dev %s scope link", n.netns, a, p.local.Interface)
			} else if slices.ContainsFunc(n.pods, func(o *pod) bool { return o == p }) {
				run(t, "ip -n %s route del %s dev %s || true", n.netns, a, p.local.Interface)
			}
		}
	}
	m.at = node
	m.f.apply()
}

// reachesBy lets a client send to a machine by a node.
func (h *host) reachesBy(t *testing.T, machine string, n *node) {
	t.Helper()
	fam := n.lan.family
	run(t, "ip -n %s route replace %s%s via %s", h.netns, fam.addr(machine), map[bool]string{false: "/32", true: "/128"}[fam == ipv6], fam.addr(n.addr.String()))
}

// moves takes the machine itself to another pod.
func (m *machine) moves(t *testing.T, from, to *pod) {
	t.Helper()
	run(t, "ip -n %s-%s link set tap0 nomaster; ip -n %s-%s link set tap0 netns %s-%s; ip -n %s-%s link set tap0 master k6t up",
		m.f.prefix, from.name, m.f.prefix, from.name, m.f.prefix, to.name, m.f.prefix, to.name)
}

// TestMachine: open connections of a virtual machine, from pods of both nodes and from outside, go
// on while it is moved to another node, with its address; before that, and after a migration that
// fails, everything goes to the pod in which it runs.
func TestMachine(t *testing.T) { inBoth(t, func(t *testing.T, fam family) { testMachine(t, fam) }) }

func testMachine(t *testing.T, fam family) {
	f := newFixture(t, fam)
	for name, p := range f.cluster.Pools { // what a machine sends out on an open connection begins one at the new node, and would get that node's address
		routed := *p
		routed.NATOutgoing = false
		f.cluster.Pools[name] = &routed
	}
	m := f.newMachine(t)
	own := m.addrs[0].String()
	f.client.reachesBy(t, own, f.n1)
	m.goes(t, "n1", true)
	var all []*running
	for i, from := range []*worker{f.a.worker, f.c.worker, f.client.worker} {
		for j, nw := range networks {
			all = append(all, from.stream(t, 10*i+j+1, 2, 20*time.Millisecond, nw, own+":8081"))
		}
	}
	f.c.lines(":8081")
	all = append(all, m.stream(t, 90, 2, 20*time.Millisecond, "tcp", f.c.local.Addrs[0].String()+":8081"))
	reach := func(when string) {
		t.Helper()
		for _, nw := range networks {
			want(t, when+": "+nw+" from n1", f.a.reaches("vm", nw, own+":8080"), "10.244.1.2")
			want(t, when+": "+nw+" from n2", f.c.reaches("vm", nw, own+":8080"), "10.244.2.2")
			want(t, when+": "+nw+" from outside", f.client.reaches("vm", nw, own+":8080"), "172.30.0.55")
			want(t, when+": "+nw+" to n2", m.reaches("c", nw, f.c.at("8080")), own)
		}
	}
	none := 0
	all = allGoOn(t, all, "before", &none)
	reach("before")
	m.moves(t, m.home, m.target)
	m.goes(t, "n2", true)
	all = allGoOn(t, all, "moved", &none)
	reach("moved")
	m.moves(t, m.target, m.home) // the migration fails
	m.goes(t, "n1", false)
	all = allGoOn(t, all, "back", &none)
	reach("back")
	for _, s := range all {
		s.end(t)
	}
}
