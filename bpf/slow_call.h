/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* slow_call.h: how programs of hooks call weir_slow (slow.c), and what it returns to. */
#ifndef WEIR_SLOW_CALL_H
#define WEIR_SLOW_CALL_H

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "parse.h"
#include "drop.h"
#include "forward.h"

/* What weir_slow is told of a packet, in skb->cb: */
enum slow_call { /* cb[0]; from cb[1] on is the address of the tunnel's other end */
	SLOW_HOOK = 0xff, /* enum hook */
	SLOW_MISSED = 1 << 8, /* weir_flows has no such flow */
	SLOW_IPIP = 1 << 9, /* weir_from_ipip took an outer header off */
	SLOW_UNTRACKED = 16, /* enum untracked, from this bit on */
};

/* The rest is for weir_slow, so the kernel verifies and keeps it once for all hooks that call it.
 * That reads the packet again, rather than scratch.pkt, which the programs of an earlier agent have
 * in a map of their own while they call the weir_slow of this one. */
static __always_inline int datapath_call(struct __sk_buff *skb, const struct pkt *p, __u8 hook,
					 __u32 flags)
{
	skb->cb[0] = hook | flags | (p->missed ? SLOW_MISSED : 0) |
		     (__u32)p->untracked << SLOW_UNTRACKED;
#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		skb->cb[1 + i] = p->tunnel_src.w[i];
	bpf_tail_call(skb, &weir_slow_calls, 0);
	return drop_packet(skb, DROP_INTERNAL, 0);
}

/* What weir_from_ipip unpacked the stack gets from weir0: a check of the reverse path at the uplink
 * would expect pods there that it has no route to. */
static __always_inline int datapath_unpacked(struct __sk_buff *skb, struct settings *s, int ret)
{
	return ret == TC_ACT_OK && s->host_ifindex ? forward_to_host(skb, s) : ret;
}

#endif
