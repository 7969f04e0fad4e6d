/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* scratch.h: what the slow path works on. It is too big for the stack, and global functions, which the verifier
 * looks at once each rather than once a caller, take no pointers to it. Programs on one CPU do not
 * interrupt each other: tcx runs with bottom halves off. Socket programs do not use it. */
#ifndef WEIR_SCRATCH_H
#define WEIR_SCRATCH_H

#include "maps.h"
#include "parse.h"

/* What flow_balance found out of a frontend with a Maglev table. */
enum maglev_use {
	MAGLEV_USED = 1,
	MAGLEV_WATCH = 2, /* any node may be the one that is asked: see STATE_WATCHED */
};

struct scratch {
	struct pkt pkt;
	struct flow_value fwd; /* the flow that begins, or what is known of the one found */
	struct flow_value rev;
	struct flow_key rkey; /* of rev */
	struct flow_key okey;
	ip_addr via;     /* flow_balance: the node by which answers go back */
	ip_addr hand_on; /* flow_balance: the node that the packet is handed on to */
	ip_addr outer; /* overlay_source: where a packet came from that was in the tunnel */
	struct client client; /* flow_balance: who asks */
	struct bpf_tunnel_key tunnel; /* forward_tunnel */
	struct {         /* policy_flow: the flow that it judges */
		ip_addr src;
		ip_addr dst;
		ip_addr peer; /* policy_verdict: the other end */
		struct policy_key key; /* policy_by_port */
		struct policy_value value; /* what was found last */
		__be16 sport;
		__u16 pad;
	} judged;
	struct frag_info frag; /* frag_look: the fragment at hand */
	struct frag_key fkey;
	ip_addr frontend; /* flow_hash */
	__u32 hash;      /* flow_hash */
	__u32 maglev;    /* flow_balance: enum maglev_use */
	__u32 rule;      /* policy_flow: that decided */
	__u32 answered;  /* reply_refuse: the packet is an answer now */
	__u32 stale;     /* flow_pick_port: an ended flow still holds the reply key */
};
MAP(weir_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct scratch, 1, 0);

static __always_inline struct scratch *scratch_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_scratch, &zero);
}

#endif
