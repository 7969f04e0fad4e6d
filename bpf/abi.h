/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* abi.h: what crosses the boundary between the programs and user space: map keys, map values, and
 * the numbers in them. The Go types are generated from these (bpf2go). Addresses and ports are in
 * network byte order unless a comment says otherwise. Raise WEIR_ABI when a layout changes: maps
 * are pinned below a folder of that number. */
#ifndef WEIR_ABI_H
#define WEIR_ABI_H

#include <linux/types.h>
#include "addr.h"

#define WEIR_ABI 4

/* Bits of skb->mark that Weir uses; the rest belong to others. */
#define MARK_MASK 0x0ff00000u
#define MARK_DONE 0x0ba00000u /* judged and routed by a Weir program on this node */
#define MARK_AGAIN 0x0bb00000u /* a fragment that was kept, on its second way in */
#define MARK_OWN 0x0be00000u  /* of a socket of the agent's own, towards the API server */
#define MARK_SEEN 0x0bc00000u /* translated by a Weir program for a process of this node, while SET_APART says so */

/* --- addresses: map weir_addrs, hash ip_addr -> struct addr_value ----------------------------- */

enum addr_kind {
	ADDR_NONE = 0,
	ADDR_HOST = 1,     /* an address of this node */
	ADDR_ENDPOINT = 2, /* a pod on this node */
	ADDR_NODE = 3,     /* an address of another node */
	ADDR_POD = 4,      /* a pod elsewhere whose address lies outside its node's blocks */
};

enum addr_flag {
	ADDR_NAT_OUTGOING = 1, /* endpoint: traffic that leaves the pools gets the node's address */
	ADDR_SAME_LINK = 2,    /* node, pod: reached by MAC address, without a router between */
	ADDR_TUNNEL = 4,       /* pod: its pool asks for VXLAN towards that node */
	ADDR_PRIMARY = 8,      /* host: the node's own address (the one other nodes know) */
	ADDR_NODE_PORTS = 16,  /* host, node: node ports answer here */
	ADDR_KEEP_SOURCE = 32, /* node: NAT_OUTGOING does not apply on the way there */
	ADDR_STAGED = 64,      /* endpoint: staged policies select it; see weir_staged */
};

struct addr_value {
	__u8 kind;  /* enum addr_kind */
	__u8 flags; /* enum addr_flag */
	__u8 mac[6];  /* endpoint: of the pod's interface; node: of its uplink, zero when unknown */
	__u32 ifindex; /* endpoint: the host side of its interface */
	ip_addr node;  /* node: its primary address; pod: that of its node */
	__u64 ingress_set; /* endpoint: policy sets; 0 = not isolated in that direction */
	__u64 egress_set;
	__u32 ingress_rule; /* endpoint: the rule that decides when no entry of the set matches */
	__u32 egress_rule;
};

/* --- prefixes: map weir_routes, LPM struct prefix_key -> struct route_value ------------------- */

struct prefix_key {
	__u32 len; /* bits */
	ip_addr addr;
};

enum route_flag {
	ROUTE_POOL = 1,      /* inside an IP pool: never source-translated on the way there */
	ROUTE_REMOTE = 2,    /* lives on the node `node` */
	ROUTE_LOCAL = 4,     /* a block of this node: an address without an endpoint is dropped */
	ROUTE_TUNNEL = 8,    /* encapsulated towards that node */
	ROUTE_SAME_LINK = 16 /* that node is reached by MAC address */
};

struct route_value {
	ip_addr node;
	__u32 flags; /* enum route_flag */
};

/* --- services --------------------------------------------------------------------------------- */

enum svc_scope { SCOPE_ALL = 0, SCOPE_LOCAL = 1 };

/* A frontend (map weir_services), or the name of a service's backend list. addr 0 = every address
 * of every node (node ports). The id of a service port is its canonical frontend: cluster IP,
 * port. */
