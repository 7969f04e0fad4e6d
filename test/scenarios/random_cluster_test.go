// SPDX-License-Identifier: Apache-2.0

package scenarios_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/test/scenarios/scenario"
)

// crowd makes random clusters that are small and crowded, so that everything meets everything. Node
// n0 is the one under test; n1 is on its link, n2 behind the router.
type crowd struct {
	*rand.Rand
	c     *model.Cluster
	later *rand.Rand  // for what came later
	mtus  map[int]int // of node n0's interfaces, as in scenario.Machine
	// What else its kernel has, as in scenario.Machine.
	own   []netip.Addr
	aside []netip.Prefix
}

func one[T any](r *crowd, of ...T) T { return of[r.IntN(len(of))] }

func (r *crowd) chance(percent int) bool { return r.IntN(100) < percent }

var (
	ownAddr   = netip.MustParseAddr("172.31.1.10")
	ownSubnet = netip.MustParsePrefix("172.31.1.0/24")
	nodeAddrs = []netip.Addr{ownAddr, netip.MustParseAddr("172.31.1.11"), netip.MustParseAddr("172.31.2.12")}
	outside   = addrs("172.31.1.55", "172.31.9.9", "8.8.8.8")
	localPods = addrs("10.244.0.2", "10.244.0.3", "10.244.0.4", "10.244.9.5") // the last one outside of the blocks
	otherPods = addrs("10.244.1.2", "10.244.1.3", "10.244.2.2", "10.244.9.6")
	clusterIP = addrs("10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4")
	otherVIPs = addrs("203.0.113.1", "203.0.113.2")
	linkVIPs  = addrs("172.31.1.241", "172.31.1.242")
	nobody    = addrs("10.244.0.60", "10.244.77.7", "10.96.0.99", "224.0.0.1", "255.255.255.255")
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func macOf(a netip.Addr) [6]byte {
	b := a.As4()
	return [6]byte{2, 0, b[0], b[1], b[2], b[3]}
}

const (
	bridge   = 1006 // of containers: neither an uplink nor a pod's
	firstPod = 1100
)

func newCrowd(seed uint64) *crowd {
	r := &crowd{Rand: rand.New(rand.NewPCG(seed, 7)), later: rand.New(rand.NewPCG(seed, 13)), c: model.NewCluster()}
	r.mtus = map[int]int{0: one(r, 1500, 1500, 1300), scenario.Uplink: one(r, 1500, 1500, 1280)}
	c := r.c
	// Time-outs far apart from each other and from how long a round takes; see
	// differential.advance.
	c.Settings.Timeouts = model.Timeouts{TCPSynSent: 20 * time.Second, TCPEstablished: time.Hour, TCPFins: 53 * time.Second, TCPReset: 120 * time.Second,
		UDP: 55 * time.Second, ICMP: 20 * time.Second, Generic: time.Hour, Fragment: 55 * time.Second}
	c.Settings.DSRTimes = model.DSRTimes{Patience: 7 * time.Second, Tries: 120 * time.Second, Retry: 155 * time.Second}
	if share := (&crowd{Rand: rand.New(rand.NewPCG(seed, 11))}); share.chance(40) { // all else is what it is without
		c.Settings.MaxFlows = one(share, 8, 24, 64) // the share of a pod is used up soon
	}
	other := &crowd{Rand: rand.New(rand.NewPCG(seed, 13)), c: c}
	if r.chance(30) {
		c.Settings.SNATPortLast = c.Settings.SNATPortFirst + 3
	}
	c.Local = model.Local{Node: "n0", LinkMTU: 1500, HostAddrs: []netip.Addr{ownAddr}, Subnets: []netip.Prefix{ownSubnet},
		Endpoints: map[netip.Addr]*model.LocalEndpoint{}}
	other.kernel()
	r.own, r.aside = other.own, other.aside
	// BGP: of the pods behind the router the kernel may have learned that they are by its second
	// uplink.
	if bgp := (&crowd{Rand: rand.New(rand.NewPCG(seed, 17))}); bgp.chance(30) {
		c.BGPPeers["router"] = &model.BGPPeer{Name: "router", Addr: netip.MustParseAddr("172.31.1.1"), ASN: 64999}
		if bgp.chance(60) {
			r.aside = append(r.aside, netip.MustParsePrefix("10.244.2.0/26"))
		}
	}
	for i, a := range nodeAddrs {
		n := &model.Node{Name: fmt.Sprintf("n%d", i), Addrs: []netip.Addr{a}, LinkAddress: macOf(a)}
		if p, err := a.Prefix(24); err == nil {
			n.Subnets = []netip.Prefix{p}
		}
		c.Nodes[n.Name] = n
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 26)
		c.Blocks[block] = &model.Block{CIDR: block, Node: n.Name}
	}
	c.Namespaces["default"] = &model.Namespace{Name: "default", Labels: map[string]string{"team": "x", "weir.dev/service-backends": "any"}}
	c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	c.Reservations = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")} // pods may be on other nodes than their addresses' blocks
	r.pool()
	for i := range localPods {
		r.localPod(i)
	}
	for i, a := range otherPods {
		r.pod(fmt.Sprintf("o%d", i), one(r, "n1", "n2"), a)
	}
	for range 2 + r.IntN(3) {
		r.service()
	}
	for range r.IntN(4) {
		r.policy()
	}
	r.tiers()
	for range r.IntN(3) {
		r.tiered()
	}
	for range max(0, r.IntN(6)-2) {
		r.clusterPolicy()
	}
	r.mode()
	if r.chance(50) {
		r.hostEndpoints()
	}
	return r
}

