/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* limited.c: both sides of the interface of a limited pod, and the egress of uplinks whose host
 * endpoints have a DSCP. docs/design/datapath.md, "Limited pods". */
#include "datapath.h"
#include "limits.h"
#include "conns.h"
#include "departures.h"

/* IPv6's programs of these, enum limited_slot: IPv4's, which are attached, call them. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 3);
} weir_limited_calls SEC(".maps");

/* Of pods whose egress bandwidth is limited: the interface's index -> that of the device in whose
 * queue its packets wait; and the index of that device's peer, by which they come back -> the
 * interface's. */
MAP(weir_queues, BPF_MAP_TYPE_HASH, __u32, __u32, 8192, BPF_F_NO_PREALLOC);

static __always_inline void limited_family(struct __sk_buff *skb, __u32 slot)
{
	if (WEIR_FAMILY == 4 && skb->protocol == bpf_htons(ETH_P_IPV6))
		bpf_tail_call(skb, &weir_limited_calls, slot);
}

/* What comes before evaluation, of what a pod sends: the program's verdict, or -1 to go on. A
 * packet has to wait before a program sends it away from the interface; without an entry nothing
 * waits. What has a mark has waited, and was counted, and that of a fragment on its second way in
 * stays (MARK_AGAIN). A pod sets none: the kernel clears it on the way out of its namespace. This,
 * and limited_after, are functions of their own, as IPv6 leaves no room on the stack. */
static __noinline int limited_before(struct __sk_buff *skb)
{
	__u32 from = skb->ifindex, mark = skb->mark & MARK_MASK, *queue;
	struct conn_work *k = conn_work();

	if (!k)
		return TC_ACT_SHOT;
	if (!mark) {
		if (limit_packet(skb, LIMIT_EGRESS))
			return limit_drop(skb, DROP_PACKET_RATE, 1);
		queue = bpf_map_lookup_elem(&weir_queues, &from);
		if (queue) {
			switch (depart(skb)) {
			case DEPART_DEVICE: return bpf_redirect(*queue, 0);
			case DEPART_LATE: return limit_drop(skb, DROP_BANDWIDTH, 1);
			}
		}
	}
	if (mark == MARK_QUEUED)
		skb->mark &= ~MARK_MASK;
	if (conn_packet(skb, 1)) {
		limit_event(skb, DROP_CONNECTIONS, 1);
		return reply_refuse(skb, DROP_CONNECTIONS, 0);
	}
	k->len = skb->len;
	return -1;
}

/* What comes behind it. */
static __noinline int limited_after(struct __sk_buff *skb, int ret)
{
	struct conn_work *k = conn_work();
	struct scratch *w = scratch_get();

	if (!k || !w)
		return ret;
	if (ret == TC_ACT_SHOT || w->answered)
		conn_undo();
	else
		limit_dscp(skb, k->len);
	return ret;
}

/* Takes the place of weir_from_workload. */
SEC("tc")
int weir_from_limited(struct __sk_buff *skb)
{
	int ret;

	if (departures_enabled) /* a pod's own time is none: see forgetTimes of package object */
		skb->tstamp = 0;
	limited_family(skb, LIMITED_FROM);
	ret = limited_before(skb);
	if (ret >= 0)
		return ret;
	return limited_after(skb, workload_sent(skb));
}

/* Takes the place of weir_to_workload. */
SEC("tc")
int weir_to_limited(struct __sk_buff *skb)
{
	int ret;

	if (workload_read(skb))
		return forward_pass(skb); /* it was counted */
	limited_family(skb, LIMITED_TO);
	ret = workload_gets(skb);
	if (ret != TC_ACT_OK)
		return ret;
	if (limit_packet(skb, LIMIT_INGRESS))
		return limit_drop(skb, DROP_PACKET_RATE, 0);
	if (conn_packet(skb, 0)) {
		limit_event(skb, DROP_CONNECTIONS, 0);
		return conn_refuse_got(skb);
	}
	names_comes(skb);
	return ret;
}

/* Takes the place of weir_to_uplink where a host endpoint has a DSCP: what the node's own processes
 * send out of the cluster bears it. */
SEC("tc")
int weir_to_uplink_marked(struct __sk_buff *skb)
{
	limited_family(skb, LIMITED_UPLINK);
	if (!skb->ingress_ifindex && (skb->mark & MARK_MASK) != MARK_DONE && limit_of_host(skb))
		limit_dscp(skb, skb->len);
	return uplink_leaves(skb);
}

#if WEIR_FAMILY == 4
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
