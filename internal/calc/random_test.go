// SPDX-License-Identifier: Apache-2.0

package calc

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/weir-net/weir/internal/calc/cluster"
	"github.com/weir-net/weir/internal/calc/peer"
	"github.com/weir-net/weir/internal/calc/service"
	"github.com/weir-net/weir/internal/model"
)

// world makes random clusters that are small and crowded, so that everything meets everything.
// Whether the node carries IPv6 is left to chance, and changes: by a pool, by an address of the
// node, by the setting.
type world struct {
	*rand.Rand
	claims *world     // draws what nodes claim: apart, so that all else is as it is without
	later  *rand.Rand // for what Services ask for: the same
	names  *world     // for domain names: the same
	bgp    *rand.Rand // the same
	c      *model.Cluster
}

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), c: model.NewCluster(), claims: &world{Rand: rand.New(rand.NewPCG(seed, 5))}, later: rand.New(rand.NewPCG(seed, 2)), names: &world{Rand: rand.New(rand.NewPCG(seed, 7))}, bgp: rand.New(rand.NewPCG(seed, 6))}
	w.c.Local = model.Local{Node: "n0", LinkMTU: 1500, Endpoints: map[netip.Addr]*model.LocalEndpoint{},
		HostAddrs: []netip.Addr{addr("172.31.1.10")}, Subnets: []netip.Prefix{netip.MustParsePrefix("172.31.1.0/24")},
		Interfaces: []model.LocalInterface{{Name: "eth0", IfIndex: 2, Addrs: []netip.Addr{addr("172.31.1.10")}}}}
	if w.IntN(2) == 0 {
		w.c.Local.HostAddrs = append(w.c.Local.HostAddrs, addr("fd00:31:1::10"), addr("fe80::10"))
		w.c.Local.Subnets = append(w.c.Local.Subnets, prefix("fd00:31:1::/64"))
	}
	return w
}

// both sometimes leaves one of two out, for lists of addresses of two families.
func (w *world) both(four, six string) []netip.Addr {
	return pick(w, []netip.Addr{addr(four), addr(six)}, []netip.Addr{addr(six), addr(four)}, []netip.Addr{addr(four)}, []netip.Addr{addr(six)})
}

