/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* slow.h: all but the fast path, for the hooks that do not have it themselves: weir_to_workload
 * does it for them when they call it (slow_call.h). */
#ifndef WEIR_SLOW_H
#define WEIR_SLOW_H

#include "datapath.h"

/* What is asked of the program: enum slow_call. 0 = nothing: it runs at its own hook. The scratch
 * of all its callers is this one, so what it says is of this packet. */
static __always_inline __u32 slow_called(struct __sk_buff *skb)
{
	struct scratch *w;
	__u32 call;

	if (skb->cb[0] != SLOW_HINT)
		return 0;
	w = scratch_get();
	if (!w)
		return 0;
	call = w->call;
	w->call = 0;
	skb->cb[0] = 0;
	return call;
}

static __always_inline int slow_packet(struct __sk_buff *skb, __u32 call)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	int ret;

	if (!s || !w)
		return TC_ACT_SHOT;
	ret = (call & SLOW_PARSED) == PARSED_OK ? datapath_hard(skb, &w->pkt, w->pkt.hook, 0) :
						  datapath_odd(skb, &w->pkt, call & SLOW_PARSED, 0);
	return call & SLOW_IPIP ? datapath_unpacked(skb, s, ret) : ret;
}

#endif
