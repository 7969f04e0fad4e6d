/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* host_policy.h: what host endpoints evaluate. docs/design/datapath.md, "Host endpoints", says what
 * and why. Nothing of this is called while SET_HOSTS and SET_TO_HOST_DROP are off. */
#ifndef WEIR_HOST_POLICY_H
#define WEIR_HOST_POLICY_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "policy.h"
#include "route.h"
#include "reasons.h"

/* Which ends of the flow scratch.policy are the node itself. */
enum host_own {
	HOST_OWN_SRC = 1,
	HOST_OWN_DST = 2,
};

/* What the kernel's routes say of one end of the flow scratch.policy, enum host_own: the interface
 * by which they lead on, -1 by one that is not told, 0 = the node keeps what is for it: it is the
 * node's own, or nobody's. */
__noinline int host_leads(struct __sk_buff *skb, __u32 which)
{
	struct bpf_fib_lookup fib = {};
	struct scratch *w = scratch_get();
	long ret;

	if (!w)
		return 0;
	if (which == HOST_OWN_SRC)
		ret = route_ask(skb, &fib, &w->policy.dst, &w->policy.src, 0);
	else
		ret = route_ask(skb, &fib, &w->policy.src, &w->policy.dst, 0);
	if (ret == BPF_FIB_LKUP_RET_UNSUPP_LWT)
		return -1;
	if (ret == BPF_FIB_LKUP_RET_SUCCESS || ret == BPF_FIB_LKUP_RET_NO_NEIGH ||
	    ret == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		/* Without a length to check it is this packet that is too long for the way. */
		return fib.ifindex;
	return 0;
}

static __always_inline __u8 host_kind(const ip_addr *addr)
{
	struct addr_value *a = bpf_map_lookup_elem(&weir_addrs, addr);

	return a ? a->kind : ADDR_NONE;
}

/* Finds out which ends of the flow scratch.policy are the node, and by which interface one leaves
 * that the stack sends on; its original direction comes into the node by the interface `in` and
 * leaves it by `out`, 0 = by none that is known. Returns `out`. */
__noinline int host_passage(struct __sk_buff *skb, __u32 in, __u32 out)
{
	struct scratch *w = scratch_get();
	__u8 own = 0, kind;
	int to;

	if (!w)
		return out;
	kind = host_kind(&w->policy.src);
	if (kind == ADDR_HOST ||
	    (kind != ADDR_ENDPOINT && !in && out && !host_leads(skb, HOST_OWN_SRC)))
		own = HOST_OWN_SRC;
	kind = host_kind(&w->policy.dst);
	if (kind == ADDR_HOST) {
		own |= HOST_OWN_DST;
	} else if (in && !out && kind != ADDR_ENDPOINT) {
		to = host_leads(skb, HOST_OWN_DST);
		if (!to)
			own |= HOST_OWN_DST;
		else if (bpf_map_lookup_elem(&weir_uplinks, &to))
			out = to;
	}
	w->policy.own = own;
	return out;
}

#define HOST_SLOT_PRE_DNAT 2 /* of policy.host_asked */

/* Does a set of the host endpoint of an interface deny the flow scratch.policy? scratch.policy.rule
 * becomes the rule that decided, when one was asked. */
__noinline int host_denies(__u32 ifindex, __u32 which, __u8 proto, __be16 dport)
{
	struct host_key key = { .ifindex = ifindex, .family = WEIR_FAMILY };
	struct scratch *w = scratch_get();
	struct host_value *h;
	struct host_side *side;
	__u64 at = which;
	__u32 slot;
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
	if (!side->set && !(side->flags & HOST_STAGED))
		return 0;
	w->policy.ends |= which & HOST_EGRESS ? EVENT_HOST_OUT : EVENT_HOST_IN;
	if (side->flags & HOST_STAGED) {
		slot = which == HOST_PRE_DNAT ? HOST_SLOT_PRE_DNAT : which & HOST_EGRESS;
		w->policy.host_asked[slot & 3] = which + 1;
		w->policy.host_at[slot & 3] = key.ifindex;
	}
	if (!side->set)
		return 0;
	w->policy.rule = side->rule;
	w->policy.peer = which & HOST_EGRESS ? w->policy.dst : w->policy.src;
	denied = !policy_verdict(side->set, proto, dport);
	w->policy.host_rules[which & HOST_EGRESS] = w->policy.rule;
	return denied;
}

/* Evaluates the flow scratch.policy, of which host_passage has looked at the ends. Its original
 * direction comes into the node by the interface `in` and leaves it by `out`; 0 = it begins or ends
 * in the node. Returns 0 or the reason to drop; scratch.policy.rule is the rule that decided last,
 * 0 = none. */
__noinline int host_flow(__u32 in, __u32 out, __u8 proto, __be16 sport, __be16 dport)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct addr_value *a, *b;

	if (!w || !s)
		return DROP_INTERNAL;
	w->policy.rule = 0;
	policy_ports(w, proto, sport, dport);
	dport = w->policy.dport;
	if (!in && !out) {
		a = bpf_map_lookup_elem(&weir_addrs, &w->policy.src);
		b = bpf_map_lookup_elem(&weir_addrs, &w->policy.dst);
		if (!a || a->kind != ADDR_ENDPOINT || !b || b->kind != ADDR_HOST)
			return DROP_NONE;
		if (s->flags & SET_TO_HOST_DROP)
			return DROP_TO_HOST;
		return (s->flags & SET_TO_HOST_RETURN) &&
				       host_denies(0, HOST_INGRESS, proto, dport) ?
			       DROP_HOST_INGRESS :
			       DROP_NONE;
	}
	if (in &&
	    host_denies(in, w->policy.own & HOST_OWN_DST ? HOST_INGRESS : HOST_FORWARD_INGRESS,
			proto, dport))
		return DROP_HOST_INGRESS;
	if (out &&
	    host_denies(out, w->policy.own & HOST_OWN_SRC ? HOST_EGRESS : HOST_FORWARD_EGRESS,
			proto, dport))
		return DROP_HOST_EGRESS;
	return DROP_NONE;
}

