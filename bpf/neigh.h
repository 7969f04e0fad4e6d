/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* neigh.h: answers to neighbours who ask for an address that this node announces (a load
 * balancer's, which no interface has). Made here rather than in user space, so that they are right
 * while no agent runs. */
#ifndef WEIR_NEIGH_H
#define WEIR_NEIGH_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "maps.h"
#include "parse.h"
#include "forward.h"

static __always_inline struct link_key *neigh_announced(const ip_addr *a, __u32 ifindex)
{
	if (!bpf_map_lookup_elem(&weir_announced, a))
		return NULL;
	return bpf_map_lookup_elem(&weir_uplinks, &ifindex);
}

static __always_inline int neigh_send(struct __sk_buff *skb, __u32 ifindex)
{
	if (trace_enabled) {
		skb->cb[0] = 0x200; /* an answer to what was not dropped */
		skb->cb[1] = ifindex;
		skb->cb[2] = 0;
		skb->cb[3] = 0;
	}
	forward_mark(skb, MARK_DONE);
	return bpf_redirect(ifindex, 0);
}

/* int neigh_answer(struct __sk_buff *skb): turns a question for one of our addresses into its
 * answer, and sends that back. Everything else is left to the kernel. An answer is hardly longer
 * than its question and goes to the same link, so nobody gains by asking. */
#if WEIR_FAMILY == 6
#include "neigh6.h"
#else
#include "neigh4.h"
#endif

#endif
