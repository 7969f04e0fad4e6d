/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* untracked.h: what host endpoints say of each packet by itself. docs/design/datapath.md, "Without
 * tracking", says what and why. XDP is where it is asked first: what it found out goes with the
 * packet, before its data. */
#ifndef WEIR_UNTRACKED_H
#define WEIR_UNTRACKED_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "policy.h"
#include "host_policy.h"
#include "events.h"
#include "drop.h"
#include "reasons.h"
#include "host_socket.h"

/* What stands before a packet's data when XDP has looked at it. What another machine of this
 * kernel, another interface or another program left there counts for nothing. */
struct untracked_stamp {
	__u32 magic;
	__u32 netns; /* of the cookie of the node's network namespace */
	__u32 ifindex;
	__u32 verdict; /* enum untracked */
};

#define UNTRACKED_MAGIC 0x77656972u

/* What the set `which` of the host endpoint of an interface says of the packet from
 * scratch.policy.src to .dst. The destination port of ICMP is the message's type * 256 + its
 * code. */
__noinline int untracked_evaluate(__u32 ifindex, __u32 which, __u8 proto, __be16 sport,
				  __be16 dport)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct addr_value *a, *b;

	if (!w || !s)
		return UNTRACKED_NONE;
	if ((proto == IPPROTO_UDP && dport == s->tunnel_port) ||
	    (proto == IPPROTO_IPIP && (s->flags & SET_IPIP))) {
		a = bpf_map_lookup_elem(&weir_addrs, &w->policy.src);
		b = bpf_map_lookup_elem(&weir_addrs, &w->policy.dst);
		if (a && b &&
		    ((a->kind == ADDR_NODE && b->kind == ADDR_HOST) ||
		     (a->kind == ADDR_HOST && b->kind == ADDR_NODE)))
			return UNTRACKED_NONE;
	}
	policy_forget(w);
	w->policy.about = EVALUATED_NEW;
	w->policy.sport = sport;
	w->policy.dport = dport;
	w->policy.proto = proto;
	w->policy.value.verdict = POLICY_UNDECIDED; /* where there is no set */
	w->policy.rule = 0;
	if (host_denies(ifindex, which, proto, dport))
		return UNTRACKED_DENIED;
	return w->policy.value.verdict & POLICY_UNDECIDED ? UNTRACKED_NONE : UNTRACKED_ALLOWED;
}

/* Evaluates p, which was read from c, of which an ICMP error counts by itself and not by what it
 * quotes. */
static __always_inline int untracked_packet(struct cursor c, const struct pkt *p, struct scratch *w,
					    __u32 which)
{
	__u8 proto = p->l4 == L4_ERROR ? IP_ICMP : p->key.proto;
	__be16 sport = p->key.sport, dport = p->key.dport;

	w->policy.src = p->saddr;
	w->policy.dst = p->daddr;
	if (proto == IP_ICMP) {
		sport = 0;
		if (cursor_load(&c, p->l4_off, &dport, sizeof(dport)))
			return UNTRACKED_NONE;
	}
	return untracked_evaluate(cursor_ifindex(&c), which, proto, sport, dport);
}

/* Tells of a packet that was denied. */
static __always_inline void untracked_tell(struct scratch *w, __u32 ifindex, __u8 hook,
					   __u32 reason)
{
	w->pkt.hook = hook;
	__builtin_memset(flow_svc(&w->fwd), 0, sizeof(struct svc_key));
	event_put(ifindex, reason);
}

/* Is what comes by itself evaluated here? Then an error and a fragment that is not the first, of
 * which policy was asked by what they are and not by what their flow is, do not make a flow one
 * that was evaluated: its own packets are still to be asked about. */
static __always_inline int untracked_comes(const struct settings *s, const struct pkt *p)
{
	return (s->flags & SET_UNTRACKED) && p->hook == HOOK_FROM_UPLINK;
}

/* Finds out what is said of scratch.pkt, which comes in by an uplink: pkt.untracked. Returns 1 = it
 * was dropped. */