struct svc_key {
	ip_addr addr;
	__be16 port;
	__u8 proto; /* IPPROTO_TCP, _UDP, _SCTP */
	__u8 scope; /* in frontends 0; in backend lists enum svc_scope */
};

enum svc_flag {
	SVC_LOCAL_FRONTEND = 1, /* frontend exists on this node only (host ports) */
	SVC_EXTERNAL = 2,       /* for clients outside: node port, load balancer's address, external IP */
	SVC_HOST_BACKEND = 16,  /* a backend is one of this node's own addresses */
	SVC_RESTRICTED = 8,     /* for the clients in weir_ranges alone */
	SVC_LOCAL = 4,          /* traffic policy Local, external or internal as the frontend is */
	SVC_MODE_TUNNEL = 256,  /* answers to outside clients go back by the node that was asked, whatever SET_DSR says */
	SVC_MODE_DSR = 512,     /* they go straight to the client */
	SVC_MAGLEV = 1024,      /* new flows choose by consistent hashing, where `table` has slots */
};

struct svc_value {
	struct svc_key id;
	__u32 count;    /* backends in the list of SCOPE_ALL: slots 0 .. count-1 */
	__u32 local;    /* the same for SCOPE_LOCAL: backends on this node */
	__u32 flags;    /* enum svc_flag */
	__u32 affinity; /* seconds that a client stays with its backend; 0 = no affinity */
	__u32 rule;     /* number of this service in the table of rules */
	__u32 table;    /* slots of its Maglev table; 0 = new flows choose at random */
};

/* map weir_ranges: LPM struct range_key -> __u8; whom the RESTRICTED frontends of a service port
 * are for */
struct range_key {
	__u32 len; /* bits of id, all, and of addr */
	struct svc_key id;
	ip_addr addr;
};

/* map weir_backends: hash struct backend_key -> struct backend */
struct backend_key {
	struct svc_key svc; /* the id, with its scope */
	__u32 slot;
};

struct backend {
	ip_addr addr;
	__be16 port;
	__u16 flags;
};

/* map weir_maglev: hash of maps struct svc_key (an id) -> array of struct backend, whose length is
 * svc_value.table. In its slots `flags` is enum slot_flag. */
enum slot_flag {
	SLOT_LOCAL = 1, /* the backend is in the list of SCOPE_LOCAL */
};

/* map weir_live: hash struct live_key -> __u8, enum live_list; the backends that are not gone of a
 * service port that is UDP or SCTP or has affinity. A UDP or SCTP flow to one that is not there
 * chooses again; a client is led again to one that is in the list to choose from. */
enum live_list { /* bit n: in the list of scope n */
	LIVE_ALL = 1,
	LIVE_LOCAL = 2,
};

struct live_key {
	struct svc_key svc; /* scope 0 */
	struct backend backend; /* flags 0 */
};

/* Who asks for a service: an address, or, where none is known, the netns cookie of a socket (low
 * word first). */
struct client {
	ip_addr addr;
	__u32 netns[2];
};

/* map weir_affinity: LRU hash struct affinity_key -> struct affinity_value */
struct affinity_key {
	struct svc_key svc;
	struct client client;
};

struct affinity_value {
	struct backend backend;
	__u32 seen; /* struct settings: clock units */
	__u32 pad;
};

/* --- policy -------------------------------------------------------------------------------------
 * map weir_peers: hash ip_addr -> __u64 class; map weir_peer_cidrs: LPM prefix_key -> __u64 class.
 * Look-up 1: the exact address, then the longest prefix, else class 0.
 * map weir_policy: hash struct policy_key -> struct policy_value. Look-up 2: the head (head = 1,
 * proto, port, len 0) of (set, class); where there is none, the head of (set, 0); where there is
 * none, the endpoint's default rule, which denies. A head whose `protos` has the packet's protocol
 * sends on to the entries of its (set, class) by port prefix, longest first, of the lengths in
 * `lens`; where none matches, the head's own verdict counts. The port is the destination's, of ICMP
 * the type * 256 + the code; protocols of POLICY_OTHER have entries of len 0 alone. Where what was
 * found has `sources`, the source port decides: the head of (set, class, sources), and in the same
 * way its entries, with proto 0. */
