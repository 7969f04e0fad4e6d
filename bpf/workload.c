/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* workload.c: both sides of a pod's interface, seen from the host. */
#include "datapath.h"
#include "slow.h"

static __always_inline int workload_sent(struct __sk_buff *skb)
{
	if (WEIR_FAMILY == 4 && skb->vlan_present)
		return drop_packet(skb, DROP_VLAN, 0);
	return datapath_packet(skb, HOOK_FROM_WORKLOAD, NULL, 0);
}

SEC("tc")
int weir_from_workload(struct __sk_buff *skb)
{
	return workload_sent(skb);
}

static __always_inline int workload_gets(struct __sk_buff *skb)
{
	if ((skb->mark & MARK_MASK) == MARK_DONE)
		return forward_pass(skb);
	return datapath_packet(skb, HOOK_TO_WORKLOAD, NULL, 0);
}

/* Is it an answer of a DNS server that comes from the agent, and was here before it? */
static __always_inline int workload_read(struct __sk_buff *skb)
{
	return (skb->mark & MARK_MASK) == MARK_READ;
}

/* It is also what the programs of other hooks call. */
SEC("tc")
int weir_to_workload(struct __sk_buff *skb)
{
	__u32 call = slow_called(skb);
	int ret;

	if (call)
		return slow_packet(skb, call);
	if (workload_read(skb))
		return forward_pass(skb);
	ret = workload_gets(skb);
	if (ret == TC_ACT_OK)
		names_comes(skb);
	return ret;
}
