/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* abi_flow.h: what the programs keep of flows and fragments. A part of abi.h. */
#ifndef WEIR_ABI_FLOW_H
#define WEIR_ABI_FLOW_H

#include <linux/types.h>
#include "addr.h"
#include "abi_tables.h"

/* --- flows: maps weir_flows (established) and weir_flows_new (half open), LRU hash ------------ */

/* By how much the destination port of an ICMP message that nothing answers is beyond its source
 * port. */
#define ICMP_ONE_WAY 0x4000

/* A packet as it is seen where a Weir program meets it. An ICMP query that another message answers
 * (echo, timestamp, information, address mask; code 0): sport = identifier, dport = identifier +
 * the type, modulo 65536; its answer the other way round. Other ICMP: sport = the type * 256 + the
 * code, dport = that + ICMP_ONE_WAY, modulo 65536. No such distance is the opposite of another one,
 * so no message has the key of the answer to another, whatever its identifier. Other protocols
 * without ports: 0. */
struct flow_key {
	ip_addr saddr;
	ip_addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 pad[3];
};

enum flow_action {
	/* leave it to the kernel's stack, which sends it on by the uplink `ifindex`; 0 = keeps it,
	 * or as it likes */
	ACT_PASS = 0,
	ACT_LOCAL = 1, /* to the pod behind `ifindex` */
	ACT_NEIGH = 2, /* out of `ifindex`, to the neighbour `nexthop` */
	/* encapsulated to the node `nexthop`: by VXLAN, or, where `ifindex` is not 0, by IP in IP
	 * out of that uplink, by the gateway that the first bytes of `mac` are */
	ACT_TUNNEL = 3,
	ACT_QUEUE = 4, /* as ACT_LOCAL, by the queue of that interface */
};

enum flow_flag {
	FLOW_REPLY = 1, /* this entry is the way back of the flow */
	FLOW_REWRITE = 2, /* addresses or ports change to saddr .. dport below */
	FLOW_VIA_NODE = 4, /* goes by the node `nexthop` whatever the destination says */
	FLOW_HAND_ON = 8, /* the packet is handed on untranslated to the node of the backend */
	FLOW_DSR = 16, /* answers go straight to the client (information) */
	FLOW_FROM_HOST = 32, /* begun by this node itself */
	FLOW_SNAT = 64, /* the source became the node's */
	/* SYNs of this direction announce no larger segments than fit the tunnel */
	FLOW_CLAMP = 128,
};

enum flow_state {
	STATE_REPLIED = 1, /* both directions were seen */
	STATE_FIN = 2, /* FIN in this direction */
	STATE_CLOSING = 4, /* FIN in both directions, or RST */
	STATE_ANSWERED = 8, /* half open: an answer was seen */
	/* original direction, for a Maglev frontend, ACT_LOCAL or ACT_PASS: `nexthop` is the node
	 * that hands its packets on, 0 = none; when that changes, the way back follows */
	STATE_WATCHED = 16,
	STATE_RESET = 32, /* with STATE_CLOSING: by RST */
	/* both directions are left to the kernel's stack, translated, by the way that the entry
	 * says: SET_CHAINED */
	STATE_STACK = 64,
	/* original direction: it leaves the cluster by an egress gateway, on this node or, with
	 * ACT_TUNNEL, on the node `nexthop` */
	STATE_GATEWAY = 128,
};

/* Where packets of an entry's direction come from. The programs compare each packet with it
 * (source.h). */
enum flow_from {
	/* not known yet: the next packet from outside is checked against the tables */
	FROM_UNKNOWN = 0,
	FROM_ANYWHERE = 1, /* anywhere but from a pod: the source is outside of the cluster */
	FROM_POD = 2, /* the pod's interface, whose index is the first word of `source` */
	FROM_LINK = 3, /* a node on the link: `source` stands for its MAC address */
	FROM_TUNNEL = 4, /* the tunnel: `source` is the outer source address */
	/* an uplink, from whichever MAC address: the sender is behind a router, or publishes
	 * none */
	FROM_ROUTER = 5,
	/* this node's own stack: the first word of `source` is the interface by which it got them,
	 * 0 = none */
	FROM_STACK = 6,
	/* as FROM_POD, with a source that is not the pod's own (weir_sources) */
	FROM_GRANTED = 8 | FROM_POD,
};

/* Do packets come from a pod's interface? */
#define FROM_IS_POD(from) (((from) & 7) == FROM_POD)

/* The order is by use, not by subject. A packet of an open flow reads and writes the fields up to
 * `tcp_end` alone: 64 bytes of IPv4, with the counters of flow records. An element of IPv4's map
 * has 64 bytes before its value and 192 in all, so these are one cache line. What follows only the
 * slow path reads. An entry of another layout is carried over by the names of its fields
 * (migrate.go). */
