// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"net/netip"

	"github.com/weir-net/weir/internal/model"
)

func (r *reader) namespace(n *Namespace) (string, *model.Namespace) {
	out := &model.Namespace{Name: r.key("name", n.Name), Labels: r.labels("labels", n.Labels), Egress: r.egressClient(n.Egress), EgressClients: string(n.EgressClients),
		SourceGrants: list(r, "source_grants", n.SourceGrants, r.prefix), FloatingGrants: list(r, "floating_grants", n.FloatingGrants, r.prefix)}
	return out.Name, out
}

type addrTime struct {
	addr netip.Addr
	at   int64
}

func (r *reader) node(n *Node) (string, *model.Node) {
	out := &model.Node{Name: r.keyText("name", n.Name), Labels: r.labels("labels", n.Labels), Addrs: list(r, "addrs", n.Addrs, r.addr), Leaving: n.Leaving, Cordoned: n.Cordoned,
		LinkAddress: r.link("link_address", n.LinkAddress), Subnets: list(r, "subnets", n.Subnets, r.prefix), NotReady: n.NotReady, Created: n.Created, UID: string(n.Uid),
		WireGuard:     model.WireGuardKeys{IPv4: r.wireGuardKey("wireguard_key", n.WireguardKey), IPv6: r.wireGuardKey("wireguard_key6", n.WireguardKey6)},
		WireGuardNext: model.WireGuardKeys{IPv4: r.wireGuardKey("wireguard_next", n.WireguardNext), IPv6: r.wireGuardKey("wireguard_next6", n.WireguardNext6)},
		ASN:           n.Asn, ClusterID: one(r, "cluster_id", n.ClusterId, r.addr), NoIPIP: n.NoIpip, Gateways: n.Gateways}
	for _, s := range list(r, "since", n.Since, func(s *AddrTime) addrTime { return addrTime{one(r, "addr", s.Addr, r.addr), s.At} }) {
		if out.Since == nil {
			out.Since = make(map[netip.Addr]int64, len(n.Since))
		}
		out.Since[s.addr] = s.at
	}
	return out.Name, out
}

func (r *reader) podPort(p *PodPort) model.PodPort {
	out := model.PodPort{Name: r.text("name", p.Name), Protocol: r.protocol("protocol", p.Protocol), Port: r.port("port", p.Port), HostPort: r.port("host_port", p.HostPort)}
	out.HostIP = one(r, "host_ip", p.HostIp, r.addr)
	return out
}

// one converts a single value.
func one[A, B any](r *reader, field string, v A, f func(A) B) (out B) {
	if r.err != nil {
		return out
	}
	if out = f(v); r.err != nil {
		r.within(field)
	}
	return out
}

func (r *reader) pods(groups []*PodGroup, ch *model.Changes) {
	total := 0
	for _, g := range groups {
		total += len(g.Pods)
	}
	for i, g := range groups {
		if r.group(g, total, ch); r.err != nil {
			r.within(fmt.Sprintf("pods[%d]", i))
			return
		}
	}
}

func (r *reader) group(g *PodGroup, total int, ch *model.Changes) {
	if r.err != nil {
		return
	}
	common := model.Pod{Name: model.Name{Namespace: r.text("namespace", g.Namespace)}, ServiceAccount: r.text("service_account", g.ServiceAccount),
		Labels: r.labels("labels", g.Labels), Ports: list(r, "ports", g.Ports, r.podPort)}
	if r.err != nil {
		return
	}
	r.d.shared.Pod(&common)
	var name []byte
	for i, p := range g.Pods {
		if p.NameShared > mostShared || int(p.NameShared) > len(name) {
			r.fail("name_shared", "%d bytes of a name of %d", p.NameShared, len(name))
		} else {
			name = append(name[:p.NameShared], p.Name...)
		}
		pod := common
		pod.Name.Name, pod.Node = r.key("name", name), r.text("node", p.Node)
		pod.HostNetwork, pod.Finished, pod.Created = p.HostNetwork, p.Finished, g.Created+p.Created
		pod.Addrs, pod.Asked = list(r, "addrs", p.Addrs, r.addr), list(r, "asked", p.Asked, r.addr)
		pod.QoS = qosOf(p.Qos)
		pod.Egress, pod.Gateway = r.egressClient(p.Egress), r.egressGateway(p.Gateway)
		pod.Sources = list(r, "sources", p.Sources, r.prefix)
		pod.Floating = list(r, "floating", p.Floating, r.addr)
		switch {
		case len(p.Uid) == 0:
			pod.UID = string(p.UidText)
		case len(p.Uid) == 16:
			pod.UID = model.UUIDText([16]byte(p.Uid))
		default:
			r.fail("uid", "%d bytes are no UUID", len(p.Uid))
		}
		if r.err != nil {
			r.within(fmt.Sprintf("pods[%d]", i))
			return
		}
		set(&ch.Pods, total, pod.Name, &pod)
	}
}

