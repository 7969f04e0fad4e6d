/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* events.h: what policy said of a flow, told to user space. Never on the fast path. */
#ifndef WEIR_EVENTS_H
#define WEIR_EVENTS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "policy.h"
#include "host_policy.h"

/* The least time between two events of a CPU in the long run, and how many may come at once; of
 * denied flows, and again of all others. */
const volatile __u64 event_interval_ns = 1000000;
const volatile __u64 event_burst = 256;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20); /* bytes */
} weir_events SEC(".maps");

/* Per CPU: the times until which the rates are used up: of denied flows, of others. The first is of
 * the CPU, the others are of pods, by the last byte of their addresses: one pod has no more than a
 * part of the rate, so that what it is denied does not keep others' events away. */
#define EVENT_PODS 256
#define EVENT_PART 8 /* of the rate in the long run, ... */
#define EVENT_BURST_PART 4 /* ... and of what may come at once */
struct event_rate {
	__u64 used[2];
};
MAP(weir_event_rate, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct event_rate, 1 + EVENT_PODS, 0);

static __always_inline void event_count(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&weir_counts, &which);

	if (n)
		(*n)++;
}

/* Is an event left in one of this CPU's rates? */
static __always_inline int event_left(__u32 which, int denied, __u64 now, __u64 interval,
				      __u64 burst)
{
	struct event_rate *r = bpf_map_lookup_elem(&weir_event_rate, &which);
	__u64 first = now - burst * interval, *used;

	if (!r)
		return 0;
	used = denied ? &r->used[0] : &r->used[1];
	if ((__s64)(*used - first) < 0)
		*used = first;
	if ((__s64)(now - *used - interval) < 0)
		return 0;
	*used += interval;
	return 1;
}

/* Which rate is that of the pod that the event is about: of who sends, where that is a pod of this
 * node. */
static __always_inline __u32 event_pod(const struct scratch *w)
{
	const ip_addr *a = w->policy.ends & EVENT_EGRESS ? &w->policy.src : &w->policy.dst;

	return 1 + (bpf_ntohl(a->w[ADDR_WORDS - 1]) & (EVENT_PODS - 1));
}

/* Is an event left for this pod, and in the rate of this CPU? */
static __always_inline int event_take(const struct scratch *w, int denied)
{
	__u64 now = bpf_ktime_get_ns();

	return event_left(event_pod(w), denied, now, event_interval_ns * EVENT_PART,
			  event_burst / EVENT_BURST_PART) &&
	       event_left(0, denied, now, event_interval_ns, event_burst);
}

/* Does the egress set that a pod would have allow scratch.policy? The name by which the one in
 * force does stays noted. */
static __always_inline int event_egress(struct scratch *w, const struct addr_value *a, __u64 set)
{
	__u64 named = w->policy.named;
	int allowed = policy_verdict(set, w->policy.proto, w->policy.dport);

	if (!allowed && (a->flags & ADDR_STAGED_NAMES)) {
		allowed = names_verdict(a->ifindex, set, w->policy.proto, w->policy.dport);
		w->policy.named = named;
	}
	return allowed;
}

/* What the staged policies of both ends would have said of scratch.policy. */
__noinline int event_staged(void)
{
	struct scratch *w = scratch_get();
	struct addr_value *a, *b;
	struct staged_value *v;

	if (!w)
		return 0;
	w->policy.staged = 0;
	w->policy.staged_rules[0] = w->policy.staged_rules[1] = 0;
	a = bpf_map_lookup_elem(&weir_addrs, &w->policy.src);
	b = bpf_map_lookup_elem(&weir_addrs, &w->policy.dst);
	if ((w->policy.ends & EVENT_EGRESS) && a && (a->flags & ADDR_STAGED)) {
		v = bpf_map_lookup_elem(&weir_staged, &w->policy.src);
		if (v) {
			w->policy.staged |= STAGED_EGRESS;
			w->policy.rule = v->egress_rule;
			w->policy.peer = w->policy.dst;
			if (v->egress_set && !event_egress(w, a, v->egress_set))
				w->policy.staged |= STAGED_EGRESS_DENIED;
			w->policy.staged_rules[0] = w->policy.rule;
		}
	}
	if ((w->policy.ends & EVENT_INGRESS) && b && (b->flags & ADDR_STAGED) &&
	    !(a && a->kind == ADDR_HOST)) {
		v = bpf_map_lookup_elem(&weir_staged, &w->policy.dst);
		if (v) {
			w->policy.staged |= STAGED_INGRESS;
			w->policy.rule = v->ingress_rule;
			w->policy.peer = w->policy.src;
			if (v->ingress_set &&
			    !policy_verdict(v->ingress_set, w->policy.proto, w->policy.dport))
				w->policy.staged |= STAGED_INGRESS_DENIED;
			w->policy.staged_rules[1] = w->policy.rule;
		}
	}
	return 0;
}

/* What the staged policies of a host endpoint would have said of scratch.policy where it was asked,
 * by the place in policy.host_asked. Where it would have been denied before Services, nothing more
 * is asked. */
