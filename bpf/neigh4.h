/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* neigh4.h: neigh_answer for ARP. Comes with neigh.h. */
#ifndef WEIR_NEIGH4_H
#define WEIR_NEIGH4_H

#include "neigh.h"

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

__noinline int neigh_answer(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct neigh_arp arp;
	struct link_key *own;
	ip_addr target = {};

	if (bpf_skb_load_bytes(skb, 0, &arp, sizeof(arp)))
		return forward_pass(skb);
	if (arp.hardware != bpf_htons(NEIGH_ETHERNET) || arp.protocol != bpf_htons(ETH_P_IP) ||
	    arp.hardware_size != 6 || arp.protocol_size != 4 ||
	    arp.operation != bpf_htons(NEIGH_REQUEST) || ((arp.smac[0] | arp.sender_mac[0]) & 1))
		return forward_pass(skb);
	/* Who announces the address as its own (RFC 5227) asks nothing. */
	if (!__builtin_memcmp(arp.sender, arp.target, 4))
		return forward_pass(skb);
	__builtin_memcpy(&target, arp.target, 4);
	own = neigh_announced(&target, ifindex);
	/* Not ours, or for another machine. */
	if (!own || (!(arp.dmac[0] & 1) && __builtin_memcmp(arp.dmac, own->mac, 6)))
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
	return neigh_send(skb, ifindex);
}

#endif