func (r *reader) service(s *Service) (model.Name, *model.Service) {
	out := &model.Service{Name: model.Name{Namespace: r.text("namespace", s.Namespace), Name: r.keyText("name", s.Name)}, Created: s.Created, UID: string(s.Uid),
		Annotations: r.labels("annotations", s.Annotations), ClusterIPs: list(r, "cluster_ips", s.ClusterIps, r.addr),
		ExternalIPs: list(r, "external_ips", s.ExternalIps, r.addr), LBIPs: list(r, "lb_ips", s.LbIps, r.addr),
		Ports: list(r, "ports", s.Ports, func(p *ServicePort) model.ServicePort {
			return model.ServicePort{Name: r.text("name", p.Name), Protocol: r.protocol("protocol", p.Protocol), Port: r.port("port", p.Port), NodePort: r.port("node_port", p.NodePort)}
		}),
		Affinity: s.Affinity, HealthPort: r.port("health_port", s.HealthPort), SourceRanges: list(r, "source_ranges", s.SourceRanges, r.prefix),
		Restricted: !s.Unrestricted, PublishNotReady: s.PublishNotReady, Maglev: s.Maglev, ExternalMode: model.ExternalMode(r.text("external_mode", s.ExternalMode)),
		ExternalLocal: s.ExternalLocal, InternalLocal: s.InternalLocal}
	return out.Name, out
}

func (r *reader) slice(s *EndpointSlice) (model.Name, *model.EndpointSlice) {
	out := &model.EndpointSlice{Name: model.Name{Namespace: r.text("namespace", s.Namespace), Name: r.key("name", s.Name)}, Service: r.name("service", s.Service),
		NotCarried: s.NotCarried, ChangedAt: s.ChangedAt,
		Ports: list(r, "ports", s.Ports, func(p *EndpointPort) model.EndpointPort {
			return model.EndpointPort{Name: r.text("name", p.Name), Protocol: r.protocol("protocol", p.Protocol), Port: r.port("port", p.Port)}
		}),
		Endpoints: list(r, "endpoints", s.Endpoints, func(e *Endpoint) model.ServiceEndpoint {
			return model.ServiceEndpoint{Addrs: list(r, "addrs", e.Addrs, r.addr), Node: r.text("node", e.Node), Ready: e.Conditions&ready != 0,
				Serving: e.Conditions&serving != 0, Terminating: e.Conditions&terminating != 0,
				Hints: model.HintsFor(r.textList("zones", e.Zones), r.textList("nodes", e.Nodes))}
		})}
	return out.Name, out
}

func (r *reader) networkSet(s *NetworkSet) (model.Name, *model.NetworkSet) {
	out := &model.NetworkSet{Name: model.Name{Namespace: r.text("namespace", s.Namespace), Name: r.key("name", s.Name)}, Labels: r.labels("labels", s.Labels),
		Nets: list(r, "nets", s.Nets, r.prefix), Domains: r.textList("domains", s.Domains)}
	return out.Name, out
}

func (r *reader) serviceAccount(s *ServiceAccount) (model.Name, *model.ServiceAccount) {
	out := &model.ServiceAccount{Name: model.Name{Namespace: r.text("namespace", s.Namespace), Name: r.keyText("name", s.Name)}, Labels: r.labels("labels", s.Labels)}
	return out.Name, out
}

func (r *reader) hostEndpoint(h *HostEndpoint) (string, *model.HostEndpoint) {
	out := &model.HostEndpoint{Name: r.key("name", h.Name), Labels: r.labels("labels", h.Labels), Node: r.text("node", h.Node), Interface: r.text("interface", h.Interface),
		ExpectedIPs: list(r, "expected_ips", h.ExpectedIps, r.addr), Profiles: r.textList("profiles", h.Profiles), Ports: list(r, "ports", h.Ports, r.podPort), DSCP: uint8(h.Dscp)}
	return out.Name, out
}

func (r *reader) pool(p *Pool) (string, *model.Pool) {
	out := &model.Pool{Name: r.key("name", p.Name), CIDR: one(r, "cidr", p.Cidr, r.prefix), VXLAN: model.EncapMode(r.text("vxlan", p.Vxlan)), IPIP: model.EncapMode(r.text("ipip", p.Ipip)), NATOutgoing: p.NatOutgoing,
		Disabled: p.Disabled, BlockBits: int(p.BlockBits), NodeSelector: r.text("node_selector", p.NodeSelector), Manual: p.Manual, Workload: p.Workload,
		LoadBalancer: p.LoadBalancer, NamespaceSelector: r.text("namespace_selector", p.NamespaceSelector), Deleted: p.Deleted, NoBGPExport: p.NoBgpExport}
	return out.Name, out
}

func (r *reader) block(b *Block) (netip.Prefix, *model.Block) {
	out := &model.Block{CIDR: one(r, "cidr", b.Cidr, r.prefix), Node: r.text("node", b.Node), Created: b.Created, UID: string(b.Uid)}
	if !out.CIDR.IsValid() {
		r.fail("cidr", "no prefix")
	}
	if vm := b.Vm; vm != nil {
		out.VM = &model.BlockVM{Name: model.Name{Namespace: string(vm.Namespace), Name: string(vm.Name)}, Pod: string(vm.Pod), MAC: r.link("vm.mac", vm.Mac),
			TargetNode: r.text("vm.target_node", vm.TargetNode), TargetPod: string(vm.TargetPod)}
	}
	return out.CIDR, out
}