static __always_inline int host_on(const struct settings *s)
{
	return s->flags & (SET_HOSTS | SET_TO_HOST_DROP);
}

/* The interface by which the packet comes into the node; 0 = it begins here. */
static __always_inline __u32 host_here(const struct __sk_buff *skb, const struct pkt *p,
				       const struct settings *s)
{
	if (p->hook == HOOK_FROM_TUNNEL)
		return WEIR_FAMILY == 4 && skb->ifindex != s->tunnel_ifindex ? IPIP_IFINDEX :
									       skb->ifindex;
	return p->hook == HOOK_FROM_UPLINK ? skb->ifindex : 0;
}

/* The interface by which it leaves the node, as the flow entry f says; 0 = it ends here. */
static __always_inline __u32 host_there(const struct __sk_buff *skb, const struct pkt *p,
					const struct flow_value *f, const struct settings *s)
{
	if (f->action == ACT_NEIGH)
		return f->ifindex;
	if (f->action == ACT_TUNNEL)
		return ipip_leads(f) ? IPIP_IFINDEX : s->tunnel_ifindex;
	if (f->action != ACT_PASS)
		return 0;
	/* Where the stack sent the flow on, answers leave by where it came in. */
	if (f->flags & FLOW_REPLY && f->ifindex)
		return f->ifindex;
	return p->hook == HOOK_TO_UPLINK && skb->ifindex != s->host_ifindex ? skb->ifindex : 0;
}

/* Is the packet of a flow that the stack sends on, where it leaves? It was evaluated where it came
 * in. */
static __always_inline int host_passes(const struct pkt *p, const struct flow_value *f)
{
	return p->hook == HOOK_TO_UPLINK && f->action == ACT_PASS && f->ifindex;
}

/* The tunnel's outer packets between nodes are not for host endpoints. a and b are what is
 * known of both ends. */
static __always_inline int host_is_tunnel(const struct pkt *p, const struct settings *s,
					  const struct addr_value *a, const struct addr_value *b)
{
	return ((p->l4 == L4_UDP && p->key.dport == s->tunnel_port) ||
		(WEIR_FAMILY == 4 && p->key.proto == IPPROTO_IPIP && (s->flags & SET_IPIP))) &&
	       a && b &&
	       ((a->kind == ADDR_NODE && b->kind == ADDR_HOST) ||
		(a->kind == ADDR_HOST && b->kind == ADDR_NODE));
}

/* Would a packet of scratch.policy's addresses reach the host past its endpoints? What hides from
 * policy must not. Nor must what scratch.pkt.hidden hides, with or without endpoints: the stack may
 * follow a routing header (seg6_enabled), or unpack what is behind it, to a pod, past what is asked
 * of its source. */
__noinline int host_guards(struct __sk_buff *skb, __u32 hook)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	__u8 kind;

	if (!s || !w || (hook != HOOK_FROM_UPLINK && hook != HOOK_FROM_TUNNEL))
		return 0;
	if (!(s->flags & SET_HOSTS) && !(WEIR_FAMILY == 6 && w->pkt.hidden))
		return 0;
	kind = host_kind(&w->policy.dst);
	return kind == ADDR_HOST || (kind != ADDR_ENDPOINT && !host_leads(skb, HOST_OWN_DST));
}

static __always_inline int host_is_guarded(struct __sk_buff *skb, const struct pkt *p)
{
	struct scratch *w = scratch_get();

	if (!w)
		return 1;
	w->policy.src = p->saddr;
	w->policy.dst = p->daddr;
	return host_guards(skb, p->hook);
}

