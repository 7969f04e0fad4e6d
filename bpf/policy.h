/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* policy.h: the two look-ups, and who is judged by them. */
#ifndef WEIR_POLICY_H
#define WEIR_POLICY_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "maps.h"
#include "scratch.h"
#include "reasons.h"

/* Look-up 1: the peer class of an address. */
static __always_inline __u64 policy_class(const ip_addr *addr)
{
	struct prefix_key pk = { .len = ADDR_BITS, .addr = *addr };
	__u64 *class = bpf_map_lookup_elem(&weir_peers, addr);

	if (!class)
		class = bpf_map_lookup_elem(&weir_peer_cidrs, &pk);
	return class ? *class : 0;
}

static __always_inline __u8 policy_proto_bit(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP: return POLICY_TCP;
	case IPPROTO_UDP: return POLICY_UDP;
	case IPPROTO_SCTP: return POLICY_SCTP;
	case IP_ICMP: return POLICY_ICMP;
	}
	return 0;
}

/* Look-up 2 for scratch.judged.peer. Returns 1 = allowed; scratch.rule, when an entry matched, is the deciding rule. */
__noinline int policy_verdict(__u64 set, __u8 proto, __be16 dport)
{
	struct scratch *w = scratch_get();
	struct policy_key key = { .set = set, .head = 1 };
	struct policy_value *head;
	__u16 port = bpf_ntohs(dport);
	__u32 lens;

	if (!w)
		return 0;
	key.peer = policy_class(&w->judged.peer);
	head = bpf_map_lookup_elem(&weir_policy, &key);
	if (!head && key.peer) {
		key.peer = 0;
		head = bpf_map_lookup_elem(&weir_policy, &key);
	}
	if (!head)
		return 0;
	if (head->protos & policy_proto_bit(proto)) {
		lens = head->lens;
		key.head = 0;
		key.proto = proto;
		for (int len = 16; len >= 0; len--) {
			struct policy_value *v;

			if (!(lens & (1u << len)))
				continue;
			key.len = len;
			key.port = len ? port & (__u16)(0xffff << (16 - len)) : 0;
			v = bpf_map_lookup_elem(&weir_policy, &key);
			if (v) {
				w->rule = v->rule;
				return v->allow;
			}
		}
	}
	w->rule = head->rule;
	return head->allow;
}

/* Judges the flow scratch.judged by its original direction: addresses after translation of the destination, before
 * that of the source. Returns 0 or the reason to drop; scratch.rule is the rule that decided last, 0 = none. */
__noinline int policy_flow(__u8 proto, __be16 dport)
{
	struct scratch *w = scratch_get();
	struct addr_value *a, *b;

	if (!w)
		return DROP_POLICY_INGRESS;
	w->rule = 0;
	if (addr_same(&w->judged.src, &w->judged.dst))
		return DROP_NONE;
	a = bpf_map_lookup_elem(&weir_addrs, &w->judged.src);
	b = bpf_map_lookup_elem(&weir_addrs, &w->judged.dst);
	if (a && a->kind == ADDR_ENDPOINT && a->egress_set) {
		w->rule = a->egress_rule;
		w->judged.peer = w->judged.dst;
		if (!policy_verdict(a->egress_set, proto, dport))
			return DROP_POLICY_EGRESS;
	}
	if (b && b->kind == ADDR_ENDPOINT && b->ingress_set && !(a && a->kind == ADDR_HOST)) {
		w->rule = b->ingress_rule;
		w->judged.peer = w->judged.src;
		if (!policy_verdict(b->ingress_set, proto, dport))
			return DROP_POLICY_INGRESS;
	}
	return DROP_NONE;
}

static __always_inline int policy_judge(struct scratch *w, const ip_addr *src, const ip_addr *dst, __u8 proto, __be16 dport)
{
	w->judged.src = *src;
	w->judged.dst = *dst;
	return policy_flow(proto, dport);
}

#endif
