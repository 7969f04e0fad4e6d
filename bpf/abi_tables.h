/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* abi_tables.h: what the agent writes for packets to be looked up in: addresses, prefixes,
 * Services, policy, host endpoints. A part of abi.h. */
#ifndef WEIR_ABI_TABLES_H
#define WEIR_ABI_TABLES_H

#include <linux/types.h>
#include "addr.h"

/* --- addresses: map weir_addrs, hash ip_addr -> struct addr_value ----------------------------- */

enum addr_kind {
	ADDR_NONE = 0,
	ADDR_HOST = 1, /* an address of this node */
	ADDR_ENDPOINT = 2, /* a pod on this node */
	ADDR_NODE = 3, /* an address of another node */
	ADDR_POD = 4, /* a pod elsewhere whose address lies outside its node's blocks */
};

enum addr_flag {
	ADDR_NAT_OUTGOING = 1, /* endpoint: traffic that leaves the pools gets the node's address */
	/* endpoint: what it sends out of the cluster leaves by egress gateways; see weir_gateways */
	ADDR_GATEWAYS = 2,
	ADDR_SAME_LINK = 2, /* node, pod: reached by MAC address, without a router between */
	ADDR_TUNNEL = 4, /* node: it is reached through the tunnel. pod: the same, by VXLAN, */
	ADDR_PRIMARY = 8, /* host: the node's own address (the one other nodes know) */
	ADDR_LEARNED = 8, /* pod: as ROUTE_LEARNED */
	ADDR_STAGED_NAMES = 8, /* endpoint: its egress set in weir_staged has domain names */
	ADDR_NODE_PORTS = 16, /* host, node: node ports answer here */
	ADDR_KEEP_SOURCE = 32, /* node: NAT_OUTGOING does not apply on the way there */
	ADDR_IPIP = 128, /* pod, with ADDR_TUNNEL: by IP in IP */
	ADDR_QUEUE = 16, /* endpoint: it gets its packets by the queue of its interface */
	ADDR_NO_IPIP = 128, /* node: it cannot take IP in IP */
	ADDR_NAMES = 4, /* endpoint: its egress set has domain names; see weir_name_sets */
	ADDR_STAGED = 64, /* endpoint: staged policies select it; see weir_staged */
};

struct addr_value {
	__u8 kind; /* enum addr_kind */
	__u8 flags; /* enum addr_flag */
	__u8 mac[6]; /* endpoint: of the pod's interface; node: of its uplink, zero when unknown */
	__u32 ifindex; /* endpoint: the host side of its interface */
	ip_addr node; /* node: its primary address; pod: that of its node */
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
	ROUTE_POOL = 1, /* inside an IP pool: never source-translated on the way there */
	ROUTE_REMOTE = 2, /* lives on the node `node` */
	ROUTE_LOCAL = 4, /* a block of this node: an address without an endpoint is dropped */
	ROUTE_TUNNEL = 8, /* encapsulated towards that node */
	ROUTE_SAME_LINK = 16, /* that node is reached by MAC address */
	ROUTE_IPIP = 32, /* with ROUTE_TUNNEL: by IP in IP */
	/* without ROUTE_TUNNEL: the kernel's route to the address comes before that to the node */
	ROUTE_LEARNED = 64,
};

struct route_value {
	ip_addr node;
	__u32 flags; /* enum route_flag */
};

/* --- sources: map weir_sources, LPM struct source_key -> ip_addr -------------------------------
 * What pods may send from beside their own addresses: the address of the pod behind the interface.
 * None: nobody may, inside of a wider prefix. */
struct source_key {
	__u32 len; /* bits: those of ifindex, all, and of the address */
	__u32 ifindex;
	ip_addr addr;
};

/* --- egress gateways: map weir_gateways, hash struct gateway_key -> struct gateway_list --------
 * The gateways of pods with ADDR_GATEWAYS, and, where a gateway is on this node, of those of other
 * nodes. A list that is missing is an empty one. Which of a pod's lists counts turns on where to,
 * for pods with an EgressGatewayPolicy: map weir_egress_policies, hash ip_addr -> __u64, has its
 * number, and map weir_egress_rules, LPM struct egress_key -> __u64, the number of the group. */

#define GATEWAYS 8

enum gateway_group {
	GROUP_ANNOTATIONS = 0, /* of pods without a policy */
	GROUP_DIRECT = 1, /* none is needed: it leaves as what other pods send */
	GROUP_NONE = 2, /* no rule has the destination: there is no such list */
};

struct gateway_key {
	__u32 group[2]; /* the lower half first */
	ip_addr client;
};

struct egress_key {
	__u32 len; /* bits: those of policy, all, and of the destination */
	__u32 policy[2]; /* the lower half first */
	ip_addr addr;
};

struct gateway_list {
	__u32 count;
	ip_addr gateways[GATEWAYS]; /* the addresses of pods; the rest 0 */
};

/* --- services --------------------------------------------------------------------------------- */

enum svc_scope {
	SCOPE_ALL = 0,
	SCOPE_LOCAL = 1
};

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
	SVC_EXTERNAL = 2, /* for clients outside: node port, load balancer's address, external IP */
	SVC_HOST_BACKEND = 16, /* a backend is one of this node's own addresses */
	SVC_RESTRICTED = 8, /* for the clients in weir_ranges alone */
	SVC_LOCAL = 4, /* traffic policy Local, external or internal as the frontend is */
	/* answers to outside clients go back by the node that was asked, whatever SET_DSR says */
	SVC_MODE_TUNNEL = 256,
	SVC_MODE_DSR = 512, /* they go straight to the client */
	SVC_MAGLEV = 1024, /* new flows choose by consistent hashing, where `table` has slots */
};

struct svc_value {
	struct svc_key id;
	__u32 count; /* backends in the list of SCOPE_ALL: slots 0 .. count-1 */
	__u32 local; /* the same for SCOPE_LOCAL: backends on this node */
	__u32 flags; /* enum svc_flag */
	__u32 affinity; /* seconds that a client stays with its backend; 0 = no affinity */
	__u32 rule; /* number of this service in the table of rules */
	__u32 table; /* slots of its Maglev table; 0 = new flows choose at random */
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

enum policy_proto {
	POLICY_TCP = 1,
	POLICY_UDP = 2,
	POLICY_SCTP = 4,
	POLICY_ICMP = 8,
	POLICY_OTHER = 16
};

enum policy_verdict {
	POLICY_ALLOW = 1,
	POLICY_LOG = 2, /* a rule with action Log matched on the way to this verdict */
	/* alongside ALLOW, in sets of HOST_UNTRACKED_*: no rule is about it, it goes on to be
	 * tracked */
	POLICY_UNDECIDED = 4,
};

struct policy_value {
	__u32 rule;
	__u32 lens; /* head: bit n set = entries with len n exist */
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
	__u32 family; /* 4 or 6 */
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
	__u64 set; /* 0 = nothing is evaluated */
	__u32 rule; /* decides where no entry of the set matches */
	__u32 flags; /* enum host_flag */
};

enum host_flag {
	/* staged policies would decide otherwise here, or something did: see weir_hosts_staged */
	HOST_STAGED = 1,
};

/* map weir_hosts_staged: hash struct host_key -> struct host_value; what would apply if the staged
 * policies were in force. Looked at only for events. */
struct host_value {
	struct host_side sides[HOST_SETS];
};

#endif
