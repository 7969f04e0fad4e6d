/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* overlay.c: what other nodes sent through VXLAN (RFC 7348), by a device in collect-metadata mode. */
#include "handle.h"

SEC("tc")
int weir_from_tunnel(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct bpf_tunnel_key key = {};
	struct addr_value *a;
	ip_addr src = addr_none();

	if ((skb->mark & MARK_MASK) != MARK_AGAIN) { /* else judged before, see frag.h */
		if (!s || bpf_skb_get_tunnel_key(skb, &key, sizeof(key), PARSE_TUNNEL_FLAGS))
			return drop_packet(skb, DROP_TUNNEL_SOURCE, 0);
		parse_outer(&src, &key);
		a = bpf_map_lookup_elem(&weir_addrs, &src);
		if (!a || a->kind != ADDR_NODE || key.tunnel_id != s->vni)
			return drop_packet(skb, DROP_TUNNEL_SOURCE, 0);
	}
	/* The inner Ethernet addresses mean nothing. */
	if (skb->pkt_type != 0 /* PACKET_HOST */)
		bpf_skb_change_type(skb, 0);
	return handle_packet(skb, HOOK_FROM_TUNNEL, &src);
}
