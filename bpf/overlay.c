/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* overlay.c: what other nodes sent through VXLAN (RFC 7348), by a device in collect-metadata
 * mode. */
#include "datapath.h"

/* The outer source goes to scratch.outer, that of no node for what is sent again (frag.h), which
 * was evaluated before. -1 = it is no other node, or not our tunnel. The inner Ethernet addresses
 * mean nothing: the packet is for this machine. */
__noinline int overlay_source(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct bpf_tunnel_key key = {};
	struct addr_value *a;

	if (!s || !w)
		return -1;
	w->outer = addr_none();
	if ((skb->mark & MARK_MASK) != MARK_AGAIN) {
		if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), IP_TUNNEL_GET))
			return -1;
		ip_outer_get(&w->outer, &key);
		a = bpf_map_lookup_elem(&weir_addrs, &w->outer);
		if (!a || a->kind != ADDR_NODE || key.tunnel_id != s->vni)
			return -1;
	}
	if (skb->pkt_type != 0 /* PACKET_HOST */)
		bpf_skb_change_type(skb, 0);
	return 0;
}

SEC("tc")
int weir_from_tunnel(struct __sk_buff *skb)
{
	struct scratch *w;

	if (WEIR_FAMILY == 4 && frame_is_tagged(skb)) /* RFC 7348 section 6.1: such are discarded */
		return drop_packet(skb, DROP_VLAN, 0);
	datapath_family(skb, HOOK_FROM_TUNNEL);
	if (overlay_source(skb))
		return drop_packet(skb, DROP_TUNNEL_SOURCE, 0);
	w = scratch_get();
	return w ? datapath_packet(skb, HOOK_FROM_TUNNEL, &w->outer, 0) : TC_ACT_SHOT;
}
