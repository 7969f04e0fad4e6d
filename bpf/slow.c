/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* slow.c: all but the fast path, for the hooks that do not have it themselves. datapath_call calls
 * it. */
#include "datapath.h"

/* Reads the packet into scratch.pkt, by what datapath_call says of it; returns what parse_packet
 * does. A function of its own: what it has on the stack is gone while the rest runs. */
static __noinline int slow_read(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	__u32 call = skb->cb[0];
	struct pkt *p;

	if (!w)
		return PARSED_MALFORMED;
	p = &w->pkt;
	p->hook = call & SLOW_HOOK;
	p->missed = !!(call & SLOW_MISSED);
	p->untracked = call >> SLOW_UNTRACKED;
#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++)
		p->tunnel_src.w[i] = skb->cb[1 + i];
	return parse_packet(cursor_of_tc(skb), p);
}

SEC("tc")
int weir_slow(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	int ipip = !!(skb->cb[0] & SLOW_IPIP), parsed, ret;

	if (!s || !w)
		return TC_ACT_SHOT;
	parsed = slow_read(skb);
	if (trace_enabled) { /* what was asked is no decision */
#pragma unroll
		for (int i = 0; i <= ADDR_WORDS; i++)
			*(volatile __u32 *)&skb->cb[i] = 0;
	}
	ret = parsed == PARSED_OK ? datapath_hard(skb, &w->pkt, w->pkt.hook, 0) :
				    datapath_odd(skb, &w->pkt, parsed, 0);
	return ipip ? datapath_unpacked(skb, s, ret) : ret;
}
