// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/watch"
	"github.com/weir-net/weir/internal/why/wire"
)

// whyNode is a node with the nftables driver, in a network namespace of its own.
type whyNode struct {
	*nettest.Namespace
	agent  *testNode
	driver *nft.Driver
}

func newWhyNode(t *testing.T, name string) *whyNode {
	t.Helper()
	return &whyNode{Namespace: nettest.New(t, "node "+name), agent: newTestNode(name)}
}

// whyPair are two nodes on one switch with a pod each, web on n1 and db on n2, and a Service of
// each.
type whyPair struct {
	nodes map[string]*whyNode
	batch *watch.Batch
	set   func(*model.Settings)
	local func(*model.Local)
}

const (
	whyWeb, whyDB   = "10.244.1.5", "10.244.2.5"
	whyWeb6, whyDB6 = "fd00:10:244:1::5", "fd00:10:244:2::5"
	whyN1, whyN2    = "172.31.1.8", "172.31.1.9"
	whyN1v6, whyN26 = "fd00:172:31:1::8", "fd00:172:31:1::9"
	whyClient       = "172.31.1.55"
	whyClient6      = "fd00:172:31:1::55"
)

func addrsOf(text ...string) (out []netip.Addr) {
	for _, a := range text {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func prefixesOf(text ...string) (out []netip.Prefix) {
	for _, p := range text {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func newWhyPair(t *testing.T, encap model.EncapMode) *whyPair {
	t.Helper()
	nettest.NeedRoot(t, "loading programs")
	p := &whyPair{nodes: map[string]*whyNode{}, batch: whole(), set: func(s *model.Settings) { s.IPv6Support = true }, local: func(*model.Local) {}}
	b := p.batch
	b.Policies, b.Pods, b.Blocks = map[model.PolicyID]*model.Policy{}, map[model.Name]*model.Pod{}, map[netip.Prefix]*model.Block{}
	b.Services, b.Slices = map[model.Name]*model.Service{}, map[model.Name]*model.EndpointSlice{}
	b.Pools, b.PoolOrder = map[string]*model.Pool{}, []string{"four", "six"}
	for name, cidr := range map[string]string{"four": "10.244.0.0/16", "six": "fd00:10:244::/48"} {
		bits := 26
		if name == "six" {
			bits = 64
		}
		b.Pools[name] = &model.Pool{Name: name, CIDR: netip.MustParsePrefix(cidr), VXLAN: encap, NATOutgoing: true, BlockBits: bits, Workload: true}
	}
	b.ServiceCIDRs, b.ServiceCIDRsChanged = prefixesOf("10.96.0.0/16", "fd00:10:96::/112"), true
	subnets := prefixesOf("172.31.1.0/24", "fd00:172:31:1::/64")
	if encap == model.EncapAlways {
		subnets = nil // they are not on one link, as far as they know
	}
	for i, of := range []struct {
		node, pod string
		addrs     []netip.Addr
		podAddrs  []netip.Addr
		blocks    []netip.Prefix
	}{
		{"n1", "web", addrsOf(whyN1, whyN1v6), addrsOf(whyWeb, whyWeb6), prefixesOf("10.244.1.0/26", "fd00:10:244:1::/64")},
		{"n2", "db", addrsOf(whyN2, whyN26), addrsOf(whyDB, whyDB6), prefixesOf("10.244.2.0/26", "fd00:10:244:2::/64")},
	} {
		b.Nodes[of.node] = &model.Node{Name: of.node, Addrs: of.addrs, Subnets: subnets, LinkAddress: [6]byte{2, 0, 0, 0, 0, byte(8 + i)}}
		name := model.Name{Namespace: "shop", Name: of.pod}
		b.Pods[name] = &model.Pod{Name: name, Node: of.node, Labels: map[string]string{"app": of.pod}, Addrs: of.podAddrs}
		for _, block := range of.blocks {
			b.Blocks[block] = &model.Block{CIDR: block, Node: of.node}
		}
		b.Services[name] = &model.Service{Name: name, ClusterIPs: addrsOf(fmt.Sprint("10.96.0.", i+1), fmt.Sprint("fd00:10:96::", i+1)),
			Ports: []model.ServicePort{{Protocol: model.ProtocolTCP, Port: 80, NodePort: uint16(30001 + i)}}}
		for n, a := range of.podAddrs {
			slice := model.Name{Namespace: "shop", Name: fmt.Sprint(of.pod, "-", n)}
			b.Slices[slice] = &model.EndpointSlice{Name: slice, Service: name, Ports: []model.EndpointPort{{Protocol: model.ProtocolTCP, Port: 8080}},
				Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{a}, Node: of.node, Ready: true, Serving: true}}}
		}
		p.nodes[of.node] = newWhyNode(t, of.node)
	}
	p.wire(t)
	return p
}

// Interfaces of each node.
const whyPodLink, whyUplink = 7, 20

// wire connects the nodes, and makes their pods' interfaces.
func (p *whyPair) wire(t *testing.T) {
	t.Helper()
	n1, n2 := p.nodes["n1"], p.nodes["n2"]
	n1.Do(t, "the link", func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: whyUplink, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 8}},
			PeerName: "eth0", PeerNamespace: netlink.NsFd(n2.FD), PeerHardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}})
	})
	for name, n := range p.nodes {
		node := p.batch.Nodes[name]
		pod := p.podOf(name)
		n.Do(t, "interfaces", func() error {
			uplink, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cali1", Index: whyPodLink}, PeerName: "cali1p"}
			if err := netlink.LinkAdd(link); err != nil {
				return err
			}
			far, err := netlink.LinkByName("cali1p")
			if err != nil {
				return err
			}
			errs := []error{netlink.LinkSetUp(uplink), netlink.LinkSetUp(link), netlink.LinkSetUp(far)}
			for _, a := range node.Addrs {
				bits, flags := 24, 0
				if a.Is6() {
					bits, flags = 64, unix.IFA_F_NODAD
				}
				errs = append(errs, netlink.AddrAdd(uplink, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}, Flags: flags}))
			}
			for _, a := range pod.Addrs {
				errs = append(errs, netlink.RouteAdd(&netlink.Route{LinkIndex: whyPodLink, Scope: netlink.SCOPE_LINK,
					Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}))
			}
			n.driver, err = nft.New(nft.Options{Logger: slog.New(slog.DiscardHandler)})
			n.agent.plane = nftPlane{n.driver}
			return errors.Join(append(errs, err)...)
		})
	}
}

