/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* limits.h: packets of pods that may send or get a number of them in a second, and the DSCP of what
 * leaves the cluster. The programs of other pods have nothing of it. docs/design/datapath.md,
 * "Limited pods". */
#ifndef WEIR_LIMITS_H
#define WEIR_LIMITS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "csum.h"
#include "cursor.h"
#include "parse.h"
#include "ip.h"
#include "route.h"
#include "ipip.h"

/* Bytes of the IP header in which a DSCP changes something: of IPv4 the checksum is there. */
#define LIMIT_HEAD (WEIR_FAMILY == 4 ? 12 : 2)

MAP(weir_limits, BPF_MAP_TYPE_HASH, struct limit_key, struct limit, 16384, BPF_F_NO_PREALLOC);
MAP(weir_limit_states, BPF_MAP_TYPE_HASH, struct limit_key, struct limit_state, 16384,
    BPF_F_NO_PREALLOC);

static __always_inline struct limit *limit_get(const struct limit_key *key)
{
	return bpf_map_lookup_elem(&weir_limits, key);
}

/* Is the packet from one of the node's own addresses? */
static __noinline int limit_of_host(struct __sk_buff *skb)
{
	struct addr_value *a;
	ip_addr from;
	ip_head ip;

	if (bpf_skb_load_bytes(skb, ETH_SIZE, &ip, sizeof(ip)))
		return 0;
	addr_load(&from, &ip.saddr);
	a = bpf_map_lookup_elem(&weir_addrs, &from);
	return a && a->kind == ADDR_HOST;
}

/* Is the packet one too many for the pod at whose interface it is? What it gets from the node's own
 * processes never is: the kubelet asks whether it lives. What the kernel carries in one buffer
 * (GSO, GRO) counts as one, as with nftables. */
static __noinline int limit_packet(struct __sk_buff *skb, __u32 direction)
{
	struct limit_key key = { .ifindex = skb->ifindex, .direction = direction };
	struct limit *l = limit_get(&key);
	struct limit_state *s;
	__u64 now, first, interval;
	int over = 1;

	if (!l || !l->interval || (direction == LIMIT_INGRESS && limit_of_host(skb)))
		return 0;
	s = bpf_map_lookup_elem(&weir_limit_states, &key);
	if (!s)
		return 0;
	now = bpf_ktime_get_ns();
	first = now - l->burst;
	interval = l->interval;
	bpf_spin_lock(&s->lock);
	if ((__s64)(s->used - first) < 0)
		s->used = first;
	if ((__s64)(now - s->used - interval) >= 0) {
		s->used += interval;
		over = 0;
	}
	bpf_spin_unlock(&s->lock);
	return over;
}

/* Gives a packet that was evaluated, and had `was` bytes before that, the DSCP of the pod that sent
 * it where it leaves the cluster: nobody in the cluster has the address. ECN stays. Of IP in IP it
 * is the packet inside: the outer one goes to a node. */
static __noinline int limit_dscp(struct __sk_buff *skb, __u32 was)
{
	struct limit_key key = { .ifindex = skb->ifindex, .direction = LIMIT_EGRESS };
	struct limit *l = limit_get(&key);
	__u32 at = ETH_SIZE, dscp;
	ip_addr to;
	__u16 had, has;
	ip_head ip;
	__u8 *b = (__u8 *)&ip;

	if (!l || !l->dscp)
		return 0;
	dscp = (l->dscp - 1) & 63;
#if WEIR_FAMILY == 4
	if (skb->len == was + IPIP_HEADER)
		at += IPIP_HEADER;
#endif
	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
		return 0;
	addr_load(&to, &ip.daddr);
	if (bpf_map_lookup_elem(&weir_addrs, &to) || route_find(&to))
		return 0;
	__builtin_memcpy(&had, b, sizeof(had));
#if WEIR_FAMILY == 4
	b[1] = (b[1] & 3) | dscp << 2;
#else
	b[0] = (b[0] & 0xf0) | dscp >> 2;
	b[1] = (b[1] & 0x3f) | dscp << 6;
#endif
	__builtin_memcpy(&has, b, sizeof(has));
	if (has == had)
		return 0;
#if WEIR_FAMILY == 4
	ip_csum_add(&ip, csum_diff16(had, has));
#else
	bpf_csum_update(skb, csum_fold(csum_diff16(had, has)));
#endif
	return bpf_skb_store_bytes(skb, at, &ip, LIMIT_HEAD, 0);
}

#endif