__noinline int event_staged_host(__u32 slot)
{
	struct host_key key = { .family = WEIR_FAMILY };
	struct scratch *w = scratch_get();
	struct host_value *h;
	struct host_side *side;
	__u32 out = slot == 1;
	__be16 dport;
	__u8 denied;
	__u64 at;

	if (!w)
		return 0;
	at = w->policy.host_asked[slot & 3];
	denied = out ? STAGED_HOST_OUT_DENIED : STAGED_HOST_IN_DENIED;
	if (!at || (w->policy.staged & denied))
		return 0;
	key.ifindex = w->policy.host_at[slot & 3];
	h = bpf_map_lookup_elem(&weir_hosts_staged, &key);
	if (!h)
		return 0;
	at--;
	OPAQUE(at);
	side = &h->sides[at & (HOST_SETS - 1)];
	w->policy.staged |= out ? STAGED_HOST_OUT : STAGED_HOST_IN;
	if (!side->set)
		return 0;
	dport = w->policy.dport;
	if (slot == HOST_SLOT_PRE_DNAT)
		dport = policy_port(w->pkt.key.proto, w->pkt.key.sport, w->pkt.key.dport);
	w->policy.peer = out ? w->policy.dst : w->policy.src;
	w->policy.rule = side->rule;
	if (!policy_verdict(side->set, w->policy.proto, dport))
		w->policy.staged |= denied;
	w->policy.staged_host_rules[out] = w->policy.rule;
	return 0;
}

/* A function of its own, so that struct event is among the object's types. */
static __noinline int event_fill(struct event *e, const struct scratch *w, __u32 reason,
				 __u32 flags)
{
	if (!e || !w)
		return 0;
	addr_widen(e->saddr, &w->policy.src);
	addr_widen(e->daddr, &w->policy.dst);
	addr_widen(e->svc_addr, &flow_svc(&w->fwd)->addr);
	e->svc_port = flow_svc(&w->fwd)->port;
	e->svc_proto = flow_svc(&w->fwd)->proto;
	e->sport = w->policy.sport;
	e->dport = w->policy.dport;
	e->proto = w->policy.proto;
	e->family = WEIR_FAMILY;
	e->hook = w->pkt.hook;
	e->flags = flags | w->policy.ends | (w->policy.about == EVALUATED_AGAIN ? EVENT_AGAIN : 0);
	e->staged = w->policy.staged;
	e->reason = reason;
	e->rules[0] = w->policy.rules[0];
	e->rules[1] = w->policy.rules[1];
	e->staged_rules[0] = w->policy.staged_rules[0];
	e->staged_rules[1] = w->policy.staged_rules[1];
	e->host_rules[0] = w->policy.host_rules[0];
	e->host_rules[1] = w->policy.host_rules[1];
	e->staged_host_rules[0] = w->policy.staged_host_rules[0];
	e->staged_host_rules[1] = w->policy.staged_host_rules[1];
	return 0;
}

/* Is it policy that drops for this reason? */
static __always_inline int event_denies(__u32 reason)
{
	return reason == DROP_POLICY_EGRESS || reason == DROP_POLICY_INGRESS ||
	       (reason >= DROP_HOST_INGRESS && reason <= DROP_UNTRACKED_EGRESS);
}

/* Is it a limit of a pod's? */
static __always_inline int event_limits(__u32 reason)
{
	return reason >= DROP_PACKET_RATE && reason <= DROP_BANDWIDTH;
}

/* Writes the event of scratch.policy, at a hook of an interface; the packet was dropped for reason,
 * 0 = it goes on. */
__noinline int event_put(__u32 ifindex, __u32 reason)
{
	int denied = event_denies(reason) || event_limits(reason);
	struct scratch *w = scratch_get();
	struct event *e;
	__u32 flags;

	if (!w)
		return 0;
	if (!event_take(w, denied)) {
		event_count(COUNT_EVENTS_LIMITED);
		return 0;
	}
	flags = (denied ? 0 : EVENT_ALLOWED) | (w->policy.log ? EVENT_LOG : 0);
	event_staged(); /* its rules ask for no log */
	w->policy.staged_host_rules[0] = w->policy.staged_host_rules[1] = 0;
	event_staged_host(HOST_SLOT_PRE_DNAT);
	event_staged_host(0);
	event_staged_host(1);
	e = bpf_ringbuf_reserve(&weir_events, sizeof(*e), 0);
	if (!e) {
		event_count(COUNT_EVENTS_LOST);
		return 0;
	}
	event_fill(e, w, reason, flags);
	e->ifindex = ifindex;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* Reports what was evaluated, if anything was and somebody wants to know: ret as of flow_begin and
 * flow_revalidate. */
static __always_inline void event_report(struct __sk_buff *skb, const struct settings *s,
					 const struct scratch *w, int ret)
{
	if (!w->policy.about || !w->policy.ends || ret < 0)
		return;
	if ((s->flags & SET_EVENTS) || w->policy.log || event_denies(ret))
		event_put(skb->ifindex, ret);
}

#endif
