/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* policy.h: what policy says of a flow (scratch.policy). Look-up 1 finds the class of the other
 * end (weir_peers, weir_peer_cidrs), look-up 2 the verdict of the pod's set for that class,
 * protocol and port (weir_policy): for the source's egress and for the destination's ingress. */
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
	return POLICY_OTHER;
}

/* Looks for the entry of policy.key with the longest prefix of port, of the lengths in lens.
 * Returns 1 with policy.value when there is one. */
__noinline int policy_by_port(__u32 lens, __u16 port)
{
	struct scratch *w = scratch_get();

	if (!w)
		return 0;
	for (int len = 16; len >= 0; len--) {
		struct policy_value *v;

		if (!(lens & (1u << len)))
			continue;
		w->policy.key.len = len;
		w->policy.key.port = len ? port & (__u16)(0xffff << (16 - len)) : 0;
		v = bpf_map_lookup_elem(&weir_policy, &w->policy.key);
		if (v) {
			w->policy.value = *v;
			return 1;
		}
	}
	return 0;
}

/* Look-up 2 for policy.peer and policy.sport. Returns 1 = allowed; scratch.policy.rule, when an
 * entry matched, is the deciding rule. */
__noinline int policy_verdict(__u64 set, __u8 proto, __be16 dport)
{
	struct scratch *w = scratch_get();
	__u8 bit = policy_proto_bit(proto);
	struct policy_value *v;
	struct policy_key *key;

	if (!w)
		return 0;
	key = &w->policy.key;
	__builtin_memset(key, 0, sizeof(*key));
	key->set = set;
	key->head = 1;
	key->peer = policy_class(&w->policy.peer);
	v = bpf_map_lookup_elem(&weir_policy, key);
	if (!v && key->peer) {
		key->peer = 0;
		v = bpf_map_lookup_elem(&weir_policy, key);
	}
	if (!v)
		return 0;
	w->policy.value = *v; /* from here on that alone: the element may become another's */
	if (w->policy.value.protos & bit) {
		key->head = 0;
		key->proto = proto;
		if (bit == POLICY_OTHER)
			policy_by_port(1, 0);
		else
			policy_by_port(w->policy.value.lens, bpf_ntohs(dport));
	}
	if (w->policy.value.sources) {
		key->sources = w->policy.value.sources;
		key->head = 1;
		key->proto = 0;
		key->len = 0;
		key->port = 0;
		v = bpf_map_lookup_elem(&weir_policy, key);
		if (!v)
			return 0;
		w->policy.value = *v;
		key->head = 0;
		policy_by_port(w->policy.value.lens, bpf_ntohs(w->policy.sport));
	}
	w->policy.rule = w->policy.value.rule;
	w->policy.log |= w->policy.value.verdict & POLICY_LOG;
	return w->policy.value.verdict & POLICY_ALLOW;
}

__noinline int names_verdict(__u32 ifindex, __u64 set, __u8 proto, __be16 dport); /* names.h */

/* What policy takes for the destination port of an ICMP flow whose key has these ports: see struct
 * flow_key. */
static __always_inline __be16 policy_message(__be16 sport, __be16 dport)
{
	__u16 apart = bpf_ntohs(dport) - bpf_ntohs(sport);

	if (apart == ICMP_ONE_WAY)
		return sport;
	return bpf_htons((__u16)((apart < 256 ? apart : ip_answer((__u16)-apart)) << 8));
}

/* The destination port as policy looks at it. */
static __always_inline __be16 policy_port(__u8 proto, __be16 sport, __be16 dport)
{
	return proto == IP_ICMP ? policy_message(sport, dport) : dport;
}

/* With the source port of the packet p, whose entry is f, the port that is evaluated: the one after
 * translation. Those of ICMP belong together, and policy asks for their distance alone. */
static __always_inline __be16 policy_other_port(const struct pkt *p, const struct flow_value *f)
{
	return p->key.proto == IP_ICMP ? p->key.dport : f->dport;
}

