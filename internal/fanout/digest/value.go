// SPDX-License-Identifier: Apache-2.0

package digest

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

// Sum is the digest of an object with its key, or of a bucket.
type Sum [16]byte

func sumOf(b []byte) Sum {
	all := sha256.Sum256(b)
	return Sum(all[:])
}

// writer writes values so that different ones are different bytes, the same in every process. As
// for calc, lists and maps without elements are those that are not there.
type writer []byte

func (w *writer) number(v uint64) { *w = binary.AppendUvarint(*w, v) }
func (w *writer) signed(v int64)  { *w = binary.AppendVarint(*w, v) }

func (w *writer) text(s string) {
	w.number(uint64(len(s)))
	*w = append(*w, s...)
}

func (w *writer) bools(list ...bool) {
	for _, v := range list {
		if v {
			*w = append(*w, 1)
		} else {
			*w = append(*w, 0)
		}
	}
}

func (w *writer) name(n model.Name) {
	w.text(n.Namespace)
	w.text(n.Name)
}

func (w *writer) addr(a netip.Addr) {
	switch {
	case !a.IsValid():
		*w = append(*w, 0)
	case a.Is4():
		b := a.As4()
		*w = append(append(*w, 4), b[:]...)
	default:
		b := a.As16()
		*w = append(append(*w, 16), b[:]...)
	}
}

func (w *writer) prefix(p netip.Prefix) {
	w.addr(p.Addr())
	w.signed(int64(p.Bits()))
}

func (w *writer) order(v float64) { w.number(math.Float64bits(v)) }

func list[T any](w *writer, of []T, write func(*writer, T)) {
	w.number(uint64(len(of)))
	for _, v := range of {
		write(w, v)
	}
}

func (w *writer) addrs(of []netip.Addr)      { list(w, of, (*writer).addr) }
func (w *writer) prefixes(of []netip.Prefix) { list(w, of, (*writer).prefix) }
func (w *writer) texts(of []string)          { list(w, of, (*writer).text) }

func (w *writer) labels(m map[string]string) {
	w.number(uint64(len(m)))
	var room [16]string // most objects have no more
	keys := slices.AppendSeq(room[:0], maps.Keys(m))
	slices.Sort(keys)
	for _, k := range keys {
		w.text(k)
		w.text(m[k])
	}
}

// optional writes what may not be there.
func optional[T any](w *writer, v *T, write func(*writer, *T)) {
	w.bools(v != nil)
	if v != nil {
		write(w, v)
	}
}

func (w *writer) namespace(n *model.Namespace) {
	w.text(n.Name)
	w.labels(n.Labels)
	optional(w, n.Egress, (*writer).egressClient)
	w.text(n.EgressClients)
	w.prefixes(n.SourceGrants)
	w.prefixes(n.FloatingGrants)
}

func (w *writer) podPort(p model.PodPort) {
	w.text(p.Name)
	*w = append(*w, byte(p.Protocol))
	w.number(uint64(p.Port))
	w.number(uint64(p.HostPort))
	w.addr(p.HostIP)
}

func (w *writer) pod(p *model.Pod) {
	w.name(p.Name)
	w.labels(p.Labels)
	w.text(p.Node)
	w.text(p.ServiceAccount)
	w.bools(p.HostNetwork, p.Finished)
	w.addrs(p.Addrs)
	list(w, p.Ports, (*writer).podPort)
	w.signed(p.Created)
	w.text(p.UID)
	w.addrs(p.Asked)
	optional(w, p.QoS, (*writer).qos)
	optional(w, p.Egress, (*writer).egressClient)
	optional(w, p.Gateway, (*writer).egressGateway)
	w.prefixes(p.Sources)
	w.addrs(p.Floating)
}

func (w *writer) egressClient(c *model.EgressClient) {
	w.text(c.Selector)
	w.text(c.Namespaces)
	w.text(c.Policy)
}

func (w *writer) egressPolicy(p *model.EgressPolicy) {
	w.text(p.Name)
	list(w, p.Rules, (*writer).egressRule)
}

func (w *writer) egressRule(r model.EgressRule) {
	w.prefix(r.CIDR)
	w.bools(r.Direct, r.PreferLocal)
	w.text(r.Selector)
	w.text(r.Namespaces)
	w.number(uint64(r.Most))
}

func (w *writer) egressGateway(g *model.EgressGateway) {
	w.bools(g.Ready)
	w.labels(g.Labels)
}

