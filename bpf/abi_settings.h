/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* abi_settings.h: the settings of a node, and the small maps about sockets, DSR and quotas. A part
 * of abi.h. */
#ifndef WEIR_ABI_SETTINGS_H
#define WEIR_ABI_SETTINGS_H

#include <linux/types.h>
#include "addr.h"
#include "abi_tables.h"

/* --- settings: map weir_settings, array of one ------------------------------------------------ */

enum settings_flag {
	SET_DSR = 1, /* bpfExternalServiceMode: DSR */
	SET_CTLB_TCP = 2, /* bpfConnectTimeLoadBalancing: TCP or Enabled */
	SET_CTLB_UDP = 4, /* bpfConnectTimeLoadBalancing: Enabled */
	/* bpfHostNetworkedNATWithoutCTLB: what host processes send is balanced at to_uplink too */
	SET_HOST_NAT = 16,
	/* there are host endpoints: what the node's own processes exchange has flows */
	SET_HOSTS = 256,
	SET_TO_HOST_DROP = 512, /* defaultEndpointToHostAction DROP */
	SET_TO_HOST_RETURN = 1024, /* RETURN: the host endpoint of all interfaces decides */
	SET_UNTRACKED = 2048, /* a host endpoint has a set of HOST_UNTRACKED_* */
	SET_PORTS = 8, /* weir_ports is kept: a bit that is not set rules the port out */
	SET_EVENTS = 32, /* somebody listens: each evaluated flow is an event */
	/* another data plane has what has no flow here: it passes to the stack, none begins */
	SET_HAND_OVER = 128,
	/* what is translated and goes to the stack bears MARK_SEEN: connection tracking has the
	 * same connection translated, too */
	SET_APART = 4096,
	SET_MARKS = 8192, /* the programs heed SET_APART; nothing to them */
	SET_VXLAN_FROM_PODS = 16384, /* allowVXLANPacketsFromWorkloads */
	SET_RPF_STRICT = 65536, /* bpfEnforceRPF Strict */
	SET_IPIP_FROM_PODS = 32768, /* allowIPIPPacketsFromWorkloads */
	SET_IPIP = 131072, /* what nodes send in IP in IP is taken */
	SET_IPIP_NODES = 262144, /* nodes hand on by it what they would by VXLAN */
	/* another CNI plugin's network: what pods send out of the node, but to pods, is left to the
	 * stack, for that network's routing rules and source NAT */
	SET_CHAINED = 524288,
	SET_GATEWAYS = 1048576, /* weir_gateways may have entries, or pods of this node have none */
	SET_FLOATING = 2097152, /* weir_floating may have entries */
	/* user space is writing a change, and has not moved the epoch on yet; nothing to the
	 * programs */
	SET_CHANGING = 64,
};

/* map weir_ports: array of PORT_WORDS struct port_bits; bits[port & 7] of entry port >> 3 (host
 * byte order) says what the port is used for anywhere, so that traffic which is not ours is
 * reported by one cheap look. */
#define PORT_WORDS 8192

enum port_bit {
	PORT_TCP_FRONTEND = 1, /* some frontend has it */
	PORT_UDP_FRONTEND = 2,
	PORT_TCP_HOST = 4, /* some backend on this node's own addresses has it */
	PORT_UDP_HOST = 8,
	PORT_SCTP_FRONTEND = 16,
	PORT_SCTP_HOST = 64,
};

/* How far the bits of a protocol lie above those of TCP. */
enum port_shift {
	PORT_UDP = 1,
	PORT_SCTP = 4
};

struct port_bits {
	__u8 bits[8];
};

enum timeout { /* index into settings.timeouts, clock units */
	TIMEOUT_TCP_SYN = 0,
	TIMEOUT_TCP_EST = 1,
	TIMEOUT_TCP_CLOSING = 2,
	TIMEOUT_UDP = 3,
	TIMEOUT_ICMP = 4,
	TIMEOUT_OTHER = 5,
	TIMEOUT_FRAG = 6, /* 0 = fragments are not carried */
	TIMEOUT_DSR_TRIES = 7, /* weir_dsr_tries: since the last answer */
	TIMEOUT_DSR_RETRY = 8, /* weir_dsr_fallen */
	TIMEOUT_TCP_FINS = 9, /* closed from both sides; after a reset TIMEOUT_TCP_CLOSING */
	TIMEOUTS = 10,
};

/* Of a UDP flow that nobody has answered the time-out is shifted by this: it has a quarter. */
#define UNANSWERED_SHIFT 2