/* Nothing was evaluated yet of the packet at hand. */
static __always_inline void policy_forget(struct scratch *w)
{
	w->policy.about = EVALUATED_NOTHING;
	w->policy.ends = w->policy.log = 0;
	w->policy.named = 0;
	w->policy.rules[0] = w->policy.rules[1] = 0;
	w->policy.host_rules[0] = w->policy.host_rules[1] = 0;
	w->policy.host_asked[0] = w->policy.host_asked[1] = w->policy.host_asked[2] = 0;
}

/* Notes the ports that are evaluated. */
static __always_inline void policy_ports(struct scratch *w, __u8 proto, __be16 sport, __be16 dport)
{
	w->policy.sport = proto == IP_ICMP ? 0 : sport;
	w->policy.dport = policy_port(proto, sport, dport);
	w->policy.proto = proto;
}

/* Notes what is evaluated, for its event: from the ports as in struct flow_key. */
static __always_inline void policy_note(struct scratch *w, const struct addr_value *a,
					const struct addr_value *b, __u8 proto, __be16 sport,
					__be16 dport)
{
	policy_ports(w, proto, sport, dport);
	if (!addr_same(&w->policy.src, &w->policy.dst))
		w->policy.ends |= (a && a->kind == ADDR_ENDPOINT ? EVENT_EGRESS : 0) |
				  (b && b->kind == ADDR_ENDPOINT ? EVENT_INGRESS : 0);
}

/* Evaluates the flow scratch.policy by its original direction: addresses after translation of the
 * destination, before that of the source. a and b are what is known of these, or NULL; ports as in
 * struct flow_key. Returns 0 or the reason to drop; scratch.policy.rule is the rule that decided
 * last, 0 = none. */
static __noinline int policy_between(struct addr_value *a, struct addr_value *b, __u8 proto,
				     __be16 sport, __be16 dport)
{
	struct scratch *w = scratch_get();
	int allowed;

	if (!w)
		return DROP_INTERNAL;
	w->policy.rule = 0;
	policy_note(w, a, b, proto, sport, dport);
	dport = w->policy.dport;
	if (addr_same(&w->policy.src, &w->policy.dst))
		return DROP_NONE;
	if (a && a->kind == ADDR_ENDPOINT && a->egress_set) {
		w->policy.rule = a->egress_rule;
		w->policy.peer = w->policy.dst;
		allowed = policy_verdict(a->egress_set, proto, dport);
		if (!allowed && (a->flags & ADDR_NAMES))
			allowed = names_verdict(a->ifindex, a->egress_set, proto, dport);
		w->policy.rules[0] = w->policy.rule;
		if (!allowed)
			return DROP_POLICY_EGRESS;
	}
	if (b && b->kind == ADDR_ENDPOINT && b->ingress_set && !(a && a->kind == ADDR_HOST)) {
		w->policy.rule = b->ingress_rule;
		w->policy.peer = w->policy.src;
		allowed = policy_verdict(b->ingress_set, proto, dport);
		w->policy.rules[1] = w->policy.rule;
		if (!allowed)
			return DROP_POLICY_INGRESS;
	}
	return DROP_NONE;
}

/* The same where nothing was looked up. */
__noinline int policy_flow(__u8 proto, __be16 sport, __be16 dport)
{
	struct scratch *w = scratch_get();

	if (!w)
		return DROP_INTERNAL;
	return policy_between(
		bpf_map_lookup_elem(&weir_addrs,
				    w->policy.granted ? &w->source.sender : &w->policy.src),
		bpf_map_lookup_elem(&weir_addrs, &w->policy.dst), proto, sport, dport);
}

static __always_inline int policy_evaluate(struct scratch *w, const ip_addr *src,
					   const ip_addr *dst, __u8 proto, __be16 sport,
					   __be16 dport)
{
	w->policy.src = *src;
	w->policy.dst = *dst;
	return policy_flow(proto, sport, dport);
}

#endif
