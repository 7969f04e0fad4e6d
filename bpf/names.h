/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* names.h: policy by domain name, as the programs at hooks need it: questions to DNS are noted,
 * answers lead past weir_names (names.c), and what a set denies may be allowed by a name. */
#ifndef WEIR_NAMES_H
#define WEIR_NAMES_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "maps.h"
#include "scratch.h"
#include "parse.h"
#include "policy.h"

#define DNS_PORT 53
#define DNS_HEADER 12

MAP(weir_name_patterns, BPF_MAP_TYPE_LPM_TRIE, struct name_key, struct name_match, 16384,
    BPF_F_NO_PREALLOC);
MAP(weir_name_servers, BPF_MAP_TYPE_HASH, struct name_addr, __u8, 4096, BPF_F_NO_PREALLOC);
MAP(weir_name_used, BPF_MAP_TYPE_HASH, __u32, __u32, 4096, BPF_F_NO_PREALLOC);
MAP(weir_name_counts, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u64, NAME_COUNTS, 0);
MAP(weir_name_sets, BPF_MAP_TYPE_HASH, struct name_set_key, __u64, 65536, BPF_F_NO_PREALLOC);
MAP(weir_name_pods, BPF_MAP_TYPE_HASH, __u32, struct name_pod, 4096, BPF_F_NO_PREALLOC);
MAP(weir_names, BPF_MAP_TYPE_HASH, struct named_key, struct named_value, 262144, BPF_F_NO_PREALLOC);
MAP(weir_name_said, BPF_MAP_TYPE_HASH, struct named_key, struct name_said, 32768,
    BPF_F_NO_PREALLOC);
MAP(weir_name_asked, BPF_MAP_TYPE_LRU_HASH, struct name_question, __u32, 16384, 0);

/* weir_names_learn, which weir_to_workload calls for what pods with names get. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 1);
} weir_name_calls SEC(".maps");

static __always_inline __u32 names_now(void)
{
	return bpf_ktime_get_ns() / 1000000000ull;
}

/* Notes the question that a pod asks a DNS server in the packet p. Over TCP the message begins
 * behind its length; one whose first bytes come in two segments is not noted. Resolvers send the
 * questions for both families in one segment. */
static __noinline int names_ask(struct __sk_buff *skb, const struct pkt *p)
{
	struct name_question q = { .ifindex = skb->ifindex, .port = p->key.sport };
	__u32 now = names_now(), off = p->l4_off;
	__be16 len;
	__u8 words;

	if (!bpf_map_lookup_elem(&weir_name_pods, &q.ifindex))
		return 0;
	q.proto = p->key.proto;
	addr_widen(q.server, &p->key.daddr);
	if (p->l4 == L4_TCP) {
		if (bpf_skb_load_bytes(skb, off + 12, &words, 1))
			return 0;
		off += (words >> 4) * 4 + 2;
	} else {
		off += 8;
	}
	if (bpf_skb_load_bytes(skb, off, &q.id, 2))
		return 0;
	bpf_map_update_elem(&weir_name_asked, &q, &now, BPF_ANY);
	if (p->l4 != L4_TCP || bpf_skb_load_bytes(skb, off - 2, &len, 2) ||
	    bpf_skb_load_bytes(skb, off + bpf_ntohs(len) + 2, &q.id, 2))
		return 0;
	bpf_map_update_elem(&weir_name_asked, &q, &now, BPF_ANY);
	return 0;
}

/* The answers of a DNS server, whose port is given, go to the pod by way of its interface, where
 * weir_to_workload is, and not straight into its namespace. */
static __always_inline void names_lead(struct flow_value *f, __be16 server)
{
	if (server == bpf_htons(DNS_PORT) && f->action == ACT_LOCAL &&
	    bpf_map_lookup_elem(&weir_name_pods, &f->ifindex))
		f->action = ACT_QUEUE;
}

/* May what the pod gets be an answer that names_learn is to see? It comes back only when that is
 * not there. */
static __always_inline void names_comes(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;

	if (bpf_map_lookup_elem(&weir_name_pods, &ifindex))
		bpf_tail_call(skb, &weir_name_calls, 0);
}

/* Does the set allow what is in scratch.policy to an address that a name of this pattern led to? */
static __always_inline int names_set(__u64 set, __u64 pattern, __u8 proto, __be16 dport)
{
	struct name_set_key key = { .set = set, .pattern = pattern };
	__u64 *by = bpf_map_lookup_elem(&weir_name_sets, &key);

	return by ? policy_verdict(*by, proto, dport) : 0;
}

/* The egress set of the pod at an interface denies scratch.policy: is it allowed because of a name
 * that led to the address, or by which the flow began? */
__noinline int names_verdict(__u32 ifindex, __u64 set, __u8 proto, __be16 dport)
{
	struct scratch *w = scratch_get();
	struct named_key key = { .ifindex = ifindex };
	__u32 now = names_now(), rule, log;
	struct named_value *v;
	__u64 pattern;

	if (!w)
		return 0;
	rule = w->policy.rule;
	log = w->policy.log;
	pattern = w->policy.named;
	w->policy.named = 0;
	if (pattern && names_set(set, pattern, proto, dport)) {
		w->policy.named = pattern;
		return 1;
	}
	addr_widen(key.addr, &w->policy.peer);
	v = bpf_map_lookup_elem(&weir_names, &key);
	for (int i = 0; v && i < NAMED_SLOTS; i++) {
		pattern = v->slots[i].pattern;
		if (!pattern || (__s32)(v->slots[i].until - now) < 0)
			continue;
		w->policy.log = log;
		if (names_set(set, pattern, proto, dport)) {
			w->policy.named = pattern;
			return 1;
		}
	}
	w->policy.rule = rule;
	w->policy.log = log;
	return 0;
}

#endif
