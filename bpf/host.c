/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* host.c: the uplinks, and weir0, by which host processes reach pods elsewhere. */
#include "datapath.h"
#include "own.h"

SEC("tc")
int weir_from_uplink(struct __sk_buff *skb)
{
	int ret = frame_arrives(skb);

	return ret == FRAME_GOES_ON ? datapath_packet(skb, HOOK_FROM_UPLINK, NULL, 0) : ret;
}

static __always_inline int uplink_leaves(struct __sk_buff *skb)
{
	/* What a VLAN's interface sends met that one's program. */
	if ((skb->mark & MARK_SENT_ON) == MARK_DONE || skb->vlan_present) {
		if ((skb->mark & MARK_MASK) == MARK_DONE || skb->vlan_present)
			return forward_pass(skb);
		datapath_family(skb, HOOK_TO_UPLINK);
		if (own_leaves(skb))
			return forward_pass(skb);
	}
	return datapath_packet(skb, HOOK_TO_UPLINK, NULL, 0);
}

SEC("tc")
int weir_to_uplink(struct __sk_buff *skb)
{
	return uplink_leaves(skb);
}

/* In its place where host endpoints evaluate each packet by itself. What begins in this node is
 * evaluated also when its programs sent it on. */
SEC("tc")
int weir_to_uplink_each(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct pkt local, *p = &local;
	int parsed;

	if (skb->vlan_present)
		return forward_pass(skb);
	datapath_family(skb, HOOK_TO_UPLINK_EACH);
	if ((skb->mark & MARK_MASK) == MARK_OWN && own_leaves(skb))
		return forward_pass(skb);
	if ((skb->mark & MARK_MASK) == MARK_DONE && skb->ingress_ifindex)
		return forward_pass(skb);
	if (!w)
		return TC_ACT_SHOT;
	parsed = untracked_leaves(skb);
	if (w->pkt.untracked == UNTRACKED_DENIED)
		return TC_ACT_SHOT;
	if ((skb->mark & MARK_MASK) == MARK_DONE)
		return forward_pass(skb);
	if (WEIR_FAMILY == 6)
		p = &w->pkt;
	else
		local = w->pkt;
	return datapath_parsed(skb, p, HOOK_TO_UPLINK, parsed, 0);
}