struct policy_key {
	__u64 set;
	__u64 peer;
	__u16 port; /* host byte order, low bits zero beyond len */
	__u8 proto;
	__u8 len; /* 0 .. 16 bits of the port that count */
	__u8 head;
	__u8 pad;
	__u16 sources; /* 0, or the number of a table of source ports of (set, class) */
};

enum policy_proto { POLICY_TCP = 1, POLICY_UDP = 2, POLICY_SCTP = 4, POLICY_ICMP = 8, POLICY_OTHER = 16 };

enum policy_verdict {
	POLICY_ALLOW = 1,
	POLICY_LOG = 2, /* a rule with action Log matched on the way to this verdict */
	POLICY_UNDECIDED = 4, /* beside ALLOW, in sets of HOST_UNTRACKED_*: no rule is about it, it goes on to be tracked */
};

struct policy_value {
	__u32 rule;
	__u32 lens;  /* head: bit n set = entries with len n exist */
	__u8 verdict; /* enum policy_verdict */
	__u8 protos; /* head: enum policy_proto */
	__u16 sources; /* not 0: the source port decides, by this table */
};

/* map weir_staged: hash ip_addr -> struct staged_value; of an endpoint with ADDR_STAGED, what would
 * bind it if its staged policies were in force. Looked at only for events. */
struct staged_value {
	__u64 ingress_set; /* 0 = not isolated in that direction */
	__u64 egress_set;
	__u32 ingress_rule; /* where no entry of the set matches */
	__u32 egress_rule;
};

/* --- host endpoints: map weir_hosts, hash struct host_key -> struct host_value ---------------- */

struct host_key {
	__u32 ifindex; /* 0 = every interface without an entry of its own */
	__u32 family;  /* 4 or 6 */
};

enum host_set { /* odd ones are of egress */
	HOST_INGRESS = 0, /* of the node's own processes */
	HOST_EGRESS = 1,
	HOST_FORWARD_INGRESS = 2, /* of what the node hands on */
	HOST_FORWARD_EGRESS = 3,
	HOST_PRE_DNAT = 4, /* of what comes in, before Services */
	HOST_UNTRACKED_INGRESS = 6, /* of each packet, before everything else */
	HOST_UNTRACKED_EGRESS = 7,
	HOST_SETS = 8,
};

struct host_side {
	__u64 set;  /* 0 = nothing is judged */
	__u32 rule; /* decides where no entry of the set matches */
	__u32 flags; /* enum host_flag */
};

enum host_flag {
	HOST_STAGED = 1, /* staged policies would judge differently here, or something did: see weir_hosts_staged */
};

/* map weir_hosts_staged: hash struct host_key -> struct host_value; what would judge if the staged
 * policies were in force. Looked at only for events. */
struct host_value {
	struct host_side sides[HOST_SETS];
};

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
	ACT_PASS = 0,   /* leave it to the kernel's stack, which sends it on by the uplink `ifindex`; 0 = keeps it, or as it likes */
	ACT_LOCAL = 1,  /* to the pod behind `ifindex` */
	ACT_NEIGH = 2,  /* out of `ifindex`, to the neighbour `nexthop` */
	ACT_TUNNEL = 3, /* encapsulated to the node `nexthop` */
};

enum flow_flag {
	FLOW_REPLY = 1,    /* this entry is the way back of the flow */
	FLOW_REWRITE = 2,  /* addresses or ports change to saddr .. dport below */
	FLOW_VIA_NODE = 4, /* goes by the node `nexthop` whatever the destination says */
	FLOW_HAND_ON = 8,  /* the packet is handed on untranslated to the node of the backend */
	FLOW_DSR = 16,     /* answers go straight to the client (information) */
	FLOW_FROM_HOST = 32, /* begun by this node itself */
	FLOW_SNAT = 64,    /* the source became the node's */
	FLOW_CLAMP = 128,  /* SYNs of this direction announce no larger segments than fit the tunnel */
};

