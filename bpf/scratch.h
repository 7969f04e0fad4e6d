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

/* What policy was asked about for the packet at hand. */
enum evaluated {
	EVALUATED_NOTHING = 0,
	EVALUATED_NEW = 1, /* a flow that begins */
	EVALUATED_AGAIN = 2, /* one that was there */
};

/* What the tables said of the source address of the packet at hand, so that they are asked once. */
enum source_known {
	SOURCE_UNKNOWN = 0, /* not asked yet */
	SOURCE_LISTED = 1, /* weir_addrs has it */
	SOURCE_UNLISTED = 2, /* weir_addrs does not have it */
	SOURCE_OUTSIDE = 3, /* nor does weir_routes */
	SOURCE_ROUTED = 4, /* weir_routes alone has it: home and home_flags are what it says */
};

/* Where ports for source NAT are looked for, and in which order: see snat.h. */
struct snat_walk {
	__u32 first; /* port */
	__u32 size; /* of a window */
	__u32 groups; /* 1 = the range is one window */
	__u32 number; /* of the pod's polynomial */
	__u32 random;
	/* the try + 1 whose port a flow of the same sender has that is not established: the one
	 * used least recently; 0 = none */
	__u32 own;
	__u32 oldest; /* when it was used last */
};

/* Whose packets may come with a source address (source.h).
 * In: pkt, and of the flow svc, backend and flags. */
struct source_context {
	ip_addr sender; /* whose address was looked up last */
	ip_addr home; /* out: the node that the packets must come from, */
	__u32 home_flags; /* and how it is reached: enum route_flag */
	/* of pkt.key.saddr: enum source_known. flow_begin sets it, source_check adds to it */
	__u32 known;
};

/* The Service and the backend that a packet is for (flow_balance.h). In: pkt. */
struct balance_context {
	struct client client; /* who asks, for affinity */
	ip_addr via; /* out: the node by which answers go back; none = by this one */
	ip_addr hand_on; /* out: the node that the packet is handed on to; none = nobody */
	__u32 maglev; /* out: enum maglev_use */
	/* out: of the address that the client asked, enum addr_kind + 1; 0 = not known */
	__u32 front_kind;
	__u32 floating; /* out: a floating address leads it to a pod */
};

/* The flow as policy sees it, and what it says (policy.h, host_policy.h): in its original
 * direction, after translation of the destination, before that of the source. */
struct policy_context {
	/* In. */
	ip_addr src;
	ip_addr dst;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 about; /* for the event: enum evaluated */
	/* Out. */
	__u8 log; /* an entry that decided had POLICY_LOG */
	/* EVENT_EGRESS .. EVENT_HOST_OUT: which ends are pods of this node, at which host endpoints
	 * were asked */
	__u8 ends;
	__u32 rule; /* that decided last; 0 = none did */
	__u32 rules[2]; /* that decided at the source, at the destination */
	__u32 staged_rules[2];
	__u32 host_rules[2];
	__u32 staged_host_rules[2];
	__u32 staged; /* event_staged: enum event_staged */
	/* In between. */
	ip_addr peer; /* policy_verdict: the other end */
	/* in: the pattern by whose names the flow was allowed, 0 = none; out: the same */
	__u64 named;
	struct policy_key key; /* policy_by_port */
	struct policy_value value; /* what was found last */
	__u8 own; /* enum host_own */
	__u8 granted; /* in, policy_flow: the egress policy is that of source.sender, not of src */
	__u8 pad[2];
	/* host_denies: what it was asked, where the flow comes in, where it leaves, and before
	 * Services: the place in host_value + 1, 0 = nothing, and the interface of its entry. */
	__u32 host_asked[4];
	__u32 host_at[4];
};

/* The source port by which the answers of a new flow are found (flow_port.h, snat.h). In: the
 * flow. */
struct port_context {
	__u32 change; /* in: enum flow_port; 0 = the port stays */
	__u32 stale; /* out: an ended flow still holds the reply key */
	/* out, flow_reply_free: a flow of the same sender holds it that is not established; when
	 * that was used last */
	__u32 own;
	__u32 own_seen;
	struct snat_walk walk;
};

/* The choice of an egress gateway (egress.h). */
struct egress_context {
	__u32 asked; /* flow_begin: egress_asked */
	__u32 hash; /* in: of the flow */
	__u32 found; /* out: there is one, */
	__u32 most; /* what it weighs, */
	ip_addr best; /* and which */
	struct gateway_key of; /* out, egress_group: the list that counts; */
	struct egress_key to; /* where to */
	struct { /* in, egress_fits: of the open flow */
		ip_addr saddr;
		ip_addr nexthop;
		__u32 action; /* enum flow_action */
	} open;
};

/* What the functions of the slow path have in common about one packet: the stack is too small for
 * it. A stage reads what the stages before it left, and writes its own context alone. */
struct scratch {
	struct pkt pkt;
	struct flow_value fwd; /* the flow that begins, or what is known of the one found */
	struct flow_value rev;
	struct flow_key rkey; /* of rev */
	struct flow_key okey;
	struct source_context source;
	struct balance_context balance;
	struct policy_context policy;
	struct port_context port;
	struct egress_context egress;
	struct frag_info frag; /* frag_look: the fragment at hand */
	struct frag_key fkey;
	ip_addr outer; /* overlay_source: the outer source of what came out of the tunnel */
	struct bpf_tunnel_key tunnel; /* forward_tunnel */
	__u16 outer_head[10]; /* ipip_send: an IPv4 header, */
	struct bpf_redir_neigh outer_hop; /* and where to */
	__u32 hash; /* flow_hash */
	/* datapath_slow: the packet is of a connection that was open, and is denied now */
	__u32 reset;
	__u32 account_was; /* account_state: enum flow_state before the packet at hand */
	__u32 answered; /* reply_refuse: the packet is an answer now */
	__u32 own; /* flow_begin: of the host's own traffic, which the stack routes */
	__u32 call; /* datapath_call: enum slow_call */
};
MAP(weir_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct scratch, 1, 0);

static __always_inline struct scratch *scratch_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_scratch, &zero);
}

#endif
