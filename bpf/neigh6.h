/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* neigh6.h: neigh_answer for neighbour solicitation (RFC 4861). Comes with neigh.h. */
#ifndef WEIR_NEIGH6_H
#define WEIR_NEIGH6_H

#include "neigh.h"
#include "reply.h"

/* Solicitation and advertisement, after the IPv6 header. Options follow, each in units of 8
 * bytes. */
struct neigh_nd {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be32 flags;
	ip_addr target;
};

struct neigh_link {
	__u8 type;
	__u8 units;
	__u8 mac[6];
};

_Static_assert(sizeof(struct neigh_nd) == 24 && sizeof(struct neigh_link) == 8, "neigh_nd");

#define NEIGH_SOLICITATION 135
#define NEIGH_ADVERTISEMENT 136
#define NEIGH_SOLICITED 0x40000000u
#define NEIGH_OVERRIDE 0x20000000u
#define NEIGH_SOURCE_LINK 1
#define NEIGH_TARGET_LINK 2
#define NEIGH_OPTIONS 8 /* units of options of a question, at most */
#define NEIGH_AT ((__u32)sizeof(struct ipv6hdr))

/* Is the question in r->bytes, `bytes` long, one that RFC 4861 section 7.1.1 lets through? */
static __always_inline int neigh_valid(struct reply_work *r, const struct pkt *p, __u32 bytes)
{
	struct neigh_nd *nd = (void *)(r->bytes + NEIGH_AT);
	__u32 at = sizeof(*nd);

	if (nd->type != NEIGH_SOLICITATION || nd->code)
		return 0;
	if (reply_sum(r->bytes + NEIGH_AT, bytes, ip_icmp_pseudo(&p->saddr, &p->daddr, bytes)))
		return 0;
	for (int i = 0; i < NEIGH_OPTIONS && at < bytes; i++) {
		struct neigh_link *o = (void *)(r->bytes + NEIGH_AT + (at & 0x7f));

		if (!o->units || (o->type == NEIGH_SOURCE_LINK && addr_is_none(&p->saddr)))
			return 0;
		at += o->units * 8;
	}
	return at == bytes;
}

/* The multicast address on which who has `target` listens. */
static __always_inline int neigh_is_group(const ip_addr *to, const ip_addr *target)
{
	return to->w[0] == bpf_htonl(0xff020000) && !to->w[1] && to->w[2] == bpf_htonl(1) &&
	       to->w[3] == (target->w[3] | bpf_htonl(0xff000000));
}

/* Makes the advertisement in r->bytes. Who has no address yet (duplicate address detection) gets
 * it with all others. */
static __always_inline void neigh_make(struct reply_work *r, const struct pkt *p,
				       const ip_addr *target, const __u8 *mac)
{
	struct neigh_link link = { .type = NEIGH_TARGET_LINK, .units = 1 };
	struct neigh_nd nd = { .type = NEIGH_ADVERTISEMENT, .target = *target };
	int probe = addr_is_none(&p->saddr);
	ip_addr to = p->saddr;

	nd.flags = bpf_htonl(probe ? NEIGH_OVERRIDE : NEIGH_OVERRIDE | NEIGH_SOLICITED);
	__builtin_memcpy(link.mac, mac, 6);
	__builtin_memcpy(r->mac, mac, 6);
	if (probe) {
		const __u8 everybody[6] = { 0x33, 0x33, 0, 0, 0, 1 };

		__builtin_memcpy(r->mac + 6, everybody, 6);
		to.w[0] = bpf_htonl(0xff020000);
		to.w[3] = bpf_htonl(1);
	}
	__builtin_memcpy(r->bytes + NEIGH_AT, &nd, sizeof(nd));
	__builtin_memcpy(r->bytes + NEIGH_AT + sizeof(nd), &link, sizeof(link));
	nd.checksum = reply_sum(r->bytes + NEIGH_AT, sizeof(nd) + sizeof(link),
				ip_icmp_pseudo(target, &to, sizeof(nd) + sizeof(link)));
	__builtin_memcpy(r->bytes + NEIGH_AT, &nd, sizeof(nd));
	reply_ip(r, target, &to, IPPROTO_ICMPV6, 0, sizeof(nd) + sizeof(link));
	((struct ipv6hdr *)r->bytes)->hop_limit = 255;
	r->len = NEIGH_AT + sizeof(nd) + sizeof(link);
}

__noinline int neigh_answer(struct __sk_buff *skb)
{
	struct reply_work *r = reply_get();
	struct scratch *w = scratch_get();
	__u32 ifindex = skb->ifindex;
	struct link_key *own;
	struct ipv6hdr ip;
	ip_addr target;
	__u64 bytes;

	if (!r || !w || bpf_skb_load_bytes(skb, ETH_SIZE, &ip, sizeof(ip)) ||
	    ip.nexthdr != IPPROTO_ICMPV6 || ip.hop_limit != 255)
		return forward_pass(skb);
	bytes = bpf_ntohs(ip.payload_len);
	if (bytes < sizeof(struct neigh_nd) || (bytes & 7))
		return forward_pass(skb);
	OPAQUE(bytes);
	if (bytes > sizeof(struct neigh_nd) + NEIGH_OPTIONS * 8)
		return forward_pass(skb);
	OPAQUE(bytes);
	if (!bytes || bpf_skb_load_bytes(skb, ETH_SIZE + NEIGH_AT, r->bytes + NEIGH_AT, bytes) ||
	    bpf_skb_load_bytes(skb, 0, r->mac, sizeof(r->mac)))
		return forward_pass(skb);
	addr_load(&target, &((struct neigh_nd *)(r->bytes + NEIGH_AT))->target);
	own = neigh_announced(&target, ifindex);
	if (!own || (r->mac[6] & 1) || (!(r->mac[0] & 1) && __builtin_memcmp(r->mac, own->mac, 6)))
		return forward_pass(skb);
	if (addr_same(&w->pkt.saddr, &target) ||
	    (w->pkt.saddr.w[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000))
		return forward_pass(skb);
	if (!neigh_is_group(&w->pkt.daddr, &target) &&
	    (addr_is_none(&w->pkt.saddr) || !addr_same(&w->pkt.daddr, &target)))
		return forward_pass(skb);
	if (!neigh_valid(r, &w->pkt, bytes))
		return forward_pass(skb);
	neigh_make(r, &w->pkt, &target, own->mac);
	if (reply_replace(skb))
		return drop_packet(skb, DROP_REWRITE, 0);
	return neigh_send(skb, ifindex);
}

#endif