func (p *whyPair) podOf(node string) *model.Pod {
	for _, pod := range p.batch.Pods {
		if pod.Node == node {
			return pod
		}
	}
	return nil
}

// apply gives both nodes the state of what the cluster is now.
func (p *whyPair) apply(t *testing.T) {
	t.Helper()
	for name, n := range p.nodes {
		node, pod := p.batch.Nodes[name], p.podOf(name)
		index := whyUplink
		n.Do(t, "the index of eth0", func() error {
			l, err := netlink.LinkByName("eth0")
			if err == nil {
				index = l.Attrs().Index
			}
			return err
		})
		l := &n.agent.cluster.Local
		l.HostAddrs, l.Subnets, l.LinkMTU = node.Addrs, node.Subnets, 1500
		l.Interfaces = []model.LocalInterface{{Name: "eth0", IfIndex: index, Addrs: node.Addrs}}
		n.agent.mac = net.HardwareAddr(node.LinkAddress[:]).String()
		p.set(&n.agent.cluster.Settings)
		p.local(l)
		n.agent.update(p.batch, model.LocalEndpoint{Pod: pod.Name, ContainerID: "c", Interface: "cali1", IfIndex: whyPodLink, Addrs: pod.Addrs})
		n.Do(t, "applying", func() error { return n.driver.Apply(context.Background(), n.agent.state, nodestate.All()) })
	}
}

// put adds a policy.
func (p *whyPair) put(policy *model.Policy) {
	policy.Tier = "default"
	p.batch.Policies[policy.ID()] = policy
}

// ask asks a node, and then each that the packet is sent on to, as weir why does; no answer may be
// in doubt.
func (p *whyPair) ask(t *testing.T, node string, q wire.Request) (said string, answers []*wire.Answer) {
	t.Helper()
	q.SourcePort = 50000
	if q.Protocol == 0 {
		q.Protocol = model.ProtocolTCP
	}
	var parts []string
	for len(answers) < 4 {
		n := p.nodes[node]
		if err := q.Check(); err != nil {
			t.Errorf("%+v: %v", q, err)
		}
		i := &inquiry{agent: n.agent, state: n.agent.state, answer: &wire.Answer{Node: node}, ask: q}
		var err error
		n.Do(t, "asking", func() error { err = i.run(context.Background()); return nil })
		if err != nil {
			return strings.Join(append(parts, node+" error "+err.Error()), ", "), answers
		}
		a := i.answer
		answers = append(answers, a)
		o := a.Outcome
		word := node + " " + o.Verdict + " " + o.Reason + o.Path
		if o.Rule != "" && o.Verdict == wire.Dropped {
			word += " by " + o.Rule
		}
		parts = append(parts, word)
		if len(a.Warnings) > 0 || a.Tables == nil || !a.Tables.Same {
			t.Errorf("node %s, %s: in doubt: %q %+v", node, a.Packet, a.Warnings, a.Tables)
		}
		for _, e := range a.Policies {
			if !e.Agrees {
				t.Errorf("node %s, %s: %+v", node, a.Packet, e)
			}
		}
		if a.Next == nil {
			break
		}
		node, q.Hook, q.Received = a.Next.Node, "", &a.Next.Handover
	}
	return strings.Join(parts, ", "), answers
}

