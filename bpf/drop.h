/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* drop.h: no packet is dropped uncounted. */
#ifndef WEIR_DROP_H
#define WEIR_DROP_H

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "reasons.h"

/* Counts a packet of so many bytes under its reason and rule. */
static __always_inline int drop_add(__u32 reason, __u32 rule, __u32 bytes)
{
	struct drop_key key = { .reason = reason, .rule = rule };
	struct drop_value *v = bpf_map_lookup_elem(&weir_drops, &key);

	if (v) {
		v->packets++;
		v->bytes += bytes;
	} else {
		struct drop_value first = { .packets = 1, .bytes = bytes };

		bpf_map_update_elem(&weir_drops, &key, &first, BPF_ANY);
	}
	return 0;
}

__noinline int drop_count(struct __sk_buff *skb, __u32 reason, __u32 rule)
{
	return drop_add(reason, rule, skb->len);
}

/* What the program must return for a packet that is dropped and was counted. */
static __always_inline int drop_verdict(struct __sk_buff *skb, __u32 reason, __u32 rule)
{
	if (trace_enabled) {
		skb->cb[0] = 0x100 + reason;
		skb->cb[1] = 0;
		skb->cb[2] = 0;
		skb->cb[3] = rule;
	}
	return TC_ACT_SHOT;
}

/* Both. */
static __always_inline int drop_packet(struct __sk_buff *skb, __u32 reason, __u32 rule)
{
	drop_count(skb, reason, rule);
	return drop_verdict(skb, reason, rule);
}

#endif
