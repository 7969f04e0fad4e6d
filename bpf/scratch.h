/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* scratch.h: what the slow path works on. It is too big for the stack, and global functions, which
 * the verifier looks at once each rather than once a caller, take no pointers to it. Programs on
 * one CPU do not interrupt each other: tcx runs with bottom halves off. Socket programs do not use
 * it. */
#ifndef WEIR_SCRATCH_H
#define WEIR_SCRATCH_H

#include "maps.h"
#include "parse.h"

/* What flow_balance found out of a frontend with a Maglev table. */
enum maglev_use {
	MAGLEV_USED = 1,
	MAGLEV_WATCH = 2, /* any node may be the one that is asked: see STATE_WATCHED */
};

/* What was judged for the packet at hand. */
enum judged {
	JUDGED_NOTHING = 0,
	JUDGED_NEW = 1,   /* a flow that begins */
	JUDGED_AGAIN = 2, /* one that was there */
};

/* What the tables said of the source address of the packet at hand, so that they are asked once. */
enum source_known {
	SOURCE_UNKNOWN = 0, /* not asked yet */
	SOURCE_LISTED = 1,  /* weir_addrs has it */
	SOURCE_UNLISTED = 2, /* weir_addrs does not have it */
	SOURCE_OUTSIDE = 3, /* nor does weir_routes */
	SOURCE_ROUTED = 4,  /* weir_routes alone has it: home and home_flags are what it says */
};

/* Where ports for source NAT are looked for, and in which order: see snat.h. */
struct snat_walk {
	__u32 first;  /* port */
	__u32 size;   /* of a window */
	__u32 groups; /* 1 = the range is one window */
	__u32 number; /* of the pod's polynomial */
	__u32 random;
	__u32 own;    /* the try + 1 whose port a flow of the same sender has that is not established: the one used least recently; 0 = none */
	__u32 oldest; /* when it was used last */
};

struct scratch {
	struct pkt pkt;
	struct flow_value fwd; /* the flow that begins, or what is known of the one found */
	struct flow_value rev;
	struct flow_key rkey; /* of rev */
	struct flow_key okey;
	ip_addr via;     /* flow_balance: the node by which answers go back */
	ip_addr hand_on; /* flow_balance: the node that the packet is handed on to */
	ip_addr sender;  /* source_owner: who must have sent it */
	ip_addr home;    /* source_owner: the node that packets must come from */
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
		__be16 dport; /* as policy looks at it */
		__u8 proto;
		__u8 log;   /* a verdict had POLICY_LOG */
		__u8 ends;  /* EVENT_EGRESS .. EVENT_HOST_OUT: which are pods of this node, where host endpoints judged */
		__u8 about; /* enum judged */
		__u8 own;   /* enum host_own */
		__u8 pad[3];
		__u32 staged; /* event_staged: enum event_staged */
		__u32 rules[2]; /* that judged at the source, at the destination */
		__u32 staged_rules[2];
		__u32 host_rules[2];
		__u32 staged_host_rules[2];
		/* host_denies: what it was asked, where the flow comes in, where it leaves, and before
		 * Services: the place in host_value + 1, 0 = nothing, and the interface of its entry. */
		__u32 host_asked[4];
		__u32 host_at[4];
	} judged;
	struct frag_info frag; /* frag_look: the fragment at hand */
	struct frag_key fkey;
	__u32 hash;      /* flow_hash */
	__u32 maglev;    /* flow_balance: enum maglev_use */
	__u32 rule;      /* policy_flow: that decided */
	__u32 reset;     /* handle_slow: the packet is of a connection that was open, and is denied now */
	__u32 answered;  /* reply_refuse: the packet is an answer now */
	__u32 own;       /* flow_begin: of the host's own traffic, which the stack routes */
	__u32 port;      /* flow_begin: enum flow_port */
	__u32 home_flags; /* source_owner: enum route_flag */
	__u32 source_known; /* flow_begin, source_owner: of pkt.key.saddr, enum source_known */
	__u32 front_kind; /* flow_balance: of the address that a client asked, enum addr_kind + 1; 0 = not known */
	__u32 stale;     /* flow_pick_port: an ended flow still holds the reply key */
	__u32 own_port;  /* flow_reply_free: a flow of the same sender holds it that is not established, */
	__u32 own_seen;  /* and this is when it was used last */
	struct snat_walk walk; /* flow_pick_port */
};
MAP(weir_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct scratch, 1, 0);

static __always_inline struct scratch *scratch_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_scratch, &zero);
}

#endif