struct flow_value {
	__u32 epoch; /* of the last evaluation */
	__u32 seen; /* clock units; see struct settings */
	ip_addr saddr; /* the packet after translation */
	ip_addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 action; /* enum flow_action */
	__u8 state; /* enum flow_state */
	__u8 flags; /* enum flow_flag */
	__u8 from; /* enum flow_from */
	ip_addr source; /* see enum flow_from; a MAC address as source_link in source.h makes it */
	__u32 ifindex; /* see enum flow_action */
	ip_addr nexthop; /* STATE_ANSWERED, whose packets need none: dsr_fallback_since */
	__u32 rule; /* that allowed it */
	__u8 mac[6]; /* ACT_LOCAL, ACT_QUEUE: of the pod; ACT_TUNNEL, IP in IP: the gateway */
	__u16 mtu; /* of the way: bytes of an IP packet, host byte order; 0 = not known */
	/* Of flow records (account.h), zero while there are none: packets in the upper 28 bits and
	 * bytes of IP in the lower 36, of this direction, since it was reported last; */
	__u64 count;
	__u32 since; /* when that was, clock units; */
	/* up to where segments of TCP with data came: the highest sequence number after one, host byte
	 * order; 0 = none came */
	__u32 tcp_end;
	struct svc_key svc; /* id of the service, zero when none */
	/* the one chosen; without a Service its first 8 bytes are the number of the pattern of domain
	 * names by which policy allowed the flow, low word first, 0 = by none: see flow_named */
	struct backend backend;
	/* Of flow records, too. */
	struct svc_key asked; /* the frontend that the sending socket asked for by connect() */
	__u32 started[2]; /* of the flow: monotonic clock, ns, low word first */
	__u32 rules[2]; /* that decided at the source, at the destination; 0 = none did */
	__u32 staged_rules[2];
	/* Of the handshake of TCP, from SYN to the client's ACK, microseconds: account_rtt; 0 = not
	 * known. */
	__u32 rtt;
	__u32 retransmitted; /* of count: segments that bring nothing beyond tcp_end */
	__u8 flags_seen; /* flags of TCP, and what stands for them of SCTP, of this direction; */
	__u8 staged; /* enum event_staged, */
	__u8 ends; /* and EVENT_EGRESS .. EVENT_HOST_OUT of the last evaluation */
	__u8 account; /* enum account_flag */
	__u32 room; /* so that elements fill whole cache lines */
};

enum account_flag {
	ACCOUNT_ENDED = 1, /* both ends closed it: what the next packet leaves is reported */
	/* original direction: COUNT_FLOWS_BEGUN has it; and COUNT_FLOWS_OVER or _EXPIRED, too */
	ACCOUNT_BEGUN = 2,
	ACCOUNT_OVER = 4,
	ACCOUNT_REPORTED = 8, /* at least once */
};

/* --- flow records: map weir_records, ring buffer of struct flow_record, of both families --------
 * What one direction of a flow carried since it was reported last. */
enum record_end {
	RECORD_GOES_ON = 0, /* the interval is over */
	RECORD_CLOSED = 1, /* by both ends, or reset by one */
	RECORD_REPLACED = 2, /* the entry went to a newer flow */
	RECORD_FIRST = 128, /* besides: the first of its direction */
};

struct flow_record {
	struct flow_key_wide {
		__be32 saddr[4]; /* addresses of IPv4 are mapped (RFC 4291 section 2.5.5.2) */
		__be32 daddr[4];
		__be16 sport;
		__be16 dport;
	} seen, sent; /* as it meets the hook, and as it goes on: of this direction */
	__be32 svc_addr[4]; /* the Service's id */
	__be32 asked_addr[4]; /* see flow_value.asked */
	/* without a Service its first 8 bytes are as those of flow_value.backend */
	__be32 backend_addr[4];
	__be32 nexthop[4];
	__be16 svc_port; /* 0 = none */
	__be16 asked_port;
	__be16 backend_port;
	__u8 svc_proto;
	__u8 proto;
	__u8 family; /* 4, 6 */
	__u8 end; /* enum record_end */
	__u8 action; /* enum flow_action */
	__u8 state; /* enum flow_state */
	__u8 flags; /* enum flow_flag */
	__u8 flags_seen;
	__u8 staged; /* enum event_staged */
	__u8 ends;
	__u32 ifindex;
	__u32 rules[2];
	__u32 staged_rules[2];
	__u32 started[2]; /* monotonic clock, ns, low word first */
	__u32 at[2]; /* when this was written, the same */
	__u32 count[2]; /* as flow_value.count, low word first */
	__u32 rtt; /* as flow_value.rtt */
	__u32 retransmitted; /* since the last record, as flow_value.retransmitted */
};

/* --- fragments ----------------------------------------------------------------------------------
 * map weir_frags: LRU hash struct frag_key -> struct frag_value; what the first fragment of a
 * packet said.
 * map weir_frag_slots: array of FRAG_RINGS * FRAG_SLOTS struct frag_slot; fragments that came
 * before their first.
 * map weir_frag_rings: array of FRAG_RINGS struct frag_ring. */
struct frag_key {
	ip_addr saddr;
	ip_addr daddr;
	__u32 id; /* identification, as it lies in the header */
	__u32 iif; /* of packets from a pod: its interface */
	__u8 proto; /* IPv6: 0 */
	__u8 hook; /* enum hook */
	__u8 pad[2];
};

enum frag_flag {
	FRAG_PASS = 1, /* the packet is left to the stack, without a flow */
};

struct frag_value {
	__be16 sport; /* as in struct flow_key */
	__be16 dport;
	__u16 end; /* of the first fragment, bytes */
	__u8 flags; /* enum frag_flag */
	__u8 proto;
	__u32 seen; /* clock units */
};

#define FRAG_RINGS 32
#define FRAG_SLOTS 64
#define FRAG_PART 2048 /* bytes of a frame in one slot */
#define FRAG_PARTS 5 /* slots that a frame may take: jumbo frames of 9,000 bytes fit */

enum frag_state {
	FRAG_FREE = 0,
	FRAG_BUSY = 1,
	FRAG_HOLDS = 2
};

struct frag_slot {
	struct bpf_spin_lock lock; /* of state; who made it FRAG_BUSY owns the rest */
	__u32 state; /* enum frag_state */
	__u32 seen;
	__u32 serial; /* the same in all slots of a frame */
	struct frag_key key;
	__u16 len; /* bytes of the frame */
	__u16 part; /* of the frame, from 0 on */
	__u8 data[FRAG_PART];
};

struct frag_ring {
	struct bpf_spin_lock lock;
	__u32 next; /* slot to be written next, counted without end */
	__u32 seen; /* when something was kept last */
};

#endif
