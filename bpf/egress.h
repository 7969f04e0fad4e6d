/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* egress.h: what some pods send out of the cluster leaves with the address of an egress gateway, a
 * pod, on the node of that gateway. Without one it does not leave: DROP_NO_GATEWAY.
 * docs/design/datapath.md, "Egress gateways", says what and why. */
#ifndef WEIR_EGRESS_H
#define WEIR_EGRESS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "parse.h"
#include "maglev.h"
#include "route.h"
#include "reasons.h"

MAP(weir_gateways, BPF_MAP_TYPE_HASH, ip_addr, struct gateway_list, 16384, BPF_F_NO_PREALLOC);

/* Is dst, of which weir_addrs says b (NULL: nothing), outside of the cluster? */
static __always_inline int egress_outside(const ip_addr *dst, const struct addr_value *b)
{
	if (b)
		return 0;
	return route_find(dst) == NULL;
}

/* May the flow of scratch.fwd, which begins, leave the cluster by an egress gateway alone? So does
 * what a pod of this node sends out of the cluster that is to leave so, and what comes by the tunnel
 * from a pod of another node, and for no Service: only what is for a gateway of this node does. A
 * function of its own, for the verifier. */
__noinline int egress_asked(void)
{
	struct scratch *w = scratch_get();
	struct addr_value *a;

	if (!w)
		return 0;
	a = bpf_map_lookup_elem(&weir_addrs, &w->pkt.key.saddr);
	if (w->pkt.hook == HOOK_FROM_WORKLOAD) {
		if (!a || a->kind != ADDR_ENDPOINT || !(a->flags & ADDR_GATEWAYS))
			return 0;
	} else {
		if (w->pkt.hook != HOOK_FROM_TUNNEL || w->fwd.svc.proto)
			return 0;
		if (a && a->kind != ADDR_POD)
			return 0;
		if (!a && !route_find(&w->pkt.key.saddr))
			return 0;
	}
	return egress_outside(&w->fwd.daddr, bpf_map_lookup_elem(&weir_addrs, &w->fwd.daddr));
}

/* How much a gateway suits a flow: of those that there are the one with the most has it, so that
 * one that comes or goes takes no flow from one of the others to another of these. */
static __always_inline __u32 egress_weight(__u32 hash, const ip_addr *gateway)
{
	__u32 v = hash;

#pragma unroll
	for (int i = 0; i < ADDR_WORDS; i++) {
		v = (v ^ gateway->w[i]) * 0x9e3779b1u;
		v ^= v >> 15;
	}
	v *= 0x85ebca6bu;
	return v ^ v >> 13;
}

/* Leads the flow of scratch.fwd, which begins, to its gateway: to the node of that, or where it is
 * on this node, out of the cluster with its address. Returns 0 or the reason to drop. */
__noinline int egress_lead(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	__u32 hash, weight, most = 0;
	struct gateway_list *list;
	struct addr_value *n;
	ip_addr *best = NULL, home;
	int ret, tunnel;

	if (!w || !s)
		return DROP_INTERNAL;
	list = bpf_map_lookup_elem(&weir_gateways, &w->pkt.key.saddr);
	if (!list)
		return DROP_NO_GATEWAY;
	/* The ends of the flow as all nodes on its way see them. */
	hash = maglev_hash(&w->pkt.key.saddr, w->pkt.key.sport, 0) ^
	       maglev_hash(&w->fwd.daddr, w->fwd.dport, 0) * 3;
	for (int i = 0; i < GATEWAYS; i++) {
		if (i >= list->count)
			break;
		if (w->pkt.hook == HOOK_FROM_TUNNEL) {
			n = bpf_map_lookup_elem(&weir_addrs, &list->gateways[i]);
			if (!n || n->kind != ADDR_ENDPOINT)
				continue;
		}
		weight = egress_weight(hash, &list->gateways[i]);
		if (!best || weight > most) {
			most = weight;
			best = &list->gateways[i];
		}
	}
	if (!best)
		return DROP_NO_GATEWAY;
	w->fwd.state |= STATE_GATEWAY;
	n = bpf_map_lookup_elem(&weir_addrs, best);
	if (n && n->kind == ADDR_ENDPOINT) {
		/* Its packets would leave with this address, too. */
		w->fwd.saddr = n->flags & ADDR_NAT_OUTGOING ? s->node : *best;
		w->fwd.flags |= FLOW_SNAT;
		return route_fib(skb, &w->fwd.saddr, &w->fwd.daddr, &w->fwd);
	}
	home = route_home(best, &tunnel);
	if (addr_is_none(&home))
		return DROP_NO_GATEWAY;
	/* Whatever the pools say: what comes by a link without the tunnel would be routed on there, with
	 * its own address, by a node that does not know of the gateway (yet). */
	ret = route_node(skb, &home, BY_TUNNEL, &w->fwd);
	w->fwd.flags |= FLOW_VIA_NODE | FLOW_CLAMP;
	return ret;
}

/* Does the open flow f of scratch.pkt leave otherwise than it would have to now? A gateway that is
 * there keeps its flows when others come. */
__noinline int egress_differs(struct flow_value *f)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct gateway_list *list;
	struct addr_value *a, *n;
	int tunnel, wanted;
	ip_addr home;

	if (!w || !s || !f)
		return 1;
	if (f->flags & (FLOW_REPLY | FLOW_HAND_ON))
		return 0;
	a = bpf_map_lookup_elem(&weir_addrs, &w->pkt.key.saddr);
	if (w->pkt.hook == HOOK_FROM_WORKLOAD)
		wanted = a && (a->flags & ADDR_GATEWAYS);
	else
		wanted = w->pkt.hook == HOOK_FROM_TUNNEL && (!a || a->kind == ADDR_POD) &&
			 (f->state & STATE_GATEWAY);
	wanted = wanted &&
		 egress_outside(&f->daddr, bpf_map_lookup_elem(&weir_addrs, &f->daddr));
	if (wanted != !!(f->state & STATE_GATEWAY))
		return 1;
	if (!wanted)
		return 0;
	list = bpf_map_lookup_elem(&weir_gateways, &w->pkt.key.saddr);
	if (!list)
		return 1;
	for (int i = 0; i < GATEWAYS; i++) {
		if (i >= list->count)
			break;
		n = bpf_map_lookup_elem(&weir_addrs, &list->gateways[i]);
		if (n && n->kind == ADDR_ENDPOINT) {
			if (f->action != ACT_TUNNEL &&
			    addr_same(&f->saddr, n->flags & ADDR_NAT_OUTGOING ? &s->node : &list->gateways[i]))
				return 0;
			continue;
		}
		if (f->action != ACT_TUNNEL || w->pkt.hook != HOOK_FROM_WORKLOAD)
			continue;
		home = route_home(&list->gateways[i], &tunnel);
		if (addr_same(&home, &f->nexthop))
			return 0;
	}
	return 1;
}

#endif