__noinline int untracked_arrives(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct untracked_stamp *m;
	__u32 rule;
	int ret;

	if (!w || !s)
		return 0;
	m = (void *)(long)skb->data_meta;
	if ((void *)(m + 1) <= (void *)(long)skb->data && m->magic == UNTRACKED_MAGIC &&
	    m->netns == (__u32)s->host_netns && m->ifindex == skb->ifindex &&
	    (m->verdict == UNTRACKED_NONE || m->verdict == UNTRACKED_ALLOWED)) {
		w->pkt.untracked = m->verdict;
		return 0;
	}
	event_count(COUNT_UNTRACKED);
	ret = untracked_packet(cursor_of_tc(skb), &w->pkt, w, HOST_UNTRACKED_INGRESS);
	if (ret == UNTRACKED_DENIED && host_socket_of(skb) == HOST_SOCKET_AGENT)
		ret = UNTRACKED_NONE;
	if (ret == UNTRACKED_DENIED) {
		rule = w->policy.rule;
		untracked_tell(w, skb->ifindex, HOOK_FROM_UPLINK, DROP_UNTRACKED_INGRESS);
		drop_packet(skb, DROP_UNTRACKED_INGRESS, rule);
		return 1;
	}
	policy_forget(w);
	w->pkt.untracked = ret;
	return 0;
}

/* Reads a packet that leaves by an uplink, as it meets it there, into scratch.pkt, and finds out
 * what is said of it when it begins in this node: pkt.untracked. What is denied is dropped, and
 * counted. Returns enum parsed. */
__noinline int untracked_leaves(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	__u32 rule;
	int parsed;

	if (!w || !s)
		return PARSED_OTHER;
	w->pkt.hook = HOOK_TO_UPLINK;
	w->pkt.missed = 0;
	w->pkt.untracked = UNTRACKED_NONE;
	w->pkt.tunnel_src = addr_none();
	parsed = parse_packet(cursor_of_tc(skb), &w->pkt);
	if (!(s->flags & SET_UNTRACKED) || skb->ingress_ifindex ||
	    skb->ifindex == s->host_ifindex ||
	    (parsed != PARSED_OK && !(parsed == PARSED_FRAGMENT && w->pkt.l4_off)))
		return parsed;
	w->pkt.untracked = untracked_packet(cursor_of_tc(skb), &w->pkt, w, HOST_UNTRACKED_EGRESS);
	if (w->pkt.untracked == UNTRACKED_DENIED) {
		rule = w->policy.rule;
		untracked_tell(w, skb->ifindex, HOOK_TO_UPLINK, DROP_UNTRACKED_EGRESS);
		drop_packet(skb, DROP_UNTRACKED_EGRESS, rule);
	}
	return parsed;
}

/* Does the entry f carry nothing but what the stack exchanges by itself? Then what is allowed
 * untracked needs no evaluation of it. */
static __noinline int untracked_plain(const struct pkt *p, const struct flow_value *f)
{
	struct addr_value *a, *b;

	if (!p || !f || f->action != ACT_PASS || (f->flags & (FLOW_REWRITE | FLOW_HAND_ON)) ||
	    flow_svc(f)->proto)
		return 0;
	a = bpf_map_lookup_elem(&weir_addrs, &p->key.saddr);
	b = bpf_map_lookup_elem(&weir_addrs, &p->key.daddr);
	return !(a && a->kind == ADDR_ENDPOINT) && !(b && b->kind == ADDR_ENDPOINT);
}

/* What host endpoints say by itself of scratch.pkt. Not in datapath_slow: the stack is too small.
 * Returns 1 = it was dropped. */
static __always_inline int untracked_arrival(struct __sk_buff *skb, __u8 hook)
{
	struct settings *s;

	if (hook != HOOK_FROM_UPLINK)
		return 0;
	s = settings_get();
	return s && (s->flags & SET_UNTRACKED) && untracked_arrives(skb);
}

/* What host endpoints say by itself of a packet that has a flow: where XDP did not say it, this
 * asks. The flow may have begun elsewhere, or in the other direction: it tells nothing of that.
 * Returns 1 = it was dropped. */
static __always_inline int untracked_known_arrival(struct __sk_buff *skb, struct pkt *p)
{
	struct scratch *w = scratch_get();

	if (!w)
		return 1;
	if (WEIR_FAMILY == 4)
		w->pkt = *p;
	if (untracked_arrives(skb))
		return 1;
	p->untracked = w->pkt.untracked;
	return 0;
}

#endif