// whyCase is a question with its answer.
type whyCase struct {
	node, hook, from, to string
	port                 uint16
	want                 string
}

func (p *whyPair) play(t *testing.T, cases []whyCase) {
	t.Helper()
	for _, c := range cases {
		q := wire.Request{Hook: c.hook, Source: netip.MustParseAddr(c.from), Destination: netip.MustParseAddr(c.to), Port: c.port}
		if c.port == 0 {
			q.Protocol = model.ProtocolICMP
			if q.Source.Is6() {
				q.Protocol = model.ProtocolICMPv6
			}
		}
		said, answers := p.ask(t, c.node, q)
		if said != c.want {
			t.Errorf("%s > %s:%d:\n%s, want\n%s", c.from, c.to, c.port, said, c.want)
		}
		for _, a := range answers {
			if s := a.Service; s != nil && !slices.ContainsFunc(s.Backends, func(b wire.Backend) bool { return b.Usable }) {
				t.Errorf("%s > %s:%d, node %s: no endpoint of %+v may be used", c.from, c.to, c.port, a.Node, s)
			}
		}
	}
}

// TestWhyOnTwoNodes: on two nodes with nftables each takes the packet from the other one, on one
// link and by the tunnel, in both families, by Services and handed on; what denies is named.
func TestWhyOnTwoNodes(t *testing.T) {
	for _, c := range []struct {
		name, path string
		encap      model.EncapMode
		dsr        bool
	}{{"link", "direct", model.EncapNever, false}, {"tunnel", "tunnel", model.EncapAlways, false}, {"link, DSR", "direct", model.EncapNever, true}, {"tunnel, DSR", "tunnel", model.EncapAlways, true}} {
		t.Run(c.name, func(t *testing.T) {
			p := newWhyPair(t, c.encap)
			p.set = func(s *model.Settings) { s.IPv6Support, s.DSR = true, c.dsr }
			p.apply(t)
			sent := "n1 sent on " + c.path + ", n2 delivered local"
			for _, f := range []struct{ web, db, svc, near, n1, n2, client string }{
				{whyWeb, whyDB, "10.96.0.2", "10.96.0.1", whyN1, whyN2, whyClient}, {whyWeb6, whyDB6, "fd00:10:96::2", "fd00:10:96::1", whyN1v6, whyN26, whyClient6},
			} {
				p.play(t, []whyCase{
					{"n1", wire.FromWorkload, f.web, f.db, 8080, sent},
					{"n1", wire.FromWorkload, f.web, f.db, 0, sent},
					{"n1", wire.FromWorkload, f.web, f.svc, 80, sent},
					{"n1", wire.ToUplink, f.n1, f.db, 8080, sent},
					{"n1", wire.ToUplink, f.n1, f.svc, 80, sent},
					{"n1", wire.FromUplink, f.client, f.n1, 30002, sent},
					{"n1", wire.FromUplink, f.client, f.svc, 80, "n1 sent on " + c.path + ", n2 delivered local"},
					{"n1", wire.FromUplink, f.client, f.n1, 30001, "n1 delivered local"},
					{"n1", wire.FromUplink, f.client, f.near, 80, "n1 delivered local"},
					{"n1", wire.ToUplink, f.n1, f.n2, 22, "n1 sent on direct, n2 delivered stack"},
					{"n1", wire.FromWorkload, f.web, f.client, 443, "n1 left direct"},
				})
			}
			p.put(&model.Policy{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: "shop", Name: "closed"}, AppliesIngress: true,
				Subject: model.Selector{Namespace: "shop", Pods: &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.In, Values: []string{"db"}}}}},
				Ingress: []model.Rule{{Action: model.Allow, Peers: []model.Peer{{CIDR: netip.MustParsePrefix("198.51.100.0/24")}}}}})
			p.apply(t)
			denied := "n1 sent on " + c.path + ", n2 dropped POLICY_INGRESS by default-deny shop/closed ingress"
			for _, f := range []struct{ web, db, svc, n1, client string }{
				{whyWeb, whyDB, "10.96.0.2", whyN1, whyClient}, {whyWeb6, whyDB6, "fd00:10:96::2", whyN1v6, whyClient6},
			} {
				p.play(t, []whyCase{
					{"n1", wire.FromWorkload, f.web, f.db, 8080, denied},
					{"n1", wire.FromWorkload, f.web, f.svc, 80, denied},
					{"n1", wire.FromUplink, f.client, f.n1, 30002, denied},
					{"n1", wire.ToUplink, f.n1, f.db, 8080, denied}, // another node is a peer like any other
				})
			}
		})
	}
}

