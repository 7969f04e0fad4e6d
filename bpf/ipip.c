/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* ipip.c: what other nodes sent in IP in IP. weir_from_uplink calls it. */
#include "datapath.h"

#if WEIR_FAMILY == 4

/* Does the outer header say that another node sent the packet, on the link by its own MAC
 * address? */
static __always_inline int ipip_trusts(struct __sk_buff *skb, const struct iphdr *ip)
{
	struct source_sender sender = {};
	ip_addr from = { .w = { ip->saddr } };
	struct addr_value *a = bpf_map_lookup_elem(&weir_addrs, &from);

	if (!a || a->kind != ADDR_NODE)
		return 0;
	if (!(a->flags & ADDR_SAME_LINK))
		return 1;
	bpf_skb_load_bytes(skb, 6, sender.mac, 6);
	return !source_differs(a, &sender);
}

/* Takes the outer header off. The outer source goes to scratch.outer, that of no node for what is
 * sent again (frag.h), which was evaluated before. Returns 0 or the reason to drop. */
__noinline int ipip_unpack(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct iphdr ip;

	if (!s || !w)
		return DROP_INTERNAL;
	w->outer = addr_none();
	if ((skb->mark & MARK_MASK) == MARK_AGAIN_INNER)
		return DROP_NONE;
	if (bpf_skb_load_bytes(skb, ETH_SIZE, &ip, sizeof(ip)))
		return DROP_INTERNAL;
	if (!(s->flags & SET_IPIP) || ip.ihl != IPIP_HEADER / 4 ||
	    (ip.frag_off & bpf_htons(IPIP_PIECE)) || !ipip_trusts(skb, &ip))
		return DROP_TUNNEL_SOURCE;
	w->outer.w[0] = w->pkt.saddr.w[0] = ip.saddr;
	w->pkt.daddr.w[0] = ip.daddr;
	if ((s->flags & SET_RPF_STRICT) && rpf_fails(skb))
		return DROP_REVERSE_PATH;
	if (bpf_skb_adjust_room(skb, -(int)IPIP_HEADER, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return DROP_MALFORMED;
	/* RFC 6040, section 4.2: congestion is told on, and who cannot be told loses the packet. */
	if ((ip.tos & IPIP_ECN) == IPIP_CE && !bpf_skb_ecn_set_ce(skb))
		return DROP_MALFORMED;
	return DROP_NONE;
}

SEC("tc")
int weir_from_ipip(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	int ret = ipip_unpack(skb);

	if (ret)
		return drop_packet(skb, ret, 0);
	if (!s || !w)
		return TC_ACT_SHOT;
	ret = datapath_packet(skb, HOOK_FROM_TUNNEL, &w->outer, SLOW_IPIP);
	return datapath_unpacked(skb, s, ret);
}

#endif
