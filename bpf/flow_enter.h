/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow_enter.h: a flow that begins goes into the tables: its port, the way back, an entry for each
 * direction. */
#ifndef WEIR_FLOW_ENTER_H
#define WEIR_FLOW_ENTER_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "clock.h"
#include "parse.h"
#include "route.h"
#include "dsr.h"
#include "quota.h"
#include "source.h"
#include "reasons.h"
#include "flow_table.h"
#include "flow_port.h"
#include "flow_end.h"
#include "account.h"
#include "flow_balance.h"

/* The way back of a new flow. */
static __always_inline int flow_way_back(struct __sk_buff *skb, struct pkt *p, struct settings *s,
					 struct scratch *w)
{
	int via = !addr_is_none(&w->balance.via);
	struct addr_value *a;

	if (p->hook == HOOK_TO_WORKLOAD || p->hook == HOOK_TO_UPLINK) {
		w->rev.action = ACT_PASS;
		return DROP_NONE;
	}
	/* The stack routes the answers of the host; but those that it routes to weir0 need the way from
	 * there. */
	if (w->own && !route_find(&p->key.saddr)) {
		a = bpf_map_lookup_elem(&weir_addrs, &p->key.saddr);
		if (!a || a->kind != ADDR_POD) {
			w->rev.action = ACT_PASS;
			return DROP_NONE;
		}
	}
	if (w->fwd.flags & FLOW_DSR) {
		if (!dsr_refused(&p->key.saddr) && !dsr_failed(p, s)) {
			w->rev.flags |= FLOW_DSR;
			return route_fib(skb, &p->key.daddr, &p->key.saddr, &w->rev);
		}
		w->fwd.flags &= ~FLOW_DSR;
	}
	if (via) {
		a = bpf_map_lookup_elem(&weir_addrs, &w->balance.via);
		w->rev.flags |= FLOW_VIA_NODE;
		return route_node(skb, &w->balance.via,
				  a && (a->flags & ADDR_SAME_LINK) ? BY_LINK : BY_TUNNEL, &w->rev);
	}
	if (!addr_is_none(&p->tunnel_src)) {
		a = bpf_map_lookup_elem(&weir_addrs, &p->key.saddr);
		if (a && a->kind == ADDR_NODE) {
			w->rev.flags |= FLOW_VIA_NODE;
			return route_node(skb, &p->tunnel_src, BY_TUNNEL, &w->rev);
		}
	}
	if (w->source.known == SOURCE_OUTSIDE)
		return route_fib(skb, &p->key.daddr, &p->key.saddr, &w->rev);
	return route_to(skb, &p->key.daddr, &p->key.saddr, &w->rev);
}

enum flow_port {
	PORT_MUST = 1, /* the source port becomes one of the node's range */
	PORT_MAY = 2, /* where none of these is free it stays */
};

/* Notes in a new flow whether its packets are changed. */
static __always_inline void flow_rewrites(struct scratch *w, const struct pkt *p)
{
	if (addr_same(&w->fwd.saddr, &p->key.saddr) && addr_same(&w->fwd.daddr, &p->key.daddr) &&
	    w->fwd.sport == p->key.sport && w->fwd.dport == p->key.dport)
		return;
	w->fwd.flags |= FLOW_REWRITE;
	w->rev.flags |= FLOW_REWRITE;
}

/* Enters the reply key, which was free when the port was chosen. Returns -1 when it went to another
 * flow since: two that share a source port may begin on two CPUs at once, and the answers of both
 * would be taken for those of one. */
static __always_inline int flow_claim(struct scratch *w, void *table)
{
	struct flow_value *gone;

	if (table != &weir_flows && w->port.stale) {
		gone = account_interval ? bpf_map_lookup_elem(&weir_flows, &w->rkey) : NULL;
		if (gone)
			account_gone(&w->rkey, gone);
		bpf_map_delete_elem(&weir_flows, &w->rkey);
	}
	if (!bpf_map_update_elem(table, &w->rkey, &w->rev, BPF_NOEXIST))
		return 0;
	if (!flow_reply_free(clock_now()))
		return -1;
	/* An ended flow had it, or this one has it. */
	gone = account_interval ? bpf_map_lookup_elem(table, &w->rkey) : NULL;
	if (gone)
		account_gone(&w->rkey, gone);
	bpf_map_update_elem(table, &w->rkey, &w->rev, BPF_ANY);
	return 0;
}

/* Enters both keys of a new flow, with another source port where the chosen one is gone. Returns 0
 * or the reason to drop. */
__noinline int flow_write(int established)
{
	struct scratch *w = scratch_get();
	void *table = established ? (void *)&weir_flows : (void *)&weir_flows_new;
	struct flow_value *gone;
	int ret;

	if (!w)
		return DROP_INTERNAL;
	for (int i = 0; flow_claim(w, table); i++) {
		if (i == CLAIM_TRIES)
			return DROP_NO_PORT;
		ret = flow_pick_port(0);
		if (ret)
			return ret;
		flow_rewrites(w, &w->pkt);
	}
	gone = account_interval ? bpf_map_lookup_elem(&weir_flows_new, &w->pkt.key) : NULL;
	if (gone)
		account_gone(&w->pkt.key, gone);
	bpf_map_update_elem(table, &w->pkt.key, &w->fwd, BPF_ANY);
	return DROP_NONE;
}

/* Ends what flow_begin began, once it is known where the packet goes: ports, the way back, the
 * entries. Returns 0 or the reason to drop. */
__noinline int flow_enter(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	int ret, from_outside, hand_on;
	struct pkt *p;

	if (!w || !s)
		return DROP_INTERNAL;
	p = &w->pkt;
	from_outside = p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL;
	hand_on = !addr_is_none(&w->balance.hand_on);
	ret = flow_pick_port(w->port.change & PORT_MUST);
	if (ret && (w->port.change & PORT_MAY)) {
		w->fwd.sport = p->key.sport;
		ret = flow_pick_port(0);
	}
	if (ret)
		return ret;
	flow_rewrites(w, p);

	w->rev.flags |= FLOW_REPLY;
	if (!addr_is_none(&w->balance.via) && !addr_is_none(&p->tunnel_src))
		w->rev.flags |= FLOW_CLAMP;
	w->rev.saddr = p->key.daddr;
	w->rev.daddr = p->key.saddr;
	w->rev.sport = p->key.dport;
	w->rev.dport = p->key.sport;
	w->rev.rule = w->fwd.rule;
	*flow_svc(&w->rev) = *flow_svc(&w->fwd);
	*flow_backend(&w->rev) = *flow_backend(&w->fwd);
	ret = flow_way_back(skb, p, s, w);
	if (ret)
		return ret;
	if (p->hook == HOOK_FROM_WORKLOAD && quota_spent(s->flows_each, s->flows_most)) {
		w->fwd.rule = 0;
		return DROP_SHARE;
	}
	if ((w->balance.maglev & MAGLEV_WATCH) && from_outside && !hand_on &&
	    !(w->fwd.flags & FLOW_DSR) && (flow_is_local(&w->fwd) || w->fwd.action == ACT_PASS))
		flow_watch(&w->fwd, &w->balance.via);
	if (!p->missed)
		flow_forget(p, w);
	/* What the node's own processes ask of Services cannot be forged from outside; and the answers
	 * are found by the one look-up that traffic of the host is spared no less. */
	return flow_write(p->hook == HOOK_TO_UPLINK &&
			  (flow_svc(&w->fwd)->proto || !(s->flags & SET_HOSTS)));
}

#endif