enum flow_state {
	STATE_REPLIED = 1, /* both directions were seen */
	STATE_FIN = 2,     /* FIN in this direction */
	STATE_CLOSING = 4, /* FIN in both directions, or RST */
	STATE_ANSWERED = 8, /* half open: an answer was seen */
	STATE_WATCHED = 16, /* original direction, for a Maglev frontend, ACT_LOCAL or ACT_PASS: `nexthop` is the node that hands its
			     * packets on, 0 = none; when that changes, the way back follows */
	STATE_RESET = 32, /* with STATE_CLOSING: by RST */
};

/* Where packets of an entry's direction come from. The programs compare each packet with it
 * (source.h). */
enum flow_from {
	FROM_UNKNOWN = 0,  /* not known yet: the next packet from outside is checked against the tables */
	FROM_ANYWHERE = 1, /* anywhere but from a pod: the source is outside of the cluster */
	FROM_POD = 2,      /* the pod's interface, whose index is the first word of `source` */
	FROM_LINK = 3,     /* a node on the link: `source` stands for its MAC address */
	FROM_TUNNEL = 4,   /* the tunnel: `source` is the outer source address */
	FROM_ROUTER = 5,   /* an uplink, from whichever MAC address: the sender is behind a router, or publishes none */
	FROM_STACK = 6,    /* this node's own stack: the first word of `source` is the interface by which it got them, 0 = none */
};

/* The order is by use, not by subject. A packet of an open flow reads and writes the fields up to
 * `mtu` alone: 48 bytes of IPv4. An element of IPv4's map has 64 bytes before its value, which so
 * fills one cache line. What comes later (counters of flow records, the other direction in the same
 * entry) goes behind `mtu`, where it displaces svc and backend, which only the slow path reads,
 * into a second cache line. An entry of another layout is carried over by the names of its fields
 * (migrate.go). */
