// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weir-net/weir/internal/model"
)

func (w *writer) namespace(n *model.Namespace) *Namespace {
	return &Namespace{Name: []byte(n.Name), Labels: w.labels(n.Labels), Egress: w.egressClient(n.Egress), EgressClients: []byte(n.EgressClients), SourceGrants: each(n.SourceGrants, PrefixBytes), FloatingGrants: each(n.FloatingGrants, PrefixBytes)}
}

func (w *writer) node(n *model.Node) *Node {
	out := &Node{Name: w.text(n.Name), Labels: w.labels(n.Labels), Addrs: each(n.Addrs, addrBytes), Leaving: n.Leaving, Cordoned: n.Cordoned, LinkAddress: linkBytes(n.LinkAddress),
		Subnets: each(n.Subnets, PrefixBytes), NotReady: n.NotReady, Created: n.Created, Uid: []byte(n.UID), WireguardKey: keyBytes(n.WireGuard.IPv4), WireguardKey6: keyBytes(n.WireGuard.IPv6),
		WireguardNext: keyBytes(n.WireGuardNext.IPv4), WireguardNext6: keyBytes(n.WireGuardNext.IPv6), Asn: n.ASN, ClusterId: addrBytes(n.ClusterID), NoIpip: n.NoIPIP, Gateways: n.Gateways}
	for _, a := range slices.SortedFunc(maps.Keys(n.Since), netip.Addr.Compare) {
		out.Since = append(out.Since, &AddrTime{Addr: addrBytes(a), At: n.Since[a]})
	}
	return out
}

func (w *writer) podPort(p model.PodPort) *PodPort {
	return &PodPort{Name: w.text(p.Name), Protocol: uint32(p.Protocol), Port: uint32(p.Port), HostPort: uint32(p.HostPort), HostIp: addrBytes(p.HostIP)}
}

func (w *writer) service(s *model.Service) *Service {
	return &Service{Namespace: w.text(s.Name.Namespace), Name: w.text(s.Name.Name), Created: s.Created, Uid: []byte(s.UID), Annotations: w.labels(s.Annotations),
		ClusterIps: each(s.ClusterIPs, addrBytes), ExternalIps: each(s.ExternalIPs, addrBytes), LbIps: each(s.LBIPs, addrBytes),
		Ports: each(s.Ports, func(p model.ServicePort) *ServicePort {
			return &ServicePort{Name: w.text(p.Name), Protocol: uint32(p.Protocol), Port: uint32(p.Port), NodePort: uint32(p.NodePort)}
		}),
		Affinity: s.Affinity, HealthPort: uint32(s.HealthPort), SourceRanges: each(s.SourceRanges, PrefixBytes), Unrestricted: !s.Restricted,
		PublishNotReady: s.PublishNotReady, Maglev: s.Maglev, ExternalMode: w.text(string(s.ExternalMode)), ExternalLocal: s.ExternalLocal, InternalLocal: s.InternalLocal}
}

// The bits of Endpoint.conditions.
const (
	ready = 1 << iota
	serving
	terminating
)

func (w *writer) slice(s *model.EndpointSlice) *EndpointSlice {
	return &EndpointSlice{Namespace: w.text(s.Name.Namespace), Name: []byte(s.Name.Name), Service: w.name(s.Service), NotCarried: s.NotCarried, ChangedAt: s.ChangedAt,
		Ports: each(s.Ports, func(p model.EndpointPort) *EndpointPort {
			return &EndpointPort{Name: w.text(p.Name), Protocol: uint32(p.Protocol), Port: uint32(p.Port)}
		}),
		Endpoints: each(s.Endpoints, func(e model.ServiceEndpoint) *Endpoint {
			out := &Endpoint{Addrs: each(e.Addrs, addrBytes), Node: w.text(e.Node), Zones: w.texts(e.ForZones()), Nodes: w.texts(e.ForNodes())}
			for _, c := range []struct {
				is  bool
				bit uint32
			}{{e.Ready, ready}, {e.Serving, serving}, {e.Terminating, terminating}} {
				if c.is {
					out.Conditions |= c.bit
				}
			}
			return out
		})}
}

func (w *writer) networkSet(s *model.NetworkSet) *NetworkSet {
	return &NetworkSet{Namespace: w.text(s.Name.Namespace), Name: []byte(s.Name.Name), Labels: w.labels(s.Labels), Nets: each(s.Nets, PrefixBytes), Domains: w.texts(s.Domains)}
}

func (w *writer) serviceAccount(s *model.ServiceAccount) *ServiceAccount {
	return &ServiceAccount{Namespace: w.text(s.Name.Namespace), Name: w.text(s.Name.Name), Labels: w.labels(s.Labels)}
}

func (w *writer) hostEndpoint(h *model.HostEndpoint) *HostEndpoint {
	return &HostEndpoint{Name: []byte(h.Name), Labels: w.labels(h.Labels), Node: w.text(h.Node), Interface: w.text(h.Interface),
		ExpectedIps: each(h.ExpectedIPs, addrBytes), Profiles: w.texts(h.Profiles), Ports: each(h.Ports, w.podPort), Dscp: uint32(h.DSCP)}
}

func (w *writer) pool(p *model.Pool) *Pool {
	return &Pool{Name: []byte(p.Name), Cidr: PrefixBytes(p.CIDR), Vxlan: w.text(string(p.VXLAN)), Ipip: w.text(string(p.IPIP)), NatOutgoing: p.NATOutgoing, Disabled: p.Disabled,
		BlockBits: int64(p.BlockBits), NodeSelector: w.text(p.NodeSelector), Manual: p.Manual, Workload: p.Workload, LoadBalancer: p.LoadBalancer,
		NamespaceSelector: w.text(p.NamespaceSelector), Deleted: p.Deleted, NoBgpExport: p.NoBGPExport}
}

func (w *writer) block(b *model.Block) *Block {
	out := &Block{Cidr: PrefixBytes(b.CIDR), Node: w.text(b.Node), Created: b.Created, Uid: []byte(b.UID)}
	if vm := b.VM; vm != nil {
		out.Vm = &BlockVm{Namespace: []byte(vm.Name.Namespace), Name: []byte(vm.Name.Name), Pod: []byte(vm.Pod), Mac: linkBytes(vm.MAC),
			TargetNode: w.text(vm.TargetNode), TargetPod: []byte(vm.TargetPod)}
	}
	return out
}
