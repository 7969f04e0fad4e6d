/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* host.c: the uplinks, and weir0, by which host processes reach pods elsewhere. */
#include "handle.h"

SEC("tc")
int weir_from_uplink(struct __sk_buff *skb)
{
	return handle_packet(skb, HOOK_FROM_UPLINK, NULL);
}

SEC("tc")
int weir_to_uplink(struct __sk_buff *skb)
{
	if ((skb->mark & MARK_MASK) == MARK_DONE)
		return forward_pass(skb);
	return handle_packet(skb, HOOK_TO_UPLINK, NULL);
}