struct flow_value {
	__u32 epoch; /* of the last judgement */
	__u32 seen;  /* clock units; see struct settings */
	ip_addr saddr; /* the packet after translation */
	ip_addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 action; /* enum flow_action */
	__u8 state;  /* enum flow_state */
	__u8 flags;  /* enum flow_flag */
	__u8 from;   /* enum flow_from */
	ip_addr source; /* see enum flow_from; a MAC address as source_link in source.h makes it */
	__u32 ifindex; /* see enum flow_action */
	ip_addr nexthop; /* STATE_ANSWERED, whose packets need none: fallback_since */
	__u32 rule; /* that allowed it */
	__u8 mac[6]; /* ACT_LOCAL: of the pod */
	__u16 mtu;   /* of the way: bytes of an IP packet, host byte order; 0 = not known */
	struct svc_key svc; /* id of the service, zero when none */
	struct backend backend; /* the one chosen */
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
	__u32 id;  /* identification, as it lies in the header */
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
#define FRAG_PARTS 5   /* slots that a frame may take: jumbo frames of 9,000 bytes fit */

enum frag_state { FRAG_FREE = 0, FRAG_BUSY = 1, FRAG_HOLDS = 2 };

struct frag_slot {
	struct bpf_spin_lock lock; /* of state; who made it FRAG_BUSY owns the rest */
	__u32 state; /* enum frag_state */
	__u32 seen;
	__u32 serial; /* the same in all slots of a frame */
	struct frag_key key;
	__u16 len;  /* bytes of the frame */
	__u16 part; /* of the frame, from 0 on */
	__u8 data[FRAG_PART];
};

struct frag_ring {
	struct bpf_spin_lock lock;
	__u32 next; /* slot to be written next, counted without end */
	__u32 seen; /* when something was kept last */
};

/* --- settings: map weir_settings, array of one ------------------------------------------------ */

enum settings_flag {
	SET_DSR = 1,           /* bpfExternalServiceMode: DSR */
	SET_CTLB_TCP = 2,      /* bpfConnectTimeLoadBalancing: TCP or Enabled */
	SET_CTLB_UDP = 4,      /* bpfConnectTimeLoadBalancing: Enabled */
	SET_HOST_NAT = 16,     /* bpfHostNetworkedNATWithoutCTLB: what host processes send is balanced at to_uplink too */
	SET_HOSTS = 256,       /* there are host endpoints: what the node's own processes exchange has flows */
	SET_TO_HOST_DROP = 512,    /* defaultEndpointToHostAction DROP */
	SET_TO_HOST_RETURN = 1024, /* RETURN: the host endpoint of all interfaces judges */
	SET_UNTRACKED = 2048,  /* a host endpoint has a set of HOST_UNTRACKED_* */
	SET_PORTS = 8,         /* weir_ports is kept: a bit that is not set rules the port out */
	SET_EVENTS = 32,       /* somebody listens: each judged flow is an event */
	SET_HAND_OVER = 128,   /* another data plane has what has no flow here: it passes to the stack, none begins */
	SET_APART = 4096,      /* what is translated and goes to the stack bears MARK_SEEN: connection tracking has the same connection translated, too */
	SET_MARKS = 8192,      /* the programs heed SET_APART; nothing to them */
	SET_VXLAN_FROM_PODS = 16384, /* allowVXLANPacketsFromWorkloads */
	SET_RPF_STRICT = 65536, /* bpfEnforceRPF Strict */
	SET_IPIP_FROM_PODS = 32768, /* allowIPIPPacketsFromWorkloads */
	SET_CHANGING = 64,     /* user space is writing a change, and has not moved the epoch on yet; nothing to the programs */
};

/* map weir_ports: array of PORT_WORDS struct port_bits; bits[port & 7] of entry port >> 3 (host
 * byte order) says what the port is used for anywhere, so that traffic which is not ours is told by
 * one cheap look. */
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
enum port_shift { PORT_UDP = 1, PORT_SCTP = 4 };

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
	__u32 tunnel_mtu; /* bytes of an IP packet that fit inside the tunnel; 0 = not known */
	__u32 host_ifindex; /* of weir0 */
	__be16 tunnel_port; /* UDP */
	__u16 dsr_patience; /* units of 16 jiffies after an answer; a SYN that is repeated later says that it was lost */
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
	__u32 seen;  /* the last answer, clock units */
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
	COUNT_UNTRACKED = 3, /* packets of which XDP did not say what host endpoints say of each by itself, so that from_uplink had to ask */
	COUNTS = 4,
};

/* map weir_announced: hash ip_addr -> __u8; addresses that this node answers neighbours for
 * map weir_uplinks: hash __u32 interface index -> struct link_key; the MAC address that it answers
 * with there */

/* map weir_shares: hash ip_addr -> struct share; entries of weir_flows whose flows a pod began; of
 * no address: of all flows */
struct share {
	__u32 counted; /* by user space, at its last round */
	__u32 begun;   /* since */
};

/* map weir_spent: LRU hash ip_addr -> struct spent; pods that found no port for source NAT among
 * those that they may have */
