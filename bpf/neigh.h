/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* neigh.h: answers to neighbours who ask for an address that this node announces (a load balancer's, which no
 * interface has). Made here rather than in user space, so that they are right while no agent runs. */
#ifndef WEIR_NEIGH_H
#define WEIR_NEIGH_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "maps.h"
#include "parse.h"
#include "forward.h"

/* ARP for Ethernet and IPv4 (RFC 826), from the start of the frame. */
struct neigh_arp {
	__u8 dmac[6];
	__u8 smac[6];
	__be16 type;
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_size;
	__u8 protocol_size;
	__be16 operation;
	__u8 sender_mac[6];
	__u8 sender[4];
	__u8 target_mac[6];
	__u8 target[4];
} __attribute__((packed));

_Static_assert(sizeof(struct neigh_arp) == 42, "neigh_arp");

#define NEIGH_ETHERNET 1
#define NEIGH_REQUEST 1
#define NEIGH_REPLY 2

static __always_inline struct link_key *neigh_announced(const ip_addr *a, __u32 ifindex)
{
	if (!bpf_map_lookup_elem(&weir_announced, a))
		return NULL;
	return bpf_map_lookup_elem(&weir_uplinks, &ifindex);
}

/* Turns a request for one of our addresses into its answer, and sends that back. Everything else is left to the
 * kernel. An answer is as long as its request and goes to the same link, so nobody gains by asking. */
__noinline int neigh_answer(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct neigh_arp arp;
	struct link_key *own;
	ip_addr target = {};

	if (WEIR_FAMILY != 4 || bpf_skb_load_bytes(skb, 0, &arp, sizeof(arp)))
		return forward_pass(skb);
	if (arp.hardware != bpf_htons(NEIGH_ETHERNET) || arp.protocol != bpf_htons(ETH_P_IP) || arp.hardware_size != 6 ||
	    arp.protocol_size != 4 || arp.operation != bpf_htons(NEIGH_REQUEST) || ((arp.smac[0] | arp.sender_mac[0]) & 1))
		return forward_pass(skb);
	/* Who announces the address as its own (RFC 5227) asks nothing. */
	if (!__builtin_memcmp(arp.sender, arp.target, 4))
		return forward_pass(skb);
	__builtin_memcpy(&target, arp.target, 4);
	own = neigh_announced(&target, ifindex);
	if (!own || (!(arp.dmac[0] & 1) && __builtin_memcmp(arp.dmac, own->mac, 6))) /* not ours, or for another machine */
		return forward_pass(skb);
	arp.operation = bpf_htons(NEIGH_REPLY);
	__builtin_memcpy(arp.dmac, arp.smac, 6);
	__builtin_memcpy(arp.smac, own->mac, 6);
	__builtin_memcpy(arp.target_mac, arp.sender_mac, 6);
	__builtin_memcpy(arp.target, arp.sender, 4);
	__builtin_memcpy(arp.sender_mac, own->mac, 6);
	__builtin_memcpy(arp.sender, &target, 4);
	if (bpf_skb_store_bytes(skb, 0, &arp, sizeof(arp), 0))
		return forward_pass(skb);
	if (trace_enabled) {
		skb->cb[0] = 0x200; /* an answer to what was not dropped */
		skb->cb[1] = ifindex;
		skb->cb[2] = 0;
		skb->cb[3] = 0;
	}
	return bpf_redirect(ifindex, 0);
}

#endif
