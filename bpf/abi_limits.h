/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* abi_limits.h: how much pods may send and get. Bytes wait in queues; which part programs have in
 * that is struct departure. A part of abi.h. */
#ifndef WEIR_ABI_LIMITS_H
#define WEIR_ABI_LIMITS_H

#include <linux/types.h>
#include <linux/bpf.h>

/* map weir_limits: hash struct limit_key -> struct limit; what user space wants. map
 * weir_limit_states: hash struct limit_key -> struct limit_state; what packets leave behind, made
 * and removed by user space together with the former. */
enum limit_direction {
	LIMIT_INGRESS = 0, /* to the pod */
	LIMIT_EGRESS = 1
};

struct limit_key {
	/* the host side of the pod's interface; of a DSCP alone also an uplink, by which the node's
	 * own processes send */
	__u32 ifindex;
	__u32 direction; /* enum limit_direction */
};

struct limit {
	__u64 interval; /* ns between two packets in the long run; 0 = any number */
	__u64 burst; /* ns: so much of the rate may be used at once */
	__u32 dscp; /* LIMIT_EGRESS, plus 1: of packets that leave the cluster; 0 = theirs */
	__u32 most; /* connections of TCP that may be open; 0 = any number */
	__u32 settled; /* those of limit_state.open that user space found to be over */
	__u32 pad;
};

struct limit_state {
	struct bpf_spin_lock lock;
	__u32 open; /* connections that began, less those that packets ended */
	__u64 used; /* monotonic clock, ns: until when the rate is used up */
};

/* map weir_conns: hash struct conn_key -> struct conn; connections of pods whose connections are
 * counted. map weir_conn_work: what programs have of one packet's. */
struct conn_key {
	__u32 ifindex; /* the host side of the pod's interface */
	__be16 port; /* the pod's, */
	__be16 peer_port;
	__u32 pod[4]; /* as the pod sees both ends; of IPv4 mapped */
	__u32 peer[4];
};

struct conn {
	__u64 begun; /* monotonic clock, ns */
	__u8 direction; /* enum limit_direction */
	__u8 ended; /* by a RST: it counts again where it goes on */
	__u8 fin_sent; /* the pod has closed it, */
	__u8 fin_got; /* and its peer */
	__u32 pad;
};

/* map weir_departures: hash ifindex -> struct departure; pods whose bytes wait by departure times:
 * user space writes all but the lock and `used`, which begin anew with another limit. */
enum departure_flag {
	DEPARTURE_LINKS = 1, /* all uplinks have fq: what leaves the node may wait there */
};

struct departure {
	struct bpf_spin_lock lock;
	__u32 flags; /* enum departure_flag */
	__u64 used; /* monotonic clock, ns: until when the rate is used up */
	__u64 rate; /* bytes a second, with Ethernet headers */
	__u64 burst; /* ns: so much of the rate may be used at once */
	__u64 wait; /* ns: what would depart later is dropped */
};

/* Slots of map weir_limited_calls: IPv6's programs at the interfaces of such pods, and at uplinks
 * whose host endpoints have a DSCP. */
enum limited_slot {
	LIMITED_FROM = 0,
	LIMITED_TO = 1,
	LIMITED_UPLINK = 2, /* weir_to_uplink_marked */
};

#endif
