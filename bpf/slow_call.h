/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* slow_call.h: how programs of hooks call weir_to_workload for all but the fast path, and what it
 * returns to. slow.h is the other end. */
#ifndef WEIR_SLOW_CALL_H
#define WEIR_SLOW_CALL_H

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "parse.h"
#include "drop.h"
#include "forward.h"

/* What is asked about scratch.pkt, in scratch.call. */
enum slow_call {
	SLOW_PARSED = 0xff, /* enum parsed */
	SLOW_IPIP = 1 << 8, /* weir_from_ipip took an outer header off */
	SLOW_CALLED = 1 << 9,
};

/* In skb->cb[0] of a packet that is handed over. Anybody may have left it there: without
 * scratch.call it says nothing. */
#define SLOW_HINT 0x51077e12u

/* The rest is for weir_to_workload, so the kernel verifies and keeps it once for all hooks that
 * call it. It works on the scratch of its caller: weir_slow_calls is made anew for the programs
 * that are loaded together, as that is. */
static __always_inline int datapath_call(struct __sk_buff *skb, const struct pkt *p, int parsed,
					 __u32 flags)
{
	struct scratch *w = scratch_get();

	if (!w)
		return TC_ACT_SHOT;
	if (WEIR_FAMILY == 4) /* of IPv6 it is there */
		w->pkt = *p;
	w->call = SLOW_CALLED | parsed | flags;
	skb->cb[0] = SLOW_HINT;
	bpf_tail_call(skb, &weir_slow_calls, 0);
	w->call = 0;
	return drop_packet(skb, DROP_INTERNAL, 0);
}

/* What weir_from_ipip unpacked the stack gets from weir0: a check of the reverse path at the uplink
 * would expect pods there that it has no route to. */
static __always_inline int datapath_unpacked(struct __sk_buff *skb, struct settings *s, int ret)
{
	return ret == TC_ACT_OK && s->host_ifindex ? forward_to_host(skb, s) : ret;
}

#endif