func (r *crowd) mode() {
	s := &r.c.Settings
	s.DSR, s.HostNAT, s.NATExcludeHostIPs = r.chance(50), r.chance(85), r.chance(30)
	s.NodePorts = one(r, model.NodePortAddresses{}, model.NodePortAddresses{}, model.NodePortAddresses{Primary: true},
		model.NodePortAddresses{CIDRs: []netip.Prefix{ownSubnet}}, model.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("172.31.2.0/24")}})
	s.ExcludeFromNAT, s.DSROptOut = nil, nil
	if r.chance(15) {
		s.ExcludeFromNAT = []netip.Prefix{one(r, netip.MustParsePrefix("10.96.0.2/31"), netip.MustParsePrefix("203.0.113.1/32"), netip.MustParsePrefix("172.31.1.11/32"))}
	}
	for _, p := range []string{"172.31.1.0/26", "8.8.8.8/32"} {
		if r.chance(25) {
			s.DSROptOut = append(s.DSROptOut, netip.MustParsePrefix(p))
		}
	}
}

func (r *crowd) pool() {
	r.c.Pools["pool"] = &model.Pool{Name: "pool", CIDR: netip.MustParsePrefix("10.244.0.0/16"), BlockBits: 26, Workload: true,
		VXLAN: one(r, model.EncapNever, model.EncapAlways, model.EncapCrossSubnet), NATOutgoing: r.chance(70)}
	delete(r.c.Pools, "lb")
	if r.chance(60) { // of load balancers, on the link
		r.c.Pools["lb"] = &model.Pool{Name: "lb", CIDR: netip.MustParsePrefix("172.31.1.240/28"), BlockBits: 28, LoadBalancer: true}
	}
}

func (r *crowd) labels() map[string]string { return map[string]string{"app": one(r, "x", "y", "z")} }

func (r *crowd) pod(name, node string, a netip.Addr) model.Name {
	n := model.Name{Namespace: "default", Name: name}
	r.c.Pods.Put(&model.Pod{Name: n, Labels: r.labels(), Node: node, Addrs: []netip.Addr{a}, Asked: []netip.Addr{a},
		Ports: []model.PodPort{{Name: "web", Protocol: model.ProtocolTCP, Port: 8080}}})
	return n
}

