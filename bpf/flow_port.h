/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow_port.h: source ports: the reply key of a new flow must be free, and a pod has its share of
 * ports (snat.h). */
#ifndef WEIR_FLOW_PORT_H
#define WEIR_FLOW_PORT_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "clock.h"
#include "parse.h"
#include "quota.h"
#include "snat.h"
#include "reasons.h"
#include "flow_table.h"
#include "account.h"

/* May scratch.fwd take the reply key scratch.rkey, because it is free, or its own already?
 * scratch.port.own says whether it belongs to a flow of the same sender that is not established. */
__noinline int flow_reply_free(__u32 now)
{
	struct flow_value *half_open, *f;
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();

	if (!w || !s)
		return 0;
	/* First: what is promoted in between is in both for a moment. */
	half_open = bpf_map_lookup_elem(&weir_flows_new, &w->rkey);
	f = bpf_map_lookup_elem(&weir_flows, &w->rkey);
	w->port.stale = f != NULL;
	w->port.own = 0;
	if (!f)
		f = half_open;
	if (!f || flow_expired(f, s, w->pkt.key.proto, now) || (f->state & STATE_CLOSING))
		return 1;
	w->port.own = !w->port.stale && (f->flags & FLOW_REPLY) &&
		      addr_same(&f->daddr, &w->pkt.key.saddr);
	w->port.own_seen = f->seen;
	return flow_leads_back(f, &w->pkt);
}

/* Ends the half-open flow that has the reply key scratch.rkey: its port goes to a newer flow of the
 * same sender. */
static __noinline int flow_replace(void)
{
	struct scratch *w = scratch_get();
	struct flow_value *f;

	if (!w)
		return 0;
	f = bpf_map_lookup_elem(&weir_flows_new, &w->rkey);
	if (!f || !addr_same(&f->daddr, &w->pkt.key.saddr))
		return 0;
	account_gone(&w->rkey, f);
	flow_partner(&w->okey, f, w->pkt.key.proto);
	f = account_interval ? bpf_map_lookup_elem(&weir_flows_new, &w->okey) : NULL;
	if (f)
		account_gone(&w->okey, f);
	bpf_map_delete_elem(&weir_flows_new, &w->okey);
	bpf_map_delete_elem(&weir_flows_new, &w->rkey);
	return 1;
}

/* Makes port the source port of scratch.fwd; of an ICMP query it is the identifier, which is in
 * both. */
static __always_inline void flow_set_port(struct scratch *w, __u16 port)
{
	__u16 apart = bpf_ntohs(w->pkt.key.dport) - bpf_ntohs(w->pkt.key.sport);

	w->fwd.sport = bpf_htons(port);
	w->rkey.dport = w->fwd.sport;
	if (w->pkt.l4 == L4_QUERY)
		w->rkey.sport = w->fwd.dport = bpf_htons((__u16)(port + apart));
}

/* Looks at the port of the try i, and returns whether it is free. Else it notes whether a flow of
 * the same sender has it that would be replaced first. */
__noinline int flow_try_port(__u32 i, __u32 now)
{
	struct scratch *w = scratch_get();

	if (!w)
		return 0;
	flow_set_port(w, snat_at(&w->port.walk, i));
	if (flow_reply_free(now))
		return 1;
	if (w->port.own &&
	    (!w->port.walk.own || (__s32)(w->port.walk.oldest - w->port.own_seen) > 0)) {
		w->port.walk.own = i + 1;
		w->port.walk.oldest = w->port.own_seen;
	}
	return 0;
}

/* Sets w->fwd's source port so that the reply key is unique, and w->rkey. A pod that has used up
 * the ports that it may have takes that of the flow of its own, among those looked at, that is not
 * established and was used least recently. */
__noinline int flow_pick_port(int must_change)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	__u32 now = clock_now();
	struct pkt *p;
	int pod;

	if (!w || !s)
		return DROP_INTERNAL;
	p = &w->pkt;
	/* Of this node, or of another one whose gateway is here. */
	pod = p->hook == HOOK_FROM_WORKLOAD || (w->fwd.state & STATE_GATEWAY);
	flow_partner(&w->rkey, &w->fwd, p->key.proto);
	if (!must_change && flow_reply_free(now))
		return DROP_NONE;
	if (!parse_has_ports(p) && p->l4 != L4_QUERY)
		return must_change && flow_reply_free(now) ? DROP_NONE : DROP_NO_PORT;
	if (s->snat_max < s->snat_min)
		return DROP_NO_PORT;
	snat_begin(&w->port.walk, s, p, pod);
	for (int i = 0; i < SNAT_TRIES; i++) {
		if (flow_try_port(i, now))
			return DROP_NONE;
	}
	if (!pod)
		return DROP_NO_PORT;
	if (w->port.walk.own) {
		flow_set_port(w, snat_at(&w->port.walk, w->port.walk.own - 1));
		if (flow_replace()) {
			w->port.stale = 0;
			snat_note(1);
			return DROP_NONE;
		}
	}
	snat_note(0);
	return DROP_NO_PORT;
}

#endif