/* What comes in by an uplink, as it comes. Returns 0 or the reason to drop, by scratch.fwd.rule. */
__noinline int host_arrival(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	const struct pkt *p;

	if (!w)
		return DROP_INTERNAL;
	p = &w->pkt;
	/* An error was allowed by itself; what it quotes was not. */
	if (p->hook != HOOK_FROM_UPLINK || (p->untracked == UNTRACKED_ALLOWED && p->l4 != L4_ERROR))
		return DROP_NONE;
	w->policy.src = p->key.saddr;
	w->policy.dst = p->key.daddr;
	policy_ports(w, p->key.proto, p->key.sport, p->key.dport);
	if (!host_denies(skb->ifindex, HOST_PRE_DNAT, p->key.proto, w->policy.dport))
		return DROP_NONE;
	w->fwd.rule = w->policy.rule;
	return DROP_HOST_PRE_DNAT;
}

/* The same for a flow that begins: enum stage. STAGE_PASS = it is none of host endpoints. */
__noinline int host_arrives(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();

	if (!s || !w)
		return DROP_INTERNAL;
	if (host_is_tunnel(&w->pkt, s, bpf_map_lookup_elem(&weir_addrs, &w->pkt.key.saddr),
			   bpf_map_lookup_elem(&weir_addrs, &w->pkt.key.daddr)))
		return STAGE_PASS;
	return host_arrival(skb);
}

/* Evaluates the flow that begins, scratch.fwd, whose route is known: enum stage. A connection of
 * the host that is older than the endpoint may show itself by a packet of either direction, and
 * passes without a flow (STAGE_PASS). */
__noinline int host_begin(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	__u32 here, there;
	__be16 dport;
	struct pkt *p;
	__u8 log, own, ends;
	__u32 in, out;
	int ret;

	if (!w || !s)
		return DROP_INTERNAL;
	p = &w->pkt;
	here = host_here(skb, p, s);
	there = host_there(skb, p, &w->fwd, s);
	w->policy.src = p->key.saddr;
	w->policy.dst = w->fwd.flags & FLOW_HAND_ON ? flow_backend(&w->fwd)->addr : w->fwd.daddr;
	dport = w->fwd.flags & FLOW_HAND_ON ? flow_backend(&w->fwd)->port : w->fwd.dport;
	there = host_passage(skb, here, there);
	if (here && there && w->fwd.action == ACT_PASS) {
		w->fwd.ifindex = there;
		w->rev.ifindex = here;
	}
	ret = host_flow(here, there, p->key.proto, p->key.sport, dport);
	if (ret || w->policy.rule) /* what a pod's policy said before is not why it is dropped */
		w->fwd.rule = w->policy.rule;
	if (ret && (here || there) && w->fwd.action == ACT_PASS && !flow_svc(&w->fwd)->proto &&
	    parse_connects(p) && (p->tcp & (TCP_SYN | TCP_ACK)) != TCP_SYN) {
		log = w->policy.log;
		own = w->policy.own;
		ends = w->policy.ends;
		in = w->policy.host_rules[0];
		out = w->policy.host_rules[1];
		w->policy.src = p->key.daddr;
		w->policy.dst = p->key.saddr;
		w->policy.own = (own & HOST_OWN_SRC ? HOST_OWN_DST : 0) |
				(own & HOST_OWN_DST ? HOST_OWN_SRC : 0);
		if (!host_flow(there, here, p->key.proto, p->key.dport, p->key.sport))
			return STAGE_PASS;
		/* The event is about the packet's own direction, what was said before its destination
		 * changed among it. */
		w->policy.host_asked[0] = w->policy.host_asked[1] = 0;
		w->policy.src = p->key.saddr;
		w->policy.dst = p->key.daddr;
		w->policy.own = own;
		host_flow(here, there, p->key.proto, p->key.sport, dport);
		w->policy.log = log;
		w->policy.ends = ends;
		w->policy.host_rules[0] = in;
		w->policy.host_rules[1] = out;
	}
	/* What the stack answers to whatever reaches it fills no table. */
	return !ret && w->own && (p->tcp & TCP_RST) ? STAGE_PASS : ret;
}

/* Evaluates an entry of a flow again, scratch.rev, for the packet at hand, and completes it. */
__noinline int host_again(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	__u32 here, there, in, out;
	__be16 sport, dport;
	int reply;

	if (!w || !s)
		return DROP_INTERNAL;
	here = host_here(skb, &w->pkt, s);
	there = host_there(skb, &w->pkt, &w->rev, s);
	reply = w->rev.flags & FLOW_REPLY;
	if (reply) {
		w->policy.src = w->rev.daddr;
		w->policy.dst = w->pkt.key.saddr;
		sport = policy_other_port(&w->pkt, &w->rev);
		dport = w->pkt.key.sport;
		in = there;
		out = here;
	} else {
		w->policy.src = w->pkt.key.saddr;
		w->policy.dst = w->rev.daddr;
		sport = w->pkt.key.sport;
		dport = policy_other_port(&w->pkt, &w->rev);
		in = here;
		out = there;
	}
	if (w->rev.flags & FLOW_HAND_ON) {
		w->policy.dst = flow_backend(&w->rev)->addr;
		dport = flow_backend(&w->rev)->port;
	}
	out = host_passage(skb, in, out);
	if (!reply && here && w->rev.action == ACT_PASS)
		w->rev.ifindex = out;
	return host_flow(in, out, w->pkt.key.proto, sport, dport);
}

#endif