struct settings {
	__u32 epoch;
	__u32 flags; /* enum settings_flag */
	ip_addr node; /* this node's primary address; source of translated traffic */
	__u32 tunnel_ifindex; /* VXLAN device, 0 = none */
	__u32 vni;
	__u16 snat_min; /* host byte order, inclusive */
	__u16 snat_max;
	__u64 host_netns; /* netns cookie of the node */
	__u32 timeouts[TIMEOUTS]; /* in clock units of 256 jiffies */
	__u32 per_second; /* clock units in a thousand seconds */
	__u16 tunnel_mtu; /* bytes of an IP packet that fit inside VXLAN; 0 = not known */
	__u16 ipip_mtu; /* the same of IP in IP */
	__u32 host_ifindex; /* of weir0 */
	__be16 tunnel_port; /* UDP */
	/* units of 16 jiffies after an answer; a SYN that is repeated later says that it was
	 * lost */
	__u16 dsr_patience;
	__u32 flows_most; /* entries of weir_flows above which pods are held to their share */
	__u32 flows_each; /* that share, entries */
};

/* map weir_links: hash struct link_key -> ip_addr; the node whose uplink has that MAC address */
struct link_key {
	__u8 mac[6];
	__u8 pad[2];
};

/* map weir_dsr_optout: LPM struct prefix_key -> __u8; clients whose answers never go straight to
 * them */

/* map weir_dsr_tries: LRU hash ip_addr -> struct dsr_tries; clients that were answered straight,
 * and have not been heard since. map weir_dsr_fallen: LRU hash ip_addr -> struct dsr_fallen;
 * clients for which that does not work. */
struct dsr_tries {
	__u32 seen; /* the last answer, clock units */
	__u16 since; /* the first, units of 16 jiffies */
	__u16 count; /* handshakes */
};

struct dsr_fallen {
	__u32 since; /* clock units */
};

/* map weir_counts: per-CPU array enum count -> __u64 */
enum count {
	COUNT_DSR_FALLEN = 0, /* times that a client was put into weir_dsr_fallen */
	COUNT_EVENTS_LOST = 1, /* events that found no room in weir_events */
	COUNT_EVENTS_LIMITED = 2, /* events beyond the rate of a CPU */
	/* packets of which XDP did not say what host endpoints say of each by itself, so that
	 * from_uplink had to ask */
	COUNT_UNTRACKED = 3,
	COUNT_RECORDS_LOST = 4, /* records of flows that ended and found no room in weir_records */
	COUNT_FLOWS_BEGUN = 5, /* that are accounted for */
	COUNT_FLOWS_OVER = 6, /* of these: that ended, or whose entry went to another flow, */
	COUNT_FLOWS_EXPIRED = 7, /* or that user space removed, which alone writes this */
	COUNTS = 8,
};

/* map weir_announced: hash ip_addr -> __u8; addresses that this node answers neighbours for
 * map weir_uplinks: hash __u32 interface index -> struct link_key; the MAC address that it answers
 * with there */

/* map weir_shares: hash ip_addr -> struct share; entries of weir_flows whose flows a pod began; of
 * no address: of all flows */
struct share {
	__u32 counted; /* by user space, at its last round */
	__u32 begun; /* since */
};

/* map weir_spent: LRU hash ip_addr -> struct spent; pods that found no port for source NAT among
 * those that they may have */
struct spent {
	/* flows whose port one that is not established lost to a newer one of the same pod */
	__u64 replaced;
	__u64 refused; /* packets that were dropped */
};

/* map weir_clients: hash __u64 netns cookie -> ip_addr; whose sockets live there */

/* map weir_sockets: LRU hash struct sock_key -> struct sock_value; what a UDP socket asked for, by
 * what it got; and, with SOCK_ASKED in proto, what it got by what it asked for. Of TCP it holds
 * what versions without weir_streams wrote. */
#define SOCK_ASKED 256
struct sock_key {
	__u32 cookie[2]; /* low word first */
	ip_addr addr;
	__be16 port;
	__u16 proto;
};

struct sock_value {
	ip_addr addr;
	__be16 port;
	__u16 pad;
	struct svc_key svc;
};

/* map weir_streams: array, low bits of the socket's cookie -> struct sock_stream; what a TCP socket
 * asked for and what it got. A socket that comes takes the place of an older one: nothing has to be
 * removed, and to write costs a fraction of a hash table's entry. */
#define STREAM_SLOTS 65536
struct sock_stream {
	struct bpf_spin_lock lock;
	__u32 cookie[2]; /* low word first */
	ip_addr got;
	ip_addr asked;
	__be16 got_port;
	__be16 asked_port;
};

#endif
