/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* workload.c: both sides of a pod's interface, seen from the host. */
#include "datapath.h"

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

SEC("tc")
int weir_to_workload(struct __sk_buff *skb)
{
	int ret = TC_ACT_OK;

	if ((skb->mark & MARK_MASK) == MARK_READ)
		return forward_pass(skb); /* for the second time */
	if ((skb->mark & MARK_MASK) == MARK_DONE)
		forward_pass(skb);
	else
		ret = datapath_packet(skb, HOOK_TO_WORKLOAD, NULL, 0);
	if (ret == TC_ACT_OK)
		names_comes(skb);
	return ret;
}

#if WEIR_FAMILY == 4
/* Of pods whose egress is limited: the interface's index -> that of the device in whose queue its
 * packets wait; and the index of that device's peer, by which they come back -> the interface's. */
MAP(weir_queues, BPF_MAP_TYPE_HASH, __u32, __u32, 8192, BPF_F_NO_PREALLOC);

/* Takes the place of weir_from_workload at the interface of such a pod. A packet has to wait before
 * a program sends it away from the interface. Without an entry nothing waits. What has a mark has
 * waited, and that of a fragment on its second way in stays (MARK_AGAIN). A pod sets none: the
 * kernel clears it on the way out of its namespace. */
SEC("tc")
int weir_from_limited(struct __sk_buff *skb)
{
	__u32 from = skb->ifindex, mark = skb->mark & MARK_MASK, *queue;

	if (!mark) {
		queue = bpf_map_lookup_elem(&weir_queues, &from);
		if (queue)
			return bpf_redirect(*queue, 0);
	}
	if (mark == MARK_QUEUED)
		skb->mark &= ~MARK_MASK;
	return workload_sent(skb);
}

/* At the peer of a queue's device: the packets come in by the pod's interface once more. */
SEC("tc")
int weir_from_queue(struct __sk_buff *skb)
{
	__u32 from = skb->ifindex, *pod = bpf_map_lookup_elem(&weir_queues, &from);

	if (!pod)
		return drop_packet(skb, DROP_INTERNAL, 0);
	skb->mark = (skb->mark & ~MARK_MASK) | MARK_QUEUED;
	return bpf_redirect(*pod, BPF_F_INGRESS);
}
#endif
