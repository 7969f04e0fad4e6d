// SPDX-License-Identifier: Apache-2.0

package wire

import "github.com/weir-net/weir/internal/model"

func (w *writer) secretKey(k model.SecretKey) *SecretKey {
	if k == (model.SecretKey{}) {
		return nil
	}
	return &SecretKey{Name: w.text(k.Name), Key: w.text(k.Key)}
}

func (w *writer) bgpConfig(c *model.BGPConfig) *BgpConfig {
	return &BgpConfig{Name: []byte(c.Name), Asn: c.ASN, MeshDisabled: c.MeshDisabled, MeshPassword: w.secretKey(c.MeshPassword), MeshRestart: c.MeshRestart,
		ListenPort: uint32(c.ListenPort), BindMode: w.text(c.BindMode), ClusterIps: each(c.ClusterIPs, PrefixBytes), ExternalIps: each(c.ExternalIPs, PrefixBytes),
		BalancerIps: each(c.BalancerIPs, PrefixBytes), BalancersSingly: c.BalancersSingly, Communities: w.labels(c.Communities), Tagged: each(c.Tagged, w.bgpTag)}
}

func (w *writer) bgpTag(t model.BGPTag) *BgpTag {
	return &BgpTag{Cidr: PrefixBytes(t.CIDR), Communities: w.texts(t.Communities)}
}

func (w *writer) bgpPeer(p *model.BGPPeer) *BgpPeer {
	return &BgpPeer{Name: []byte(p.Name), Node: w.text(p.Node), NodeSelector: w.text(p.NodeSelector), Addr: addrBytes(p.Addr), Port: uint32(p.Port),
		Asn: p.ASN, LocalAsn: p.LocalASN, PeerSelector: w.text(p.PeerSelector), Password: w.secretKey(p.Password), Restart: p.Restart, Keepalive: p.Keepalive,
		TtlHops: uint32(p.TTLHops), AllowedAs: uint32(p.AllowedAS), AnySource: p.AnySource, Manual: p.Manual, Bfd: p.BFD, Filters: w.texts(p.Filters),
		NextHop: w.text(p.NextHop), Via: addrBytes(p.Via), LongLived: p.LongLived}
}

func (w *writer) bgpFilter(f *model.BGPFilter) *BgpFilter {
	return &BgpFilter{Name: []byte(f.Name), Export4: w.bgpRules(f.Export4), Import4: w.bgpRules(f.Import4), Export6: w.bgpRules(f.Export6), Import6: w.bgpRules(f.Import6)}
}

func (w *writer) bgpRules(rules []model.BGPRule) []*BgpRule {
	var out []*BgpRule
	for _, r := range rules {
		out = append(out, &BgpRule{Accept: r.Accept, Cidr: PrefixBytes(r.CIDR), Not: r.Not, MinBits: uint32(r.MinBits), MaxBits: uint32(r.MaxBits), Remote: r.Remote,
			PeerType: w.text(r.PeerType), Community: w.text(r.Community), AsPath: r.ASPath, Add: w.texts(r.Add), Prepend: r.Prepend,
			Priority: r.Priority, SetPriority: r.SetPriority})
	}
	return out
}

func (r *reader) secretKey(field string, k *SecretKey) model.SecretKey {
	if k == nil {
		return model.SecretKey{}
	}
	return model.SecretKey{Name: r.text(field+".name", k.Name), Key: r.text(field+".key", k.Key)}
}

func (r *reader) bgpConfig(c *BgpConfig) (string, *model.BGPConfig) {
	out := &model.BGPConfig{Name: r.key("name", c.Name), ASN: c.Asn, MeshDisabled: c.MeshDisabled, MeshPassword: r.secretKey("mesh_password", c.MeshPassword),
		MeshRestart: c.MeshRestart, ListenPort: r.port("listen_port", c.ListenPort), BindMode: r.text("bind_mode", c.BindMode),
		ClusterIPs: list(r, "cluster_ips", c.ClusterIps, r.prefix), ExternalIPs: list(r, "external_ips", c.ExternalIps, r.prefix),
		BalancerIPs: list(r, "balancer_ips", c.BalancerIps, r.prefix), BalancersSingly: c.BalancersSingly, Communities: r.labels("communities", c.Communities),
		Tagged: list(r, "tagged", c.Tagged, r.bgpTag)}
	return out.Name, out
}

func (r *reader) bgpTag(t *BgpTag) model.BGPTag {
	return model.BGPTag{CIDR: one(r, "cidr", t.Cidr, r.prefix), Communities: r.textList("communities", t.Communities)}
}

func (r *reader) bgpPeer(p *BgpPeer) (string, *model.BGPPeer) {
	out := &model.BGPPeer{Name: r.key("name", p.Name), Node: r.text("node", p.Node), NodeSelector: r.text("node_selector", p.NodeSelector),
		Addr: one(r, "addr", p.Addr, r.addr), Port: r.port("port", p.Port), ASN: p.Asn, LocalASN: p.LocalAsn, PeerSelector: r.text("peer_selector", p.PeerSelector),
		Password: r.secretKey("password", p.Password), Restart: p.Restart, Keepalive: p.Keepalive, TTLHops: uint8(min(p.TtlHops, 255)),
		AllowedAS: uint8(min(p.AllowedAs, 255)), AnySource: p.AnySource, Manual: p.Manual, BFD: p.Bfd, Filters: r.textList("filters", p.Filters),
		NextHop: r.text("next_hop", p.NextHop), Via: one(r, "via", p.Via, r.addr), LongLived: p.LongLived}
	return out.Name, out
}

func (r *reader) bgpFilter(f *BgpFilter) (string, *model.BGPFilter) {
	rules := func(field string, in []*BgpRule) []model.BGPRule { return list(r, field, in, r.bgpRule) }
	out := &model.BGPFilter{Name: r.key("name", f.Name), Export4: rules("export4", f.Export4), Import4: rules("import4", f.Import4),
		Export6: rules("export6", f.Export6), Import6: rules("import6", f.Import6)}
	return out.Name, out
}

func (r *reader) bgpRule(m *BgpRule) model.BGPRule {
	return model.BGPRule{Accept: m.Accept, CIDR: one(r, "cidr", m.Cidr, r.prefix), Not: m.Not, MinBits: uint8(min(m.MinBits, 255)), MaxBits: uint8(min(m.MaxBits, 255)),
		Remote: m.Remote, PeerType: r.text("peer_type", m.PeerType), Community: r.text("community", m.Community), ASPath: m.AsPath, Add: r.textList("add", m.Add),
		Prepend: m.Prepend, Priority: m.Priority, SetPriority: m.SetPriority}
}
