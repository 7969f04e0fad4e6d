/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* slow.c: all but the fast path, for the hooks that do not have it themselves. datapath_call calls
 * it. */
#include "datapath.h"

SEC("tc")
int weir_slow(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	__u32 call = skb->cb[0];
	struct pkt *p;
	int parsed, ret;

	if (!s || !w)
		return TC_ACT_SHOT;
	p = &w->pkt;
	p->hook = call & SLOW_HOOK;
	p->missed = !!(call & SLOW_MISSED);
	p->untracked = call >> SLOW_UNTRACKED;
#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		p->tunnel_src.w[i] = skb->cb[1 + i];
	if (trace_enabled) { /* what was asked is no decision */
#pragma unroll
		for (int i = 0; i <= ADDR_WORDS; i++)
			*(volatile __u32 *)&skb->cb[i] = 0;
	}
	parsed = parse_packet(cursor_of_tc(skb), p);
	ret = parsed == PARSED_OK ? datapath_hard(skb, p, p->hook, 0) :
				    datapath_odd(skb, p, parsed, 0);
	return call & SLOW_IPIP ? datapath_unpacked(skb, s, ret) : ret;
}