// TestWhySources: a pod sends with a source that it was granted, past its egress policy; without a
// grant it is dropped for that, and what is missing is named.
func TestWhySources(t *testing.T) {
	p := newWhyPair(t, model.EncapNever)
	p.set = func(s *model.Settings) { s.IPv6Support, s.SourceSpoofing = true, true }
	shop, web := p.batch.Namespaces["shop"], p.podOf("n1")
	shop.SourceGrants, web.Sources = prefixesOf("203.0.113.0/24"), prefixesOf("203.0.113.0/25", "198.51.100.0/24")
	ask := func(source, want, note string) []*wire.Answer {
		t.Helper()
		said, answers := p.ask(t, "n1", wire.Request{Hook: wire.FromWorkload, Source: netip.MustParseAddr(source), Sender: netip.MustParseAddr(whyWeb), Destination: netip.MustParseAddr(whyClient), Port: 443})
		if said != want || !slices.ContainsFunc(answers[0].Notes, func(n string) bool { return strings.Contains(n, note) }) {
			t.Errorf("%s: %s, %q; want %s, %s", source, said, answers[0].Notes, want, note)
		}
		return answers
	}
	p.apply(t)
	ask("203.0.113.7", "n1 left direct", "pod shop/web sends with 203.0.113.7, which is not its own: it asks for 203.0.113.0/25 (cni.projectcalico.org/allowedSourcePrefixes), and namespace shop grants 203.0.113.0/24 (weir.dev/allowed-source-prefixes)")
	ask("198.51.100.7", "n1 dropped SPOOFED", "it asks for 198.51.100.0/24, which namespace shop does not grant")
	ask("203.0.113.200", "n1 dropped SPOOFED", "it does not ask for that")
	p.put(&model.Policy{Kind: model.KindNetworkPolicy, Name: model.Name{Namespace: "shop", Name: "closed"}, AppliesEgress: true,
		Subject: model.Selector{Namespace: "shop", Pods: &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.In, Values: []string{"web"}}}}}})
	p.apply(t)
	if a := ask("203.0.113.7", "n1 dropped POLICY_EGRESS by default-deny shop/closed egress", "it asks for 203.0.113.0/25"); len(a[0].Policies) != 1 || a[0].Policies[0].Explanation.Pod.Name != "web" {
		t.Errorf("policy: %+v", a[0].Policies)
	}
	p.set = func(s *model.Settings) { s.SourceSpoofing = false }
	p.apply(t)
	ask("203.0.113.7", "n1 dropped SPOOFED", "workloadSourceSpoofing is not Any")
}

// whyWays are those by which nodes reach each other's pods.
var whyWays = []struct {
	path  string
	encap model.EncapMode
}{{"direct", model.EncapNever}, {"tunnel", model.EncapAlways}}

// TestWhyBesideKubeProxy: what another node hands on to a node with a kube-proxy is Weir's to
// explain, all else that is for a Service is not.
func TestWhyBesideKubeProxy(t *testing.T) {
	const theirs = "n2 error a kube-proxy carries Services on this node, and its rules are not Weir's to explain: ask for the address of an endpoint"
	for _, c := range whyWays {
		t.Run(c.path, func(t *testing.T) {
			p := newWhyPair(t, c.encap)
			p.local = func(l *model.Local) { l.KubeProxy = l.Node == "n2" }
			p.apply(t)
			for _, f := range []struct{ web, db, svc, near, n1, n2, client string }{
				{whyWeb, whyDB, "10.96.0.2", "10.96.0.1", whyN1, whyN2, whyClient}, {whyWeb6, whyDB6, "fd00:10:96::2", "fd00:10:96::1", whyN1v6, whyN26, whyClient6},
			} {
				p.play(t, []whyCase{
					{"n1", wire.FromUplink, f.client, f.n1, 30002, "n1 sent on " + c.path + ", n2 delivered local"},
					{"n1", wire.FromWorkload, f.web, f.svc, 80, "n1 sent on " + c.path + ", n2 delivered local"},
					{"n2", wire.FromWorkload, f.db, f.web, 8080, "n2 sent on " + c.path + ", n1 delivered local"},
					{"n2", wire.FromUplink, f.client, f.n2, 30002, theirs},
					{"n2", wire.FromWorkload, f.db, f.near, 80, theirs},
				})
			}
		})
	}
}

