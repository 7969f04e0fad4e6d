/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* abi_events.h: what the programs report: answers, drops, events. A part of abi.h. */
#ifndef WEIR_ABI_EVENTS_H
#define WEIR_ABI_EVENTS_H

#include <linux/types.h>
#include "addr.h"
#include "abi_flow.h"

/* --- answers: map weir_answers, per-CPU array enum answer -> __u64 packets -------------------- */

/* What Weir answered by itself to packets that it dropped. */
enum answer {
	ANSWER_NONE = 0,
	ANSWER_PORT_UNREACHABLE = 1, /* a Service without backends */
	ANSWER_TIME_EXCEEDED = 2, /* TTL */
	ANSWER_TOO_BIG = 3, /* more than the MTU of the way */
	ANSWER_HOST_UNREACHABLE = 4, /* no pod has the address */
	ANSWER_RESET = 5, /* TCP, for one or the other, and to a connection that policy ended */
	ANSWER_LIMITED = 14, /* would have been answered, but for the limit on answers */
	ANSWER_FAILED = 15, /* would have been answered, but could not be rewritten */
	ANSWERS = 16,
};

/* --- drops: map weir_drops, per-CPU hash struct drop_key -> struct drop_value ----------------- */

struct drop_key {
	__u32 reason; /* enum drop_reason, reasons.h */
	__u32 rule; /* number in the table of rules, 0 = none */
};

struct drop_value {
	__u64 packets;
	__u64 bytes;
};

/* --- events: map weir_events, ring buffer of struct event, one for both families -------------- */

enum event_flag {
	/* by policy and limits; `reason` may say that it was dropped for another reason */
	EVENT_ALLOWED = 1,
	EVENT_LOG = 2, /* a rule with action Log matched */
	EVENT_AGAIN = 4, /* a flow that was there is evaluated again */
	EVENT_EGRESS = 8, /* the source is a pod of this node */
	EVENT_INGRESS = 16, /* the destination is */
	EVENT_HOST_IN = 32, /* a host endpoint was asked: where the flow comes into the node */
	EVENT_HOST_OUT = 64, /* where it leaves it */
};

enum event_staged {
	STAGED_EGRESS = 1, /* staged policies select the source, ... */
	STAGED_EGRESS_DENIED = 2, /* ... and would have denied */
	STAGED_INGRESS = 4, /* the destination */
	STAGED_INGRESS_DENIED = 8,
	STAGED_HOST_IN = 16, /* the host endpoint where the flow comes in */
	STAGED_HOST_IN_DENIED = 32,
	STAGED_HOST_OUT = 64, /* where it leaves */
	STAGED_HOST_OUT_DENIED = 128,
};

/* A flow as it was evaluated: in its original direction, after translation of the destination,
 * before that of the source. Addresses of IPv4 are mapped (RFC 4291 section 2.5.5.2). */
struct event {
	__be32 saddr[4];
	__be32 daddr[4];
	__be32 svc_addr[4]; /* the Service's id */
	__be16 svc_port; /* 0 = none */
	__be16 sport;
	__be16 dport; /* of ICMP, type * 256 + code */
	__u8 svc_proto;
	__u8 proto;
	__u8 family; /* 4, 6 */
	__u8 hook; /* enum hook */
	__u8 flags; /* enum event_flag */
	__u8 staged; /* enum event_staged */
	__u32 reason; /* enum drop_reason */
	__u32 rules[2]; /* that decided at the source, at the destination; 0 = none did */
	__u32 staged_rules[2];
	__u32 ifindex; /* of the hook */
	__u32 host_rules[2]; /* of host endpoints, where it comes in, where it leaves */
	__u32 staged_host_rules[2];
};

#endif
