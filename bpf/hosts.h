/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* hosts.h: what host endpoints judge. docs/datapath.md, "Host endpoints", says what and why. Nothing of this is called while
 * SET_HOSTS and SET_TO_HOST_DROP are off. */
#ifndef WEIR_HOSTS_H
#define WEIR_HOSTS_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "policy.h"
#include "reasons.h"

/* Does a set of the host endpoint of an interface deny the flow scratch.judged? scratch.rule becomes the rule that decided, when
 * one was asked. */
__noinline int host_denies(__u32 ifindex, __u32 which, __u8 proto, __be16 dport)
{
	struct host_key key = { .ifindex = ifindex, .family = WEIR_FAMILY };
	struct scratch *w = scratch_get();
	struct host_value *h;
	struct host_side *side;
	__u64 at = which;
	int denied;

	if (!w)
		return 1;
	h = bpf_map_lookup_elem(&weir_hosts, &key);
	if (!h) {
		key.ifindex = 0;
		h = bpf_map_lookup_elem(&weir_hosts, &key);
	}
	if (!h)
		return 0;
	OPAQUE(at);
	side = &h->sides[at & (HOST_SETS - 1)];
	if (!side->set)
		return 0;
	w->rule = side->rule;
	w->judged.ends |= which & HOST_EGRESS ? EVENT_HOST_OUT : EVENT_HOST_IN;
	w->judged.peer = which & HOST_EGRESS ? w->judged.dst : w->judged.src;
	denied = !policy_verdict(side->set, proto, dport);
	w->judged.host_rules[which & HOST_EGRESS] = w->rule;
	return denied;
}

/* Judges the flow scratch.judged, whose original direction comes into the node by the interface `in` and leaves it by `out`; 0 = it
 * begins or ends in the node. Returns 0 or the reason to drop; scratch.rule is the rule that decided last, 0 = none. */
__noinline int host_flow(__u32 in, __u32 out, __u8 proto, __be16 sport, __be16 dport)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct addr_value *a, *b;

	if (!w || !s)
		return DROP_HOST_INGRESS;
	w->rule = 0;
	policy_ports(w, proto, sport, dport);
	dport = w->judged.dport;
	a = bpf_map_lookup_elem(&weir_addrs, &w->judged.src);
	b = bpf_map_lookup_elem(&weir_addrs, &w->judged.dst);
	if (!in && !out) {
		if (!a || a->kind != ADDR_ENDPOINT || !b || b->kind != ADDR_HOST)
			return DROP_NONE;
		if (s->flags & SET_TO_HOST_DROP)
			return DROP_TO_HOST;
		return (s->flags & SET_TO_HOST_RETURN) && host_denies(0, HOST_INGRESS, proto, dport) ? DROP_HOST_INGRESS : DROP_NONE;
	}
	if (in && host_denies(in, b && b->kind == ADDR_HOST ? HOST_INGRESS : HOST_FORWARD_INGRESS, proto, dport))
		return DROP_HOST_INGRESS;
	if (out && host_denies(out, a && a->kind == ADDR_HOST ? HOST_EGRESS : HOST_FORWARD_EGRESS, proto, dport))
		return DROP_HOST_EGRESS;
	return DROP_NONE;
}

static __always_inline int host_on(const struct settings *s)
{
	return s->flags & (SET_HOSTS | SET_TO_HOST_DROP);
}

/* The interface by which the packet comes into the node; 0 = it begins here. */
static __always_inline __u32 host_here(const struct __sk_buff *skb, const struct pkt *p)
{
	return p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL ? skb->ifindex : 0;
}

/* The interface by which it leaves the node, as the flow entry f says; 0 = it ends here. */
static __always_inline __u32 host_there(const struct __sk_buff *skb, const struct pkt *p, const struct flow_value *f,
					const struct settings *s)
{
	if (f->action == ACT_NEIGH)
		return f->ifindex;
	if (f->action == ACT_TUNNEL)
		return s->tunnel_ifindex;
	return f->action == ACT_PASS && p->hook == HOOK_TO_UPLINK && skb->ifindex != s->host_ifindex ? skb->ifindex : 0;
}

