/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow_revalidate.h: a flow that was evaluated in an older epoch is evaluated again. */
#ifndef WEIR_FLOW_REVALIDATE_H
#define WEIR_FLOW_REVALIDATE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "parse.h"
#include "policy.h"
#include "host_policy.h"
#include "lb.h"
#include "route.h"
#include "names.h"
#include "tunnel.h"
#include "source.h"
#include "granted.h"
#include "egress.h"
#include "floating.h"
#include "reasons.h"
#include "flow_table.h"
#include "account.h"

/* Evaluates a flow of an older epoch again. Returns enum stage: STAGE_GO_ON, STAGE_ANEW, or a drop
 * reason (w->fwd.rule). */
static __noinline int flow_revalidate(struct __sk_buff *skb, struct pkt *p, struct flow_value *f)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct flow_value *way;
	__u32 rule = 0, epoch;
	int ret;

	if (!w || !s || !p || !f)
		return DROP_INTERNAL;
	/* What changes while this evaluates is evaluated by the next packet. */
	epoch = *(volatile __u32 *)&s->epoch;
	if (flow_svc(f)->proto && flow_svc(f)->proto != IPPROTO_TCP &&
	    !lb_lists(flow_svc(f), flow_backend(f)))
		return STAGE_ANEW;
	if ((s->flags & SET_FLOATING) && floating_left(p, f))
		return STAGE_ANEW;
	if (f->state & STATE_GATEWAY || (egress_enabled && (s->flags & SET_GATEWAYS))) {
		if (!egress_enabled || egress_differs(f))
			return STAGE_ANEW;
	}
	w->fwd.rule = 0;
	*flow_svc(&w->fwd) = *flow_svc(f);
	w->policy.about = EVALUATED_AGAIN;
	w->policy.granted = f->from == FROM_GRANTED;
	if (w->policy.granted && !granted_to(skb->ifindex))
		return DROP_SPOOFED;
	if (!(f->flags & FLOW_REPLY) && tunnel_by_service(p, s, f)) {
		w->fwd.rule = f->rule;
		return DROP_TUNNEL_FROM_POD;
	}
	if ((s->flags & SET_HOSTS) && !(f->flags & FLOW_REPLY)) {
		ret = host_arrival(skb);
		if (ret)
			return ret;
	}
	w->policy.named = flow_named(f);
	if (!(f->flags & FLOW_HAND_ON)) {
		if (f->flags & FLOW_REPLY)
			ret = policy_evaluate(w, &f->daddr, &p->key.saddr, p->key.proto,
					      policy_other_port(p, f), p->key.sport);
		else
			ret = policy_evaluate(w, &p->key.saddr, &f->daddr, p->key.proto,
					      p->key.sport, policy_other_port(p, f));
		rule = w->policy.rule;
		w->fwd.rule = rule;
		if (ret)
			return ret;
		if (w->policy.named)
			flow_name(f, w->policy.named);
	}
	if (!(f->flags & (FLOW_VIA_NODE | FLOW_HAND_ON | FLOW_DSR)) && f->action != ACT_PASS &&
	    p->hook != HOOK_TO_WORKLOAD) {
		way = &w->rev;
		flow_clear(way);
		ret = route_to(skb, &f->saddr, &f->daddr, way);
		if (ret) {
			w->fwd.rule = 0;
			return ret;
		}
		if (f->flags & FLOW_REPLY)
			names_lead(way, f->sport);
		f->action = way->action;
		f->mtu = way->mtu;
		f->ifindex = way->ifindex;
		if (!(f->state & STATE_WATCHED) || way->action == ACT_NEIGH ||
		    way->action == ACT_TUNNEL) {
			f->nexthop = way->nexthop;
			f->state &= ~STATE_WATCHED;
		}
		__builtin_memcpy(f->mac, way->mac, 6);
	} else {
		route_kept(s, f);
	}
	if (host_on(s)) {
		flow_copy(&w->rev, f);
		ret = host_again(skb);
		f->ifindex = w->rev.ifindex;
		if (w->policy.rule)
			rule = w->policy.rule;
		if (ret) {
			w->fwd.rule = w->policy.rule;
			return ret;
		}
	}
	if (rule)
		f->rule = rule;
	account_again(w, f);
	f->epoch = epoch;
	return DROP_NONE;
}

#endif