func (w *writer) qos(q *model.QoS) {
	for _, l := range []model.Limits{q.Ingress, q.Egress} {
		w.number(l.Bandwidth)
		w.number(l.Burst)
		w.number(l.Peakrate)
		w.number(uint64(l.Minburst))
		w.number(uint64(l.PacketRate))
		w.number(uint64(l.PacketBurst))
		w.number(uint64(l.Connections))
	}
	w.number(uint64(q.DSCP))
}

// node leaves out Since: of a node that an agent has it knows that itself, and does not take it
// from a fan-out (watch.Claims), and fan-outs that began at different times differ in it.
func (w *writer) node(n *model.Node) {
	w.text(n.Name)
	w.labels(n.Labels)
	w.addrs(n.Addrs)
	w.bools(n.Leaving, n.NotReady, n.Cordoned, n.NoIPIP, n.Gateways)
	*w = append(*w, n.LinkAddress[:]...)
	w.prefixes(n.Subnets)
	w.signed(n.Created)
	w.text(n.UID)
	for _, k := range []model.WireGuardKeys{n.WireGuard, n.WireGuardNext} {
		*w = append(append(*w, k.IPv4[:]...), k.IPv6[:]...)
	}
	w.number(uint64(n.ASN))
	w.addr(n.ClusterID)
}

func (w *writer) service(s *model.Service) {
	w.name(s.Name)
	w.signed(s.Created)
	w.text(s.UID)
	w.labels(s.Annotations)
	w.addrs(s.ClusterIPs)
	w.addrs(s.ExternalIPs)
	w.addrs(s.LBIPs)
	list(w, s.Ports, func(w *writer, p model.ServicePort) {
		w.text(p.Name)
		*w = append(*w, byte(p.Protocol))
		w.number(uint64(p.Port))
		w.number(uint64(p.NodePort))
	})
	w.number(uint64(s.Affinity))
	w.number(uint64(s.HealthPort))
	w.prefixes(s.SourceRanges)
	w.bools(s.Restricted, s.PublishNotReady, s.Maglev, s.ExternalLocal, s.InternalLocal)
	w.text(string(s.ExternalMode))
}

func (w *writer) slice(s *model.EndpointSlice) {
	w.name(s.Name)
	w.name(s.Service)
	w.bools(s.NotCarried)
	w.signed(s.ChangedAt)
	list(w, s.Ports, func(w *writer, p model.EndpointPort) {
		w.text(p.Name)
		*w = append(*w, byte(p.Protocol))
		w.number(uint64(p.Port))
	})
	list(w, s.Endpoints, func(w *writer, e model.ServiceEndpoint) {
		w.addrs(e.Addrs)
		w.text(e.Node)
		w.bools(e.Ready, e.Serving, e.Terminating)
		w.texts(e.ForZones())
		w.texts(e.ForNodes())
	})
}

func (w *writer) policy(p *model.Policy) {
	w.text(p.Kind)
	w.name(p.Name)
	w.text(p.Tier)
	w.signed(p.Created)
	w.order(p.Order)
	w.selector(&p.Subject)
	list(w, p.Ingress, (*writer).rule)
	list(w, p.Egress, (*writer).rule)
	w.bools(p.AppliesIngress, p.AppliesEgress, p.ApplyOnForward, p.PreDNAT, p.DoNotTrack)
	w.text(p.Invalid)
}

func (w *writer) staged(s *model.StagedPolicy) {
	w.policy(&s.Policy)
	w.bools(s.Delete)
}

func (w *writer) rule(r model.Rule) {
	w.text(r.Name)
	*w = append(*w, byte(r.Action), r.IPVersion, byte(r.NotProtocol))
	list(w, r.Peers, func(w *writer, p model.Peer) {
		optional(w, p.Pods, (*writer).selector)
		w.prefix(p.CIDR)
		w.prefixes(p.Except)
		optional(w, p.Nodes, (*writer).labelSelector)
		w.texts(p.Domains)
	})
	for _, ports := range [][]model.PortRange{r.Ports, r.NotPorts, r.SourcePorts, r.NotSourcePorts} {
		list(w, ports, func(w *writer, p model.PortRange) {
			*w = append(*w, byte(p.Protocol))
			w.number(uint64(p.First))
			w.number(uint64(p.Last))
			w.text(p.Named)
			w.name(p.Service)
		})
	}
	optional(w, r.Other, (*writer).entity)
	optional(w, r.Own, (*writer).entity)
}

func (w *writer) entity(e *model.Entity) {
	w.bools(e.InNets)
	w.prefixes(e.Nets)
	w.prefixes(e.NotNets)
	w.text(e.Selector)
	w.text(e.NotSelector)
	w.name(e.Service)
}

func (w *writer) selector(s *model.Selector) {
	w.text(s.Namespace)
	optional(w, s.Namespaces, (*writer).labelSelector)
	optional(w, s.Pods, (*writer).labelSelector)
	w.text(s.Expression)
}