struct spent {
	__u64 replaced; /* flows whose port one that is not established lost to a newer one of the same pod */
	__u64 refused;  /* packets that were dropped */
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

/* --- answers: map weir_answers, per-CPU array enum answer -> __u64 packets -------------------- */

/* What Weir answered by itself to packets that it dropped. */
enum answer {
	ANSWER_NONE = 0,
	ANSWER_PORT_UNREACHABLE = 1, /* a Service without backends */
	ANSWER_TIME_EXCEEDED = 2,    /* TTL */
	ANSWER_TOO_BIG = 3,          /* more than the MTU of the way */
	ANSWER_HOST_UNREACHABLE = 4, /* no pod has the address */
	ANSWER_RESET = 5,            /* TCP, for one or the other, and to a connection that policy ended */
	ANSWER_LIMITED = 14, /* would have been answered, but for the limit on answers */
	ANSWER_FAILED = 15,  /* would have been answered, but could not be rewritten */
	ANSWERS = 16,
};

/* --- drops: map weir_drops, per-CPU hash struct drop_key -> struct drop_value ----------------- */

struct drop_key {
	__u32 reason; /* enum drop_reason, reasons.h */
	__u32 rule;   /* number in the table of rules, 0 = none */
};

struct drop_value {
	__u64 packets;
	__u64 bytes;
};

/* --- events: map weir_events, ring buffer of struct event, one for both families -------------- */

enum event_flag {
	EVENT_ALLOWED = 1, /* by policy; `reason` may still say that the packet was dropped for another reason */
	EVENT_LOG = 2,     /* a rule with action Log matched */
	EVENT_AGAIN = 4,   /* a flow that was there is judged again */
	EVENT_EGRESS = 8,  /* the source is a pod of this node */
	EVENT_INGRESS = 16, /* the destination is */
	EVENT_HOST_IN = 32, /* a host endpoint judged where the flow comes into the node, ... */
	EVENT_HOST_OUT = 64, /* ... where it leaves it */
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

/* A flow as it was judged: in its original direction, after translation of the destination, before
 * that of the source. Addresses of IPv4 are mapped (RFC 4291 section 2.5.5.2). */
struct event {
	__be32 saddr[4];
	__be32 daddr[4];
	__be32 svc_addr[4]; /* the Service's id */
	__be16 svc_port;    /* 0 = none */
	__be16 sport;
	__be16 dport; /* of ICMP, type * 256 + code */
	__u8 svc_proto;
	__u8 proto;
	__u8 family; /* 4, 6 */
	__u8 hook;   /* enum hook */
	__u8 flags;  /* enum event_flag */
	__u8 staged; /* enum event_staged */
	__u32 reason; /* enum drop_reason */
	__u32 rules[2]; /* that judged at the source, at the destination; 0 = none did */
	__u32 staged_rules[2];
	__u32 ifindex; /* of the hook */
	__u32 host_rules[2]; /* of host endpoints, where it comes in, where it leaves */
	__u32 staged_host_rules[2];
};

/* What a structure grows by for each address that it holds. */
#define ADDR_MORE ((ADDR_WORDS - 1) * 4)

_Static_assert(sizeof(ip_addr) == 4 + ADDR_MORE && _Alignof(ip_addr) == 4, "ip_addr");
_Static_assert(sizeof(struct addr_value) == (40 + ADDR_MORE + 7) / 8 * 8, "addr_value");
_Static_assert(sizeof(struct svc_key) == 8 + ADDR_MORE, "svc_key");
_Static_assert(sizeof(struct backend_key) == 12 + ADDR_MORE, "backend_key");
_Static_assert(sizeof(struct live_key) == 16 + 2 * ADDR_MORE, "live_key");
_Static_assert(sizeof(struct affinity_key) == 20 + 2 * ADDR_MORE, "affinity_key");
_Static_assert(sizeof(struct sock_key) == 16 + ADDR_MORE, "sock_key");
_Static_assert(sizeof(struct sock_stream) == 24 + 2 * ADDR_MORE, "sock_stream");
_Static_assert(sizeof(struct policy_key) == 24, "policy_key");
_Static_assert(sizeof(struct policy_value) == 12, "policy_value");
_Static_assert(sizeof(struct staged_value) == 24, "staged_value");
_Static_assert(sizeof(struct event) == 100, "event");
_Static_assert(sizeof(struct host_value) == 128, "host_value");
_Static_assert(sizeof(struct flow_key) == 16 + 2 * ADDR_MORE, "flow_key");
_Static_assert(sizeof(struct flow_value) == 64 + 6 * ADDR_MORE, "flow_value");
_Static_assert(__builtin_offsetof(struct flow_value, svc) == 48 + 4 * ADDR_MORE, "flow_value: what each packet needs");
_Static_assert(sizeof(struct settings) == (96 + ADDR_MORE + 7) / 8 * 8, "settings");

#endif
