/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* maps.h: the maps, and the load-time constants. Sizes are defaults; user space sets them at
 * load. */
#ifndef WEIR_MAPS_H
#define WEIR_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

/* 1 = write each decision to skb->cb, for tests: cb[0] 1 + action, or 0x100 + reason of a drop,
 * 0x200 + reason of one that is answered; cb[1] ifindex; cb[2] next hop; cb[3] rule. TRACE_KEPT for
 * a fragment that waits; cb[4] how many of them were sent again. */
const volatile __u8 trace_enabled = 0;
#define TRACE_KEPT 0x400
/* 1 = bpf_set_retval exists (5.18), so that connect() can say ECONNREFUSED. */
const volatile __u8 can_set_retval = 1;

/* After how long an open flow is reported by its next packet, clock units. 0 = there are no flow
 * records: nothing is counted, entries of flows have no room for it (flow_fields.h), and the kernel
 * takes out what would do it when it loads the programs. */
const volatile __u32 account_interval = 0;

/* Keeps the compiler from merging two bounds of a length into one that the verifier does not
 * understand. */
#define OPAQUE(v) asm volatile("" : "+r"(v))

#define MAP(map_name, map_type, key_type, value_type, entries, flags) \
	struct { \
		__uint(type, map_type); \
		__type(key, key_type); \
		__type(value, value_type); \
		__uint(max_entries, entries); \
		__uint(map_flags, flags); \
	} map_name SEC(".maps")

/* The programs for IPv6 by enum hook; IPv4's call them. Nothing is there when the node carries no
 * IPv6. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 8);
} weir_ipv6 SEC(".maps");

/* weir_to_workload, which programs of other hooks call for all but the fast path: that of the same
 * load. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 1);
} weir_slow_calls SEC(".maps");

MAP(weir_settings, BPF_MAP_TYPE_ARRAY, __u32, struct settings, 1, 0);
MAP(weir_addrs, BPF_MAP_TYPE_HASH, ip_addr, struct addr_value, 262144, BPF_F_NO_PREALLOC);
MAP(weir_routes, BPF_MAP_TYPE_LPM_TRIE, struct prefix_key, struct route_value, 65536,
    BPF_F_NO_PREALLOC);
MAP(weir_services, BPF_MAP_TYPE_HASH, struct svc_key, struct svc_value, 65536, BPF_F_NO_PREALLOC);
MAP(weir_ranges, BPF_MAP_TYPE_LPM_TRIE, struct range_key, __u8, 65536, BPF_F_NO_PREALLOC);
MAP(weir_backends, BPF_MAP_TYPE_HASH, struct backend_key, struct backend, 262144,
    BPF_F_NO_PREALLOC);
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct svc_key);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_ARRAY);
			__uint(max_entries, 1);
			__uint(map_flags, BPF_F_INNER_MAP); /* any number of entries */
			/* No types: to Linux 6.1 a map with them is not like one without. */
			__uint(key_size, sizeof(__u32));
			__uint(value_size, sizeof(struct backend));
		});
} weir_maglev SEC(".maps");
MAP(weir_live, BPF_MAP_TYPE_HASH, struct live_key, __u8, 262144, BPF_F_NO_PREALLOC);
MAP(weir_affinity, BPF_MAP_TYPE_LRU_HASH, struct affinity_key, struct affinity_value, 65536, 0);
MAP(weir_peers, BPF_MAP_TYPE_HASH, ip_addr, __u64, 262144, BPF_F_NO_PREALLOC);
MAP(weir_peer_cidrs, BPF_MAP_TYPE_LPM_TRIE, struct prefix_key, __u64, 65536, BPF_F_NO_PREALLOC);
MAP(weir_policy, BPF_MAP_TYPE_HASH, struct policy_key, struct policy_value, 524288,
    BPF_F_NO_PREALLOC);
MAP(weir_staged, BPF_MAP_TYPE_HASH, ip_addr, struct staged_value, 4096, BPF_F_NO_PREALLOC);
MAP(weir_hosts, BPF_MAP_TYPE_HASH, struct host_key, struct host_value, 1024, BPF_F_NO_PREALLOC);
MAP(weir_hosts_staged, BPF_MAP_TYPE_HASH, struct host_key, struct host_value, 1024,
    BPF_F_NO_PREALLOC);
MAP(weir_flows, BPF_MAP_TYPE_LRU_HASH, struct flow_key, struct flow_value, 512000, 0);
MAP(weir_flows_new, BPF_MAP_TYPE_LRU_HASH, struct flow_key, struct flow_value, 128000, 0);
MAP(weir_frags, BPF_MAP_TYPE_LRU_HASH, struct frag_key, struct frag_value, 16384, 0);
MAP(weir_frag_slots, BPF_MAP_TYPE_ARRAY, __u32, struct frag_slot, (FRAG_RINGS * FRAG_SLOTS), 0);
MAP(weir_frag_rings, BPF_MAP_TYPE_ARRAY, __u32, struct frag_ring, FRAG_RINGS, 0);
MAP(weir_clients, BPF_MAP_TYPE_HASH, __u64, ip_addr, 4096, BPF_F_NO_PREALLOC);
MAP(weir_sockets, BPF_MAP_TYPE_LRU_HASH, struct sock_key, struct sock_value, 65536, 0);
MAP(weir_streams, BPF_MAP_TYPE_ARRAY, __u32, struct sock_stream, STREAM_SLOTS, 0);
MAP(weir_links, BPF_MAP_TYPE_HASH, struct link_key, ip_addr, 65536, BPF_F_NO_PREALLOC);
MAP(weir_dsr_optout, BPF_MAP_TYPE_LPM_TRIE, struct prefix_key, __u8, 16384, BPF_F_NO_PREALLOC);
MAP(weir_dsr_tries, BPF_MAP_TYPE_LRU_HASH, ip_addr, struct dsr_tries, 4096, 0);
MAP(weir_dsr_fallen, BPF_MAP_TYPE_LRU_HASH, ip_addr, struct dsr_fallen, 16384, 0);
MAP(weir_counts, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u64, COUNTS, 0);
MAP(weir_announced, BPF_MAP_TYPE_HASH, ip_addr, __u8, 65536, BPF_F_NO_PREALLOC);
MAP(weir_uplinks, BPF_MAP_TYPE_HASH, __u32, struct link_key, 256, BPF_F_NO_PREALLOC);
MAP(weir_ports, BPF_MAP_TYPE_ARRAY, __u32, struct port_bits, PORT_WORDS, 0);
MAP(weir_drops, BPF_MAP_TYPE_PERCPU_HASH, struct drop_key, struct drop_value, 4096,
    BPF_F_NO_PREALLOC);

/* With trace_enabled: the rule by which a program dropped that has no skb->cb. */
MAP(weir_trace_rule, BPF_MAP_TYPE_ARRAY, __u32, __u32, 1, 0);

static __always_inline struct settings *settings_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_settings, &zero);
}

/* What stands for an address in skb->cb: its last word; weir_trace has the whole. */
MAP(weir_trace, BPF_MAP_TYPE_ARRAY, __u32, ip_addr, 1, 0);

static __always_inline __u32 trace_addr(const ip_addr *a)
{
	__u32 zero = 0;
	ip_addr *to;

	if (!a)
		return 0;
	to = bpf_map_lookup_elem(&weir_trace, &zero);
	if (to)
		*to = *a;
	return a->w[ADDR_WORDS - 1];
}

#endif