// localPod adds one of the node's pods.
func (r *crowd) localPod(i int) {
	a := localPods[i]
	name := r.pod(fmt.Sprintf("l%d", i), "n0", a)
	r.c.Local.Endpoints[a] = &model.LocalEndpoint{Pod: name, Interface: fmt.Sprintf("cali%d", i), IfIndex: firstPod + i,
		MAC: macOf(a), Addrs: []netip.Addr{a}, NetnsCookie: uint64(i + 1)}
}

// service adds or replaces one of four services.
func (r *crowd) service() {
	i := r.IntN(len(clusterIP))
	n := model.Name{Namespace: "default", Name: fmt.Sprintf("s%d", i)}
	s := &model.Service{Name: n, ClusterIPs: []netip.Addr{clusterIP[i]}, Ports: []model.ServicePort{
		{Name: "t", Protocol: model.ProtocolTCP, Port: 80}, {Name: "u", Protocol: model.ProtocolUDP, Port: 53}, {Name: "s", Protocol: model.ProtocolSCTP, Port: 29}}}
	if r.chance(60) {
		for p := range s.Ports {
			s.Ports[p].NodePort = 30000 + uint16(i)
		}
	}
	if r.chance(30) {
		s.ExternalIPs = []netip.Addr{one(r, otherVIPs...)}
	}
	if r.chance(45) {
		s.LBIPs = []netip.Addr{one(r, slices.Concat(otherVIPs, linkVIPs, linkVIPs)...)}
	}
	if r.chance(30) {
		s.Affinity = 55
	}
	if r.chance(40) {
		s.Restricted = true
		for range r.IntN(3) {
			s.SourceRanges = append(s.SourceRanges, one(r, netip.MustParsePrefix("172.31.9.0/24"), netip.MustParsePrefix("172.31.1.0/24"),
				netip.MustParsePrefix("10.244.0.0/31"), netip.MustParsePrefix("8.0.0.0/5"), netip.MustParsePrefix("10.244.0.2/32")))
		}
	}
	s.ExternalLocal, s.InternalLocal = r.chance(30), r.chance(20)
	s.Maglev = r.chance(40)
	s.ExternalMode = one(r, "", "", model.ExternalModeTunnel, model.ExternalModeDSR)
	r.c.Services[n] = s
	r.endpoints(n)
}

