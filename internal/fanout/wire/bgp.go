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
		ListenPort: uint32(c.ListenPort), BindMode: w.text(c.BindMode)}
}

func (w *writer) bgpPeer(p *model.BGPPeer) *BgpPeer {
	return &BgpPeer{Name: []byte(p.Name), Node: w.text(p.Node), NodeSelector: w.text(p.NodeSelector), Addr: addrBytes(p.Addr), Port: uint32(p.Port),
		Asn: p.ASN, LocalAsn: p.LocalASN, PeerSelector: w.text(p.PeerSelector), Password: w.secretKey(p.Password), Restart: p.Restart, Keepalive: p.Keepalive,
		TtlHops: uint32(p.TTLHops), AllowedAs: uint32(p.AllowedAS), AnySource: p.AnySource, Manual: p.Manual, Bfd: p.BFD}
}

func (r *reader) secretKey(field string, k *SecretKey) model.SecretKey {
	if k == nil {
		return model.SecretKey{}
	}
	return model.SecretKey{Name: r.text(field+".name", k.Name), Key: r.text(field+".key", k.Key)}
}

func (r *reader) bgpConfig(c *BgpConfig) (string, *model.BGPConfig) {
	out := &model.BGPConfig{Name: r.key("name", c.Name), ASN: c.Asn, MeshDisabled: c.MeshDisabled, MeshPassword: r.secretKey("mesh_password", c.MeshPassword),
		MeshRestart: c.MeshRestart, ListenPort: r.port("listen_port", c.ListenPort), BindMode: r.text("bind_mode", c.BindMode)}
	return out.Name, out
}

func (r *reader) bgpPeer(p *BgpPeer) (string, *model.BGPPeer) {
	out := &model.BGPPeer{Name: r.key("name", p.Name), Node: r.text("node", p.Node), NodeSelector: r.text("node_selector", p.NodeSelector),
		Addr: one(r, "addr", p.Addr, r.addr), Port: r.port("port", p.Port), ASN: p.Asn, LocalASN: p.LocalAsn, PeerSelector: r.text("peer_selector", p.PeerSelector),
		Password: r.secretKey("password", p.Password), Restart: p.Restart, Keepalive: p.Keepalive, TTLHops: uint8(min(p.TtlHops, 255)),
		AllowedAS: uint8(min(p.AllowedAs, 255)), AnySource: p.AnySource, Manual: p.Manual, BFD: p.Bfd}
	return out.Name, out
}