func (w *writer) labelSelector(s *model.LabelSelector) {
	list(w, s.Requirements, func(w *writer, r model.Requirement) {
		w.text(r.Key)
		w.text(string(r.Op))
		w.texts(r.Values)
	})
}

func (w *writer) tier(t *model.Tier) {
	w.text(t.Name)
	w.order(t.Order)
	w.bools(t.Pass)
}

func (w *writer) networkSet(s *model.NetworkSet) {
	w.name(s.Name)
	w.labels(s.Labels)
	w.prefixes(s.Nets)
	w.texts(s.Domains)
}

func (w *writer) serviceAccount(s *model.ServiceAccount) {
	w.name(s.Name)
	w.labels(s.Labels)
}

func (w *writer) hostEndpoint(h *model.HostEndpoint) {
	w.text(h.Name)
	w.labels(h.Labels)
	w.text(h.Node)
	w.text(h.Interface)
	w.addrs(h.ExpectedIPs)
	w.texts(h.Profiles)
	list(w, h.Ports, (*writer).podPort)
	w.number(uint64(h.DSCP))
}

func (w *writer) pool(p *model.Pool) {
	w.text(p.Name)
	w.prefix(p.CIDR)
	w.text(string(p.VXLAN))
	w.text(string(p.IPIP))
	w.bools(p.NATOutgoing, p.Disabled, p.Manual, p.Workload, p.LoadBalancer, p.NoBGPExport)
	w.signed(int64(p.BlockBits))
	w.text(p.NodeSelector)
	w.text(p.NamespaceSelector)
	w.signed(p.Deleted)
}

func (w *writer) block(b *model.Block) {
	w.prefix(b.CIDR)
	w.text(b.Node)
	w.signed(b.Created)
	w.text(b.UID)
	if vm := b.VM; vm != nil {
		w.text(vm.Name.Namespace)
		w.text(vm.Name.Name)
		w.text(vm.Pod)
		*w = append(*w, vm.MAC[:]...)
		w.text(vm.TargetNode)
		w.text(vm.TargetPod)
	}
}

func (w *writer) secretKey(k model.SecretKey) {
	w.text(k.Name)
	w.text(k.Key)
}

func (w *writer) bgpConfig(c *model.BGPConfig) {
	w.text(c.Name)
	w.number(uint64(c.ASN))
	w.bools(c.MeshDisabled)
	w.secretKey(c.MeshPassword)
	w.number(uint64(c.MeshRestart))
	w.number(uint64(c.ListenPort))
	w.text(c.BindMode)
	w.prefixes(c.ClusterIPs)
	w.prefixes(c.ExternalIPs)
	w.prefixes(c.BalancerIPs)
	w.bools(c.BalancersSingly)
	w.labels(c.Communities)
	list(w, c.Tagged, func(w *writer, t model.BGPTag) {
		w.prefix(t.CIDR)
		list(w, t.Communities, (*writer).text)
	})
}

func (w *writer) bgpPeer(p *model.BGPPeer) {
	w.text(p.Name)
	w.text(p.Node)
	w.text(p.NodeSelector)
	w.addr(p.Addr)
	w.number(uint64(p.Port))
	w.number(uint64(p.ASN))
	w.number(uint64(p.LocalASN))
	w.text(p.PeerSelector)
	w.secretKey(p.Password)
	w.number(uint64(p.Restart))
	w.number(uint64(p.Keepalive))
	*w = append(*w, p.TTLHops, p.AllowedAS)
	w.bools(p.AnySource, p.Manual, p.BFD)
	list(w, p.Filters, (*writer).text)
	w.text(p.NextHop)
	w.addr(p.Via)
	w.number(uint64(p.LongLived))
}

func (w *writer) bgpFilter(f *model.BGPFilter) {
	w.text(f.Name)
	for _, rules := range [][]model.BGPRule{f.Export4, f.Import4, f.Export6, f.Import6} {
		list(w, rules, (*writer).bgpRule)
	}
}

func (w *writer) bgpRule(r model.BGPRule) {
	w.bools(r.Accept, r.Not, r.Remote)
	w.prefix(r.CIDR)
	*w = append(*w, r.MinBits, r.MaxBits)
	w.text(r.PeerType)
	w.text(r.Community)
	asn := func(w *writer, v uint32) { w.number(uint64(v)) }
	list(w, r.ASPath, asn)
	list(w, r.Add, (*writer).text)
	list(w, r.Prepend, asn)
	w.number(uint64(r.Priority))
	w.number(uint64(r.SetPriority))
}