func (r *crowd) endpoints(svc model.Name) {
	s := &model.EndpointSlice{Name: model.Name{Namespace: svc.Namespace, Name: svc.Name + "-1"}, Service: svc, Ports: []model.EndpointPort{
		{Name: "t", Protocol: model.ProtocolTCP, Port: 8080}, {Name: "u", Protocol: model.ProtocolUDP, Port: one[uint16](r, 5353, 5353, 4789)},
		{Name: "s", Protocol: model.ProtocolSCTP, Port: 3929}}}
	for range r.IntN(4) {
		e := model.ServiceEndpoint{Ready: r.chance(75), Serving: true}
		if !e.Ready {
			e.Terminating, e.Serving = r.chance(80), r.chance(80)
		}
		switch r.IntN(8) {
		case 0:
			i := r.IntN(len(nodeAddrs))
			e.Addrs, e.Node = []netip.Addr{nodeAddrs[i]}, fmt.Sprintf("n%d", i)
		case 1:
			e.Addrs = []netip.Addr{one(r, outside...)}
		default:
			p := r.anyPod()
			e.Addrs, e.Node = p.Addrs, p.Node
		}
		if r.chance(70) {
			e.Hints = model.HintsFor(nil, []string{one(r, "n0", "n1")})
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	r.c.Slices[s.Name] = s
}

func (r *crowd) anyPod() *model.Pod {
	if r.chance(50) {
		return r.c.Pods.Get(model.Name{Namespace: "default", Name: fmt.Sprintf("l%d", r.IntN(len(localPods)))})
	}
	return r.c.Pods.Get(model.Name{Namespace: "default", Name: fmt.Sprintf("o%d", r.IntN(len(otherPods)))})
}

func (r *crowd) selector() *model.LabelSelector {
	if r.chance(25) {
		return nil
	}
	return &model.LabelSelector{Requirements: []model.Requirement{{Key: "app", Op: model.In, Values: []string{one(r, "x", "y", "z")}}}}
}

// policy adds or replaces one of four policies.
func (r *crowd) policy() {
	n := model.Name{Namespace: "default", Name: fmt.Sprintf("p%d", r.IntN(4))}
	p := &model.Policy{Kind: "NetworkPolicy", Name: n, Tier: "default", Subject: model.Selector{Namespace: "default", Pods: r.selector()}}
	p.AppliesIngress = r.chance(70)
	p.AppliesEgress = !p.AppliesIngress || r.chance(30)
	for range r.IntN(3) {
		p.Ingress = append(p.Ingress, r.rule())
		p.Egress = append(p.Egress, r.rule())
	}
	r.c.Policies[p.ID()] = p
}

func (r *crowd) rule() model.Rule {
	var rule model.Rule
	for range r.IntN(3) {
		if r.chance(50) {
			rule.Peers = append(rule.Peers, model.Peer{Pods: &model.Selector{Namespace: "default", Pods: r.selector()}})
			continue
		}
		peer := model.Peer{CIDR: one(r, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("172.31.0.0/16"), netip.MustParsePrefix("172.31.1.55/32"),
			netip.MustParsePrefix("10.244.0.0/30"))}
		if r.chance(40) {
			peer.Except = []netip.Prefix{one(r, netip.MustParsePrefix("172.31.9.0/24"), netip.MustParsePrefix("10.244.0.2/31"))}
		}
		rule.Peers = append(rule.Peers, peer)
	}
	for range r.IntN(3) {
		first := one[uint16](r, 80, 8080, 5353, 1000)
		rule.Ports = append(rule.Ports, one(r,
			model.PortRange{Protocol: model.ProtocolTCP, First: first, Last: first},
			model.PortRange{Protocol: model.ProtocolUDP, First: first, Last: first + 700},
			model.PortRange{Protocol: model.ProtocolSCTP, First: 3000, Last: 4000},
			model.PortRange{Protocol: model.ProtocolTCP, Named: "web"},
			model.PortRange{First: 0, Last: 65535}))
	}
	return rule
}

// sortedNames are the keys of m in an order that a seed repeats.
func sortedNames[V any](m map[model.Name]V) []model.Name {
	return slices.SortedFunc(maps.Keys(m), func(a, b model.Name) int { return strings.Compare(a.String(), b.String()) })
}

func sortedPolicies(m map[model.PolicyID]*model.Policy) []model.PolicyID {
	return slices.SortedFunc(maps.Keys(m), func(a, b model.PolicyID) int {
		return strings.Compare(a.Kind+" "+a.Name.String(), b.Kind+" "+b.Name.String())
	})
}

// change changes something.
func (r *crowd) change() {
	switch r.IntN(12) {
	case 10:
		r.clusterPolicy()
	case 11:
		r.hostEndpoints()
	case 8:
		r.tiered()
	case 9:
		r.tiers()
	case 0:
		r.mode()
	case 1:
		r.pool()
	case 2:
		r.service()
	case 3, 4:
		if names := sortedNames(r.c.Services); len(names) > 0 {
			r.endpoints(one(r, names...))
		}
	case 5:
		if ids := sortedPolicies(r.c.Policies); len(ids) > 0 {
			delete(r.c.Policies, one(r, ids...))
		}
	case 6:
		p := *r.anyPod()
		p.Labels = r.labels()
		r.c.Pods.Put(&p)
	default:
		r.policy()
	}
}

// machine is node n0.
func (r *crowd) machine() *scenario.Machine {
	return &scenario.Machine{Name: "n0", Addr: ownAddr, MAC: macOf(ownAddr), Subnets: []netip.Prefix{ownSubnet}, MTUs: r.mtus, Own: r.own, Aside: r.aside}
}
