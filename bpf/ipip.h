/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* ipip.h: IP in IP between nodes (RFC 2003), of IPv4 alone, without a device: the programs put the
 * outer header on and take it off. docs/design/datapath.md, "IP in IP", says what and why. */
#ifndef WEIR_IPIP_H
#define WEIR_IPIP_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "parse.h"
#include "mtu.h"

#define IPIP_HEADER 20u /* bytes: an IPv4 header without options */

/* The interface that host endpoints see in the place of a device: none that there is, so that the
 * entry of those without their own counts. */
#define IPIP_IFINDEX 0x7fffffffu

/* Is the next hop of a flow that has ACT_TUNNEL reached by IP in IP? */
static __always_inline int ipip_leads(const struct flow_value *f)
{
	return WEIR_FAMILY == 4 && f->ifindex;
}

#if WEIR_FAMILY == 4

#include <linux/ip.h>

#define IPIP_TTL 64
#define IPIP_DF 0x4000
#define IPIP_PIECE 0x3fff /* more fragments to come, and where this one lies */
#define IPIP_ECN 3u
#define IPIP_CE 3u
#define IPIP_ECT0 2u
#define IPIP_FLAGGED 114 /* EALREADY: the packet came encapsulated and bears that still */

/* The program for what comes encapsulated, weir_from_ipip, while the node takes such packets. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 1);
} weir_ipip SEC(".maps");

/* The packet p, of which no flow is known, came in by an uplink. Where it is one to unpack, this
 * does not return. */
static __always_inline void ipip_comes(struct __sk_buff *skb, const struct pkt *p)
{
	struct addr_value *b;

	if (p->key.proto != IPPROTO_IPIP || p->l4 != L4_NONE)
		return;
	b = bpf_map_lookup_elem(&weir_addrs, &p->daddr);
	if (b && b->kind == ADDR_HOST)
		bpf_tail_call(skb, &weir_ipip, 0);
}

/* A fragment came in by an uplink: was it kept after it was unpacked? Then this does not return. */
static __always_inline void ipip_again(struct __sk_buff *skb)
{
	if ((skb->mark & MARK_MASK) == MARK_AGAIN_INNER)
		bpf_tail_call(skb, &weir_ipip, 0);
}

/* Where a flow's packets to the node f->nexthop go, which the kernel's routes (f->ifindex, nexthop,
 * mtu) were asked for: the gateway goes where other flows have a MAC address. */
static __always_inline void ipip_route(struct flow_value *f, const struct settings *s,
				       const ip_addr *node)
{
	__u32 mtu = f->mtu == MTU_NONE ? MTU_NONE : f->mtu - IPIP_HEADER;

	__builtin_memcpy(f->mac, &f->nexthop, 4);
	if (s->ipip_mtu && s->ipip_mtu < mtu)
		mtu = s->ipip_mtu;
	f->action = ACT_TUNNEL;
	f->mtu = mtu_bounded(mtu);
	f->nexthop = *node;
}

/* Puts the outer header on and sends the packet out of an interface, by gateway; 0 = whichever the
 * kernel's routes name. The segments of a packet of several (GSO) stay as they are: they were
 * compared with the MTU. Returns what the program must return, or -1. */
__noinline int ipip_send(struct __sk_buff *skb, __u32 ifindex, __u32 node, __u32 gateway)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	__u32 len, sum = 0;
	struct iphdr *ip;
	long ret;
	__u8 tos;

	if (!s || !w || bpf_skb_load_bytes(skb, ETH_SIZE + 1, &tos, 1))
		return -1;
	len = skb->len - ETH_SIZE + IPIP_HEADER;
	ret = bpf_skb_adjust_room(skb, IPIP_HEADER, BPF_ADJ_ROOM_MAC,
				  BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_FIXED_GSO);
	if (ret == -IPIP_FLAGGED)
		ret = bpf_skb_adjust_room(skb, IPIP_HEADER, BPF_ADJ_ROOM_MAC,
					  BPF_F_ADJ_ROOM_FIXED_GSO);
	if (ret)
		return -1;
	ip = (struct iphdr *)w->outer_head;
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = IPIP_HEADER / 4;
	ip->tos = (tos & IPIP_ECN) == IPIP_CE ? IPIP_ECT0 : tos & IPIP_ECN; /* as Linux' devices */
	ip->tot_len = len > 0xffff ? 0 : bpf_htons(len);
	/* Nobody could put pieces together at the other end. */
	ip->frag_off = bpf_htons(IPIP_DF);
	ip->ttl = IPIP_TTL;
	ip->protocol = IPPROTO_IPIP;
	ip->saddr = s->node.w[0];
	ip->daddr = node;
#pragma unroll
	for (int i = 0; i < (int)IPIP_HEADER / 2; i++)
		sum += w->outer_head[i];
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~((sum & 0xffff) + (sum >> 16));
	if (bpf_skb_store_bytes(skb, ETH_SIZE, w->outer_head, sizeof(w->outer_head), 0))
		return -1;
	skb->mark = (skb->mark & ~MARK_MASK) | MARK_DONE;
	if (!gateway)
		return bpf_redirect_neigh(ifindex, NULL, 0, 0);
	__builtin_memset(&w->outer_hop, 0, sizeof(w->outer_hop));
	w->outer_hop.nh_family = ADDR_AF;
	w->outer_hop.ipv4_nh = gateway;
	return bpf_redirect_neigh(ifindex, &w->outer_hop, sizeof(w->outer_hop), 0);
}

#else

static __always_inline void ipip_comes(struct __sk_buff *skb, const struct pkt *p) {}

static __always_inline void ipip_again(struct __sk_buff *skb) {}

static __always_inline void ipip_route(struct flow_value *f, const struct settings *s,
				       const ip_addr *node)
{
}

#endif

#endif