// TestWhyHostEndpointsOnTwoNodes: host endpoints of a node with nftables apply to what another node
// sends, what passes, and what the node itself sends.
func TestWhyHostEndpointsOnTwoNodes(t *testing.T) {
	for _, c := range whyWays {
		t.Run(c.path, func(t *testing.T) {
			p := newWhyPair(t, c.encap)
			p.batch.HostEndpoints = map[string]*model.HostEndpoint{"n2-all": {Name: "n2-all", Node: "n2", Interface: model.AllInterfaces, Labels: map[string]string{"host": "yes"}}}
			for _, policy := range []*model.Policy{
				{Name: model.Name{Name: "gate"}, Order: 2, AppliesIngress: true, AppliesEgress: true, Ingress: []model.Rule{{Action: model.Allow, Ports: tcpPort(9100)}}, Egress: []model.Rule{{Action: model.Allow, Ports: tcpPort(443)}}},
				{Name: model.Name{Name: "forward"}, Order: 1, ApplyOnForward: true, AppliesIngress: true, AppliesEgress: true,
					Ingress: []model.Rule{{Action: model.Deny, Ports: tcpPort(8081)}, {Action: model.Allow, Ports: tcpPort(8080)}},
					Egress:  []model.Rule{{Action: model.Deny, Ports: tcpPort(25)}, {Action: model.Allow}}},
				{Name: model.Name{Name: "first"}, ApplyOnForward: true, PreDNAT: true, AppliesIngress: true, Ingress: []model.Rule{{Action: model.Deny, Ports: tcpPort(30002)}}},
			} {
				policy.Kind, policy.Subject = model.KindGlobalNetworkPolicy, model.Selector{Expression: "host == 'yes'"}
				p.put(policy)
			}
			p.apply(t)
			on := "n1 sent on " + c.path + ", "
			handedOn := "n2 dropped HOST_PRE_DNAT by GlobalNetworkPolicy first ingress[0]"
			if c.path == "tunnel" { // of which no host endpoint is asked before Services
				handedOn = "n2 delivered local"
			}
			for _, f := range []struct{ web, db, svc, n1, n2, client string }{
				{whyWeb, whyDB, "10.96.0.2", whyN1, whyN2, whyClient}, {whyWeb6, whyDB6, "fd00:10:96::2", whyN1v6, whyN26, whyClient6},
			} {
				p.play(t, []whyCase{
					{"n1", wire.ToUplink, f.n1, f.n2, 9100, "n1 sent on direct, n2 delivered stack"},
					{"n1", wire.ToUplink, f.n1, f.n2, 22, "n1 sent on direct, n2 delivered stack"}, // a failsafe port
					{"n1", wire.ToUplink, f.n1, f.n2, 9101, "n1 sent on direct, n2 dropped HOST_INGRESS by default-deny forward,gate ingress"},
					{"n2", wire.FromUplink, f.client, f.n2, 9101, "n2 dropped HOST_INGRESS by default-deny forward,gate ingress"},
					{"n2", wire.FromUplink, f.client, f.n2, 30002, "n2 dropped HOST_PRE_DNAT by GlobalNetworkPolicy first ingress[0]"},
					{"n2", wire.ToUplink, f.n2, f.client, 443, "n2 left direct"},
					{"n2", wire.ToUplink, f.n2, f.client, 25, "n2 dropped HOST_EGRESS by GlobalNetworkPolicy forward egress[0]"},
					{"n2", wire.ToUplink, f.n2, f.n1, 9101, "n2 sent on direct, n1 delivered stack"},
					{"n2", wire.FromWorkload, f.db, f.client, 25, "n2 dropped HOST_EGRESS by GlobalNetworkPolicy forward egress[0]"},
					{"n2", wire.FromWorkload, f.db, f.client, 443, "n2 left direct"},
					{"n1", wire.FromWorkload, f.web, f.db, 8080, on + "n2 delivered local"},
					{"n1", wire.FromWorkload, f.web, f.db, 8081, on + "n2 dropped HOST_INGRESS by GlobalNetworkPolicy forward ingress[0]"},
					{"n1", wire.FromWorkload, f.web, f.svc, 80, on + "n2 delivered local"},
					{"n1", wire.FromUplink, f.client, f.n1, 30002, on + handedOn},
					{"n2", wire.FromUplink, f.client, f.n2, 30001, "n2 sent on " + c.path + ", n1 delivered local"}, // not handed on, but translated
				})
			}
		})
	}
}