func addr(s string) netip.Addr        { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix    { return netip.MustParsePrefix(s) }
func pick[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

var (
	worldNamespaces = []string{"a", "b", "c"}
	worldProtocols  = []model.Protocol{model.ProtocolTCP, model.ProtocolUDP, model.ProtocolSCTP}
)

func (w *world) labels() map[string]string {
	out := map[string]string{}
	for _, k := range []string{"app", "tier"} {
		if w.IntN(3) > 0 {
			out[k] = pick(w, "x", "y", "z")
		}
	}
	return out
}

func (w *world) labelSelector() *model.LabelSelector {
	if w.IntN(4) == 0 {
		return nil
	}
	s := &model.LabelSelector{}
	for range w.IntN(3) {
		r := model.Requirement{Key: pick(w, "app", "tier"), Op: pick(w, model.In, model.In, model.NotIn, model.Exists, model.DoesNotExist)}
		if r.Op == model.In || r.Op == model.NotIn {
			r.Values = pick(w, []string{"x"}, []string{"y"}, []string{"x", "z"})
		}
		s.Requirements = append(s.Requirements, r)
	}
	return s
}

func (w *world) selector() model.Selector {
	s := model.Selector{Pods: w.labelSelector()}
	if w.IntN(2) == 0 {
		s.Namespace = pick(w, worldNamespaces...)
	} else {
		s.Namespaces = w.labelSelector()
	}
	return s
}

func (w *world) cidr() netip.Prefix {
	return pick(w, prefix("0.0.0.0/0"), prefix("10.0.0.0/8"), prefix("10.1.0.0/24"), prefix("10.1.0.0/26"), prefix("10.1.0.16/28"),
		prefix("10.1.0.17/32"), prefix("192.168.0.0/16"), prefix("192.168.7.0/24"), prefix("192.168.7.9/32"),
		prefix("2001:db8::/32"), prefix("::/0"), prefix("fd00:1::/48"), prefix("fd00:1::/122"), prefix("fd00:1::10/124"), prefix("fd00:1::11/128"),
		prefix("fe80::/10"))
}

func (w *world) peer() model.Peer {
	if w.IntN(2) == 0 {
		s := w.selector()
		return model.Peer{Pods: &s}
	}
	p := model.Peer{CIDR: w.cidr()}
	for range w.IntN(3) {
		p.Except = append(p.Except, w.cidr())
	}
	return p
}

func (w *world) portRange() model.PortRange {
	r := model.PortRange{Protocol: pick(w, worldProtocols...)}
	switch w.IntN(6) {
	case 0:
		r.First, r.Last = 0, 65535
	case 1:
		r.Protocol, r.First, r.Last = pick(w, model.ProtocolAny, model.ProtocolICMP), 0, 65535
	case 2:
		r.Named = pick(w, "http", "dns")
		if w.IntN(4) == 0 {
			r.Protocol = model.ProtocolAny
		}
	case 3:
		r.First = uint16(w.IntN(100))
		r.Last = r.First + uint16(w.IntN(30))
	case 4:
		r.First = pick(w, uint16(0), 1, 80, 65534, 65535, 32767)
		r.Last = max(r.First, pick(w, uint16(0), 80, 81, 1024, 65535))
		if w.IntN(4) == 0 {
			r.Protocol = model.ProtocolAny
		}
	default:
		r.First = pick(w, uint16(53), 80, 8080)
		r.Last = r.First
	}
	return r
}

func (w *world) rules() []model.Rule {
	var out []model.Rule
	for range w.IntN(4) {
		r := model.Rule{Action: pick(w, model.Allow, model.Allow, model.Deny, model.Pass)}
		for range w.IntN(3) {
			r.Peers = append(r.Peers, w.peer())
		}
		for range w.IntN(3) {
			r.Ports = append(r.Ports, w.portRange())
		}
		if w.IntN(8) == 0 { // so many that its peers are one atom
			for len(r.Peers)*len(r.Ports) <= peer.MaxSeparate {
				r.Peers, r.Ports = append(r.Peers, w.peer()), append(r.Ports, w.portRange())
			}
		}
		out = append(out, r)
	}
	return out
}

func (w *world) addPolicy(i int) {
	p := &model.Policy{Kind: "NetworkPolicy", Name: model.Name{Namespace: pick(w, worldNamespaces...), Name: fmt.Sprint("p", i)}, Created: int64(i % 3),
		Tier: pick(w, "default", "default", "kube-admin"), Order: float64(w.IntN(3)), Subject: w.selector(),
		Ingress: w.rules(), Egress: w.rules(), AppliesIngress: w.IntN(3) > 0, AppliesEgress: w.IntN(3) > 0}
	if w.IntN(10) == 0 {
		p.Invalid = "spec.ingress: broken"
	}
	if w.IntN(2) == 0 { // as the upstream kind has it: of its own namespace, rules only allow
		p.Subject.Namespace, p.Subject.Namespaces, p.Tier, p.Order = p.Name.Namespace, nil, "default", 0
		for _, rules := range [][]model.Rule{p.Ingress, p.Egress} {
			for i := range rules {
				rules[i].Action = model.Allow
			}
		}
	}
	w.c.Policies[p.ID()] = p
}

func (w *world) egressClient() *model.EgressClient {
	later := &world{Rand: w.later}
	return &model.EgressClient{Selector: pick(later, "all()", "app == 'a'", "has(app)", "broken =="), Namespaces: pick(later, "", "all()", "has(app)"), Policy: pick(later, "", "", "p", "p", "q")}
}

// addEgressPolicy makes the policy anew that clients may name, or takes it away.
func (w *world) addEgressPolicy() {
	later := &world{Rand: w.later}
	if w.later.IntN(5) == 0 {
		delete(w.c.EgressPolicies, "p")
		return
	}
	p := &model.EgressPolicy{Name: "p"}
	for _, cidr := range []string{"0.0.0.0/0", "::/0", "10.0.0.0/8", "198.51.100.0/24", "2001:db8::/32"} {
		r := model.EgressRule{CIDR: prefix(cidr), Direct: w.later.IntN(4) == 0}
		if !r.Direct {
			r.Selector, r.Namespaces = pick(later, "all()", "app == 'a'", "has(app)"), pick(later, "", "all()", "has(app)")
			r.Most, r.PreferLocal = uint32(w.later.IntN(3)), w.later.IntN(2) == 0
		}
		if w.later.IntN(3) > 0 {
			p.Rules = append(p.Rules, r)
		}
	}
	w.c.EgressPolicies["p"] = p
}

func (w *world) addPod(i int) {
	name := model.Name{Namespace: pick(w, worldNamespaces...), Name: fmt.Sprint("pod", i)}
	p := &model.Pod{Name: name, Labels: w.labels(), Node: pick(w, "n0", "n1", "n2", "n9"),
		HostNetwork: w.IntN(12) == 0, Finished: w.IntN(12) == 0}
	if w.IntN(2) == 0 {
		p.ServiceAccount = pick(w, "sa0", "sa1")
	}
	for range w.IntN(3) {
		pp := model.PodPort{Name: pick(w, "", "http", "dns"), Protocol: pick(w, worldProtocols...), Port: pick(w, uint16(53), 80, 8080)}
		if w.IntN(3) == 0 {
			pp.HostPort = pick(w, uint16(80), 8080, 30001)
			pp.HostIP = pick(w, netip.Addr{}, netip.IPv4Unspecified(), addr("172.31.1.10"), addr("fd00:31:1::10"), netip.IPv6Unspecified())
		}
		p.Ports = append(p.Ports, pp)
	}
	p.Created, p.UID = int64(w.claims.IntN(4)), fmt.Sprint(i)
	third := w.IntN(3)
	ips := w.both(fmt.Sprintf("10.1.%d.%d", third, 1+i%60), fmt.Sprintf("fd00:1:0:%d::%x", third, 1+i%60))
	if w.IntN(5) > 0 {
		p.Addrs = ips
	}
	if w.claims.IntN(8) > 0 {
		p.Asked = p.Addrs
	}
	if i%3 == 0 {
		p.Floating = []netip.Addr{addr(fmt.Sprint("10.1.2.", 200+i%4)), addr(fmt.Sprintf("fd00:1:0:2::%x", 200+i%2))}
	}
	if w.later.IntN(4) == 0 {
		p.Egress = w.egressClient()
	}
	if w.later.IntN(3) == 0 {
		p.Gateway = &model.EgressGateway{Ready: w.later.IntN(4) > 0, Labels: p.Labels}
	}
	if p.Node == "n0" && !p.HostNetwork && w.IntN(6) > 0 {
		ep := &model.LocalEndpoint{Pod: name, Interface: fmt.Sprint("cali", i), IfIndex: 100 + i,
			MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, Addrs: ips, NetnsCookie: uint64(1000 + i)}
		for _, ip := range ips {
			w.c.Local.Endpoints[ip] = ep
		}
	}
	if w.IntN(20) > 0 { // else the endpoint is here before the pod is known
		w.c.Pods.Put(p)
	}
}

func (w *world) addService(i int) {
	s := &model.Service{Name: model.Name{Namespace: pick(w, worldNamespaces...), Name: fmt.Sprint("s", i)},
		ClusterIPs:      w.both(fmt.Sprintf("10.96.0.%d", 1+w.IntN(12)), fmt.Sprintf("fd01::%d", 1+w.IntN(12))),
		PublishNotReady: w.IntN(5) == 0, Affinity: pick(w, uint32(0), 0, 600), ExternalLocal: w.IntN(3) == 0}
	for range w.IntN(3) {
		s.ExternalIPs = append(s.ExternalIPs, w.both(fmt.Sprintf("10.96.0.%d", 1+w.IntN(20)), fmt.Sprintf("fd01::%d", 1+w.IntN(20)))...)
	}
	if w.IntN(3) == 0 {
		s.LBIPs = w.both(fmt.Sprintf("192.168.7.%d", w.IntN(3)), fmt.Sprintf("fd00:7::%d", w.IntN(3)))
	}
	if w.IntN(4) == 0 {
		s.Restricted, s.SourceRanges = true, []netip.Prefix{w.cidr(), w.cidr()}
	}
	if s.ExternalLocal && w.IntN(2) == 0 {
		s.HealthPort = uint16(32000 + i)
	}
	for j := range 1 + w.IntN(2) {
		p := model.ServicePort{Name: fmt.Sprint("port", j), Protocol: pick(w, worldProtocols...), Port: pick(w, uint16(53), 80, 8080)}
		if w.IntN(2) == 0 {
			p.NodePort = pick(w, uint16(30001), 30002)
		}
		s.Ports = append(s.Ports, p)
	}
	w.dare(s)
	w.c.Services[s.Name] = s
}

// dare lets a Service have an age, and ask for what may be refused: addresses of nodes, pods,
// pools, API servers, and ports.
func (w *world) dare(s *model.Service) {
	l := &world{Rand: w.later}
	s.Created, s.UID = int64(l.IntN(3)), pick(l, "", "u", "v")
	if l.IntN(3) == 0 {
		s.ExternalIPs = append(s.ExternalIPs, pick(l, addr("172.31.1.10"), addr("172.31.1.11"), addr("fd00:31:1::10"), addr("10.1.0.7"), addr("fd00:1::8"), addr("198.51.100.6"), addr("203.0.113.1")))
	}
	if s.HealthPort != 0 {
		s.HealthPort = pick(l, s.HealthPort, 32000, 30001, 10250)
	}
	for i := range s.Ports {
		s.Ports[i].Port = pick(l, s.Ports[i].Port, s.Ports[i].Port, 6443, 30001)
		if s.Ports[i].NodePort != 0 {
			s.Ports[i].NodePort = pick(l, s.Ports[i].NodePort, s.Ports[i].NodePort, 6443, 32000)
		}
	}
}

func (w *world) addSlice(i int) {
	sl := &model.EndpointSlice{Name: model.Name{Namespace: pick(w, worldNamespaces...), Name: fmt.Sprint("sl", i)}}
	sl.Service = model.Name{Namespace: sl.Name.Namespace, Name: fmt.Sprint("s", w.IntN(8))}
	if w.later.IntN(10) == 0 {
		w.addServers(model.Name{Namespace: cluster.APIService.Namespace, Name: pick(&world{Rand: w.later}, cluster.APIServerSlice.Name, "api")})
	}
	for j := range 2 {
		sl.Ports = append(sl.Ports, model.EndpointPort{Name: fmt.Sprint("port", j), Protocol: pick(w, worldProtocols...), Port: pick(w, uint16(53), 8080)})
	}
	form := pick(w, "10.1.0.%d", "fd00:1::%x") // addressType
	for range w.IntN(5) {
		sl.Endpoints = append(sl.Endpoints, model.ServiceEndpoint{Addrs: []netip.Addr{addr(fmt.Sprintf(form, 1+w.IntN(20)))},
			Node: pick(w, "n0", "n1", ""), Ready: w.IntN(2) == 0, Serving: w.IntN(2) == 0, Terminating: w.IntN(2) == 0})
	}
	w.c.Slices[sl.Name] = sl
}

// addServers makes a slice one of the API servers'.
func (w *world) addServers(n model.Name) {
	w.c.Slices[n] = &model.EndpointSlice{Name: n, Service: cluster.APIService, NotCarried: w.later.IntN(2) == 0,
		Ports:     []model.EndpointPort{{Name: "https", Protocol: model.ProtocolTCP, Port: pick(&world{Rand: w.later}, uint16(6443), 30001)}},
		Endpoints: []model.ServiceEndpoint{{Addrs: []netip.Addr{pick(&world{Rand: w.later}, addr("198.51.100.6"), addr("172.31.1.11"), addr("fd00:31:1::10"))}, Ready: true}}}
}

func (w *world) addNode(i int) {
	link := 1 + w.IntN(2)
	n := &model.Node{Name: fmt.Sprint("n", i), LinkAddress: [6]byte{2, 1, 0, 0, 0, byte(i)},
		Addrs: w.both(fmt.Sprintf("172.31.%d.%d", link, 10+i), fmt.Sprintf("fd00:31:%d::%d", link, 10+i))}
	if w.IntN(3) == 0 {
		n.Addrs = append(n.Addrs, w.both(fmt.Sprintf("203.0.113.%d", w.IntN(2)), fmt.Sprintf("2001:db8::%d", w.IntN(2)))...)
	}
	for _, p := range []netip.Prefix{prefix("172.31.1.0/24"), prefix("192.168.7.0/24"), prefix("fd00:31:1::/64"), prefix("fd00:7::/64")} {
		if w.IntN(2) == 0 {
			n.Subnets = append(n.Subnets, p)
		}
	}
	n.NotReady = w.IntN(4) == 0
	n.Gateways = w.later.IntN(4) > 0
	n.Created = int64(w.claims.IntN(3))
	if w.claims.IntN(8) == 0 { // Pods what another one, or a pod, may have
		n.Addrs = append(n.Addrs, pick(w.claims, w.claims.both("172.31.1.10", "fd00:31:1::10"), w.claims.both("10.1.0.7", "fd00:1::7"), w.claims.both("10.96.0.3", "fd01::3"))...)
	}
	if w.IntN(6) == 0 {
		n.Labels = map[string]string{model.LabelNoBalancers: ""}
	}
	w.c.Nodes[n.Name] = n
}

func (w *world) addPool(i int) {
	cidr := []netip.Prefix{prefix("10.1.0.0/23"), prefix("10.1.2.0/24"), prefix("fd00:1::/63"), prefix("fd00:1:0:2::/64")}[i]
	w.c.Pools[fmt.Sprint("pool", i)] = &model.Pool{Name: fmt.Sprint("pool", i), CIDR: cidr, BlockBits: 26, Workload: true,
		VXLAN: pick(w, model.EncapNever, model.EncapAlways, model.EncapCrossSubnet), NATOutgoing: w.IntN(2) == 0, Disabled: w.IntN(4) == 0}
	if w.claims.IntN(6) == 0 {
		w.c.Pools[fmt.Sprint("pool", i)].Deleted = 1 // some blocks are younger
	}
	if w.IntN(3) == 0 { // of load balancers, around the addresses that addService gives
		w.c.Pools["lb"] = &model.Pool{Name: "lb", CIDR: pick(w, prefix("192.168.7.0/24"), prefix("192.168.7.0/31"), prefix("fd00:7::/64"), prefix("fd00:7::/127")),
			BlockBits: 31, LoadBalancer: true}
	}
}

func (w *world) addBlock(i int) {
	b := &model.Block{CIDR: netip.PrefixFrom(addr(fmt.Sprintf("10.1.%d.%d", i/4, i%4*64)), 26), Node: pick(w, "n0", "n1", "n2", "n9")}
	if w.IntN(2) == 0 {
		b.CIDR = netip.PrefixFrom(addr(fmt.Sprintf("fd00:1:0:%d::%x", i/4, i%4*64)), 122)
	}
	if w.claims.IntN(6) == 0 { // overlaps what others have, or lies in no pool
		b.CIDR = pick(w.claims, prefix("10.1.0.0/24"), prefix("10.1.0.64/27"), prefix("10.1.1.16/30"), prefix("10.9.0.0/26"), prefix("fd00:1::/120"), prefix("fd00:1::40/123"))
	}
	b.Created = int64(w.claims.IntN(3))
	w.c.Blocks[b.CIDR] = b
}

// addReservation reserves addresses that pods have.
func (w *world) addReservation() {
	all := []netip.Prefix{prefix("10.1.0.0/16"), prefix("fd00:1::/32")}
	w.c.Reservations = pick(w.claims, all, all, all, nil, []netip.Prefix{prefix("10.1.0.0/27")}, []netip.Prefix{prefix("10.1.1.0/24"), prefix("fd00:1::/64")})
}

// addBGP has nodes advertise Services, or not.
func (w *world) addBGP() {
	delete(w.c.BGPConfigs, "default")
	if w.bgp.IntN(4) == 0 {
		return
	}
	l := &world{Rand: w.bgp}
	w.c.BGPConfigs["default"] = &model.BGPConfig{Name: "default", BalancersSingly: l.IntN(2) == 0,
		ClusterIPs:  pick(l, nil, []netip.Prefix{prefix("10.96.0.0/16"), prefix("fd01::/64")}),
		ExternalIPs: pick(l, nil, []netip.Prefix{prefix("10.96.0.3/32"), prefix("fd01::3/128")}, []netip.Prefix{prefix("10.96.0.0/28")}, []netip.Prefix{prefix("198.51.100.0/24"), prefix("172.31.1.0/24")}),
		BalancerIPs: pick(l, nil, []netip.Prefix{prefix("192.168.7.0/24"), prefix("fd00:7::/64")}, []netip.Prefix{prefix("192.168.7.1/32")})}
}

func (w *world) addNamespace(i int) {
	n := worldNamespaces[i%len(worldNamespaces)]
	space := &model.Namespace{Name: n, Labels: w.labels(), EgressClients: pick(&world{Rand: w.later}, "", "all()", "has(app)")}
	if w.later.IntN(4) == 0 {
		space.Egress = w.egressClient()
	}
	if len(space.Labels) != 1 {
		space.FloatingGrants = []netip.Prefix{prefix("10.1.2.0/24"), prefix("fd00:1::/32")}
	}
	w.c.Namespaces[n] = space
	if w.later.IntN(4) == 0 {
		w.c.Namespaces[n].Labels[service.LabelBackends] = service.BackendsAny
	}
}

// fill populates the whole world.
func (w *world) fill() *model.Cluster {
	for i := range 2 + w.IntN(2) { // the third may be unknown
		w.addNamespace(i)
	}
	times := func(n int, f func(int)) {
		for i := range n {
			f(i)
		}
	}
	w.addBGP()
	times(3, w.addNode)
	times(2+2*w.IntN(2), w.addPool)
	times(8, w.addBlock)
	times(8, w.addBlock) // of the other family, many of them
	times(24, w.addPod)
	w.addReservation()
	w.addEgressPolicy()
	w.c.Settings.WorkloadRoutes = w.claims.IntN(3) == 0
	w.c.Settings.Egress = pick(&world{Rand: w.later}, model.EgressDisabled, model.EgressPerNamespace, model.EgressPerNamespaceOrPerPod, model.EgressPerNamespaceOrPerPod)
	times(8, w.addService)
	times(12, w.addSlice)
	times(1+w.IntN(10), w.addPolicy)
	times(max(0, w.IntN(8)-3), w.addClusterPolicy)
	if w.IntN(4) > 0 { // else as Kubernetes alone has it
		times(1+w.IntN(8), w.addCalicoPolicy)
		times(w.IntN(5), w.addStaged)
		times(w.IntN(3), w.addTier)
		times(w.IntN(5), w.addNetworkSet)
		times(w.IntN(6), w.addServiceAccount)
	}
	return w.c
}
