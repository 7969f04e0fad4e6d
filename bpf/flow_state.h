/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow_state.h: what packets of an open flow change in its entries: half open to established,
 * answered, closing. */
#ifndef WEIR_FLOW_STATE_H
#define WEIR_FLOW_STATE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "clock.h"
#include "parse.h"
#include "quota.h"
#include "flow_table.h"
#include "flow_balance.h"
#include "account.h"

/* Does the packet prove that both ends of the half-open flow f want it? Whoever forges a source
 * does not get the answer, and so does not go on after it. */
static __always_inline int flow_proven(struct pkt *p, struct flow_value *f, struct scratch *w)
{
	struct flow_value *other;

	if (f->state & STATE_ANSWERED)
		return !(p->tcp & TCP_SYN);
	if (!(f->flags & FLOW_REPLY)) /* the answers to what was handed on may not come by here */
		return (f->flags & FLOW_HAND_ON) && !(p->tcp & TCP_SYN) && parse_connects(p);
	f->state |= STATE_ANSWERED;
	flow_partner(&w->okey, f, p->key.proto);
	other = bpf_map_lookup_elem(&weir_flows_new, &w->okey);
	if (other)
		other->state |= STATE_ANSWERED;
	return 0;
}

/* Moves both entries of a half-open flow to the established ones. f is the entry of this
 * direction. */
static __noinline int flow_promote(struct pkt *p, struct flow_value *f)
{
	struct scratch *w = scratch_get();
	struct flow_value *other;

	if (!w || !p || !f)
		return 0;
	flow_copy(&w->fwd, f);
	if (account_interval)
		w->fwd.count = account_take(&f->count);
	w->fwd.state |= STATE_REPLIED;
	flow_partner(&w->rkey, f, p->key.proto);
	other = bpf_map_lookup_elem(&weir_flows_new, &w->rkey);
	if (other && !flow_leads_back(other, p))
		other = NULL; /* its port went to another flow since */
	if (other) {
		flow_copy(&w->rev, other);
		if (account_interval)
			w->rev.count = account_take(&other->count);
		if (account_interval)
			account_rtt(p, &w->fwd, &w->rev, 1);
		w->rev.state |= STATE_REPLIED;
		bpf_map_update_elem(&weir_flows, &w->rkey, &w->rev, BPF_ANY);
	}
	bpf_map_update_elem(&weir_flows, &p->key, &w->fwd, BPF_ANY);
	quota_take(other != NULL);
	if (other)
		bpf_map_delete_elem(&weir_flows_new, &w->rkey);
	bpf_map_delete_elem(&weir_flows_new, &p->key);
	return 0;
}

/* The answer came to a flow that stands among the established ones from its start. */
static __always_inline void flow_replied(struct pkt *p, struct flow_value *f, struct scratch *w)
{
	struct flow_value *other;

	f->state |= STATE_REPLIED;
	flow_partner(&w->okey, f, p->key.proto);
	other = bpf_map_lookup_elem(&weir_flows, &w->okey);
	if (!other)
		return;
	other->state |= STATE_REPLIED;
	/* The node's own process is the client: its ACK takes no time. */
	if (account_interval && (p->tcp & TCP_SYN))
		account_rtt(p, other, f, 0);
}

/* FIN and RST. */
static __always_inline void flow_closing(struct pkt *p, struct flow_value *f, struct scratch *w,
					 int half_open)
{
	__u8 closing = STATE_CLOSING | (p->tcp & TCP_RST ? STATE_RESET : 0);
	struct flow_value *other;

	if (!(p->tcp & (TCP_FIN | TCP_RST)) || (f->state & STATE_CLOSING))
		return;
	flow_partner(&w->okey, f, p->key.proto);
	other = bpf_map_lookup_elem(&weir_flows, &w->okey);
	if (!other && half_open)
		other = bpf_map_lookup_elem(&weir_flows_new, &w->okey);
	f->state |= STATE_FIN;
	/* What was handed on and never answered by here: nor does the other end's FIN come by. */
	if ((p->tcp & TCP_RST) || (other && (other->state & STATE_FIN)) ||
	    ((f->flags & (FLOW_HAND_ON | FLOW_REPLY)) == FLOW_HAND_ON &&
	     !(f->state & STATE_ANSWERED))) {
		f->state |= closing;
		if (other)
			other->state |= closing;
	}
}

#endif
