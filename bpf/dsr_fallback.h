/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* dsr_fallback.h: handshakes whose answers go straight to the client. Where the answers do not
 * arrive, the client goes on by the node that it asked. */
#ifndef WEIR_DSR_FALLBACK_H
#define WEIR_DSR_FALLBACK_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "clock.h"
#include "parse.h"
#include "lb.h"
#include "route.h"
#include "dsr.h"
#include "flow.h"

/* When the flow whose first direction is f was first answered, in units of 16 jiffies. The packets
 * of that direction end on this node: no next hop is in the way. */
static __always_inline __u16 *dsr_fallback_since(struct flow_value *f)
{
	return (__u16 *)&f->nexthop;
}

/* Turns the way back of the half-open flow f, whose packet was just handed on again, to the node
 * that did so. */
static __always_inline void dsr_fallback_take(struct __sk_buff *skb, struct scratch *w,
					      struct flow_value *f)
{
	struct pkt *p = &w->pkt;
	struct addr_value *b = bpf_map_lookup_elem(&weir_addrs, &p->key.daddr);
	struct flow_value *rev;
	struct svc_value *v;
	int node_port;

	v = lb_find(&p->key.daddr, p->key.dport, p->key.proto, b, &node_port);
	if (!v || !flow_handed_by(skb, p, b, node_port, &w->balance.via))
		return;
	flow_partner(&w->okey, f, p->key.proto);
	rev = bpf_map_lookup_elem(&weir_flows_new, &w->okey);
	if (!rev)
		return;
	flow_copy(&w->rev, rev);
	b = bpf_map_lookup_elem(&weir_addrs, &w->balance.via);
	if (route_node(skb, &w->balance.via, b && (b->flags & ADDR_SAME_LINK) ? BY_LINK : BY_TUNNEL,
		       &w->rev))
		return;
	w->rev.flags = (w->rev.flags & ~FLOW_DSR) | FLOW_VIA_NODE;
	if (!addr_is_none(&p->tunnel_src))
		w->rev.flags |= FLOW_CLAMP;
	f->flags &= ~FLOW_DSR;
	if (v->table && !node_port && (flow_is_local(f) || f->action == ACT_PASS))
		flow_watch(f, &w->balance.via);
	bpf_map_update_elem(&weir_flows_new, &w->okey, &w->rev, BPF_ANY);
	dsr_fall(&p->key.saddr, clock_now());
}

/* The packet in scratch.pkt belongs to a half-open flow with FLOW_DSR. Returns 1 when the handshake
 * is over. */
__noinline int dsr_fallback_follow(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct flow_value *f, *other;
	__u16 fine = clock_fine();
	struct pkt *p;

	if (!w || !s)
		return 0;
	p = &w->pkt;
	f = bpf_map_lookup_elem(&weir_flows_new, &p->key);
	if (!f)
		return 0;
	if (f->flags & FLOW_REPLY) {
		if ((p->tcp & (TCP_SYN | TCP_ACK)) != (TCP_SYN | TCP_ACK))
			return 1;
		if (f->state & STATE_ANSWERED)
			return 0;
		f->state |= STATE_ANSWERED;
		flow_partner(&w->okey, f, p->key.proto);
		other = bpf_map_lookup_elem(&weir_flows_new, &w->okey);
		if (other) {
			*dsr_fallback_since(other) = fine;
			other->state |= STATE_ANSWERED;
		}
		dsr_try(&f->daddr, s, fine);
		return 0;
	}
	if (!(f->state & STATE_ANSWERED))
		return 0;
	if (!(p->tcp & TCP_SYN)) {
		bpf_map_delete_elem(&weir_dsr_tries, &p->key.saddr);
		return 1;
	}
	if (!(p->tcp & TCP_ACK) && (__u16)(fine - *dsr_fallback_since(f)) >= s->dsr_patience)
		dsr_fallback_take(skb, w, f);
	return 0;
}

#endif