/* The tunnel's outer packets between nodes are no host endpoint's to judge. a and b are what is known of both ends. */
static __always_inline int host_is_tunnel(const struct pkt *p, const struct settings *s, const struct addr_value *a,
					  const struct addr_value *b)
{
	return p->l4 == L4_UDP && p->key.dport == s->tunnel_port && a && b &&
	       ((a->kind == ADDR_NODE && b->kind == ADDR_HOST) || (a->kind == ADDR_HOST && b->kind == ADDR_NODE));
}

/* What hides from policy must not reach the host past its endpoints. b is what is known of the destination. */
static __always_inline int host_is_guarded(const struct pkt *p, const struct addr_value *b)
{
	struct settings *s = settings_get();

	return s && (s->flags & SET_HOSTS) && b->kind == ADDR_HOST && (p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL);
}

/* What comes in by an uplink, as it comes. Returns 1 = denied, by scratch.rule. */
static __always_inline int host_denies_arrival(struct __sk_buff *skb, struct scratch *w, const struct settings *s)
{
	const struct pkt *p = &w->pkt;

	if (!(s->flags & SET_HOSTS) || p->hook != HOOK_FROM_UPLINK)
		return 0;
	w->judged.src = p->key.saddr;
	w->judged.dst = p->key.daddr;
	policy_ports(w, p->key.proto, p->key.sport, p->key.dport);
	return host_denies(skb->ifindex, HOST_PRE_DNAT, p->key.proto, w->judged.dport);
}

/* Judges the flow that begins, scratch.fwd, whose way is known. Returns 0, the reason to drop, or -1: the packet passes without a
 * flow. A connection of the host that is older than the endpoint may show itself by a packet of either direction. */
__noinline int host_begin(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	__u32 here, there;
	__be16 dport;
	struct pkt *p;
	__u8 log;
	int ret;

	if (!w || !s)
		return DROP_HOST_INGRESS;
	p = &w->pkt;
	here = host_here(skb, p);
	there = host_there(skb, p, &w->fwd, s);
	w->judged.src = p->key.saddr;
	w->judged.dst = w->fwd.flags & FLOW_HAND_ON ? w->fwd.backend.addr : w->fwd.daddr;
	dport = w->fwd.flags & FLOW_HAND_ON ? w->fwd.backend.port : w->fwd.dport;
	ret = host_flow(here, there, p->key.proto, p->key.sport, dport);
	if (w->rule)
		w->fwd.rule = w->rule;
	if (ret && (here || there) && w->fwd.action == ACT_PASS && !w->fwd.svc.proto && parse_connects(p) &&
	    (p->tcp & (TCP_SYN | TCP_ACK)) != TCP_SYN) {
		log = w->judged.log;
		w->judged.src = p->key.daddr;
		w->judged.dst = p->key.saddr;
		if (!host_flow(there, here, p->key.proto, p->key.dport, p->key.sport))
			return -1;
		/* The event is about the packet's own direction. */
		w->judged.ends &= ~(EVENT_HOST_IN | EVENT_HOST_OUT);
		w->judged.host_rules[0] = w->judged.host_rules[1] = 0;
		w->judged.src = p->key.saddr;
		w->judged.dst = p->key.daddr;
		host_flow(here, there, p->key.proto, p->key.sport, dport);
		w->judged.log = log;
	}
	return ret;
}

/* Judges the entry f of a flow again, for the packet at hand. */
static __always_inline int host_again(struct __sk_buff *skb, const struct pkt *p, const struct flow_value *f, struct scratch *w,
				      const struct settings *s)
{
	__u32 here = host_here(skb, p), there = host_there(skb, p, f, s);
	__be16 dport;

	if (f->flags & FLOW_REPLY) {
		w->judged.src = f->daddr;
		w->judged.dst = p->key.saddr;
		dport = p->key.sport;
	} else {
		w->judged.src = p->key.saddr;
		w->judged.dst = f->daddr;
		dport = policy_other_port(p, f);
	}
	if (f->flags & FLOW_HAND_ON) {
		w->judged.dst = f->backend.addr;
		dport = f->backend.port;
	}
	if (f->flags & FLOW_REPLY)
		return host_flow(there, here, p->key.proto, policy_other_port(p, f), dport);
	return host_flow(here, there, p->key.proto, p->key.sport, dport);
}

#endif
