/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* egress.h: what some pods send out of the cluster leaves with the address of an egress gateway, a
 * pod, on the node of that gateway. Without one it does not leave: DROP_NO_GATEWAY.
 * docs/design/datapath.md, "Egress gateways", says what and why. */
#ifndef WEIR_EGRESS_H
#define WEIR_EGRESS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "parse.h"
#include "maglev.h"
#include "host_policy.h"
#include "route.h"
#include "source.h"
#include "reasons.h"

/* Pods may leave the cluster by egress gateways. 0 = none does, and the kernel takes out what would
 * have them do so when it loads the programs. */
const volatile __u8 egress_enabled = 0;

MAP(weir_gateways, BPF_MAP_TYPE_HASH, struct gateway_key, struct gateway_list, 16384,
    BPF_F_NO_PREALLOC);
MAP(weir_egress_policies, BPF_MAP_TYPE_HASH, ip_addr, __u64, 16384, BPF_F_NO_PREALLOC);
MAP(weir_egress_rules, BPF_MAP_TYPE_LPM_TRIE, struct egress_key, __u64, 65536, BPF_F_NO_PREALLOC);

/* Is dst, of which weir_addrs says b (NULL: nothing), outside of the cluster? */
static __always_inline int egress_outside(const ip_addr *dst, const struct addr_value *b)
{
	if (b)
		return 0;
	return route_find(dst) == NULL;
}

/* Finds which gateways of scratch.pkt's sender count for what it sends to scratch.egress.to.addr,
 * outside of the cluster: into scratch.egress.of. Returns 0 when none is needed. A function of its
 * own, for the verifier. */
__noinline int egress_group(void)
{
	struct scratch *w = scratch_get();
	__u64 *policy, *found, group = GROUP_NONE;

	if (!w)
		return 1;
	w->egress.of.client = w->pkt.key.saddr;
	w->egress.of.group[0] = GROUP_ANNOTATIONS;
	w->egress.of.group[1] = 0;
	policy = bpf_map_lookup_elem(&weir_egress_policies, &w->pkt.key.saddr);
	if (!policy)
		return 1;
	w->egress.to.len = 64 + 32 * ADDR_WORDS;
	w->egress.to.policy[0] = (__u32)*policy;
	w->egress.to.policy[1] = (__u32)(*policy >> 32);
	found = bpf_map_lookup_elem(&weir_egress_rules, &w->egress.to);
	if (found)
		group = *found;
	w->egress.of.group[0] = (__u32)group;
	w->egress.of.group[1] = (__u32)(group >> 32);
	return group != GROUP_DIRECT;
}

/* May the flow of scratch.fwd, which begins, leave the cluster by an egress gateway alone? So does
 * what a pod of this node sends out of the cluster that is to leave so, and what comes by the
 * tunnel from a pod of another node, and for no Service: only what is for a gateway of this node
 * does. A function of its own, for the verifier. */
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
		if (w->pkt.hook != HOOK_FROM_TUNNEL || flow_svc(&w->fwd)->proto)
			return 0;
		if (a && a->kind != ADDR_POD)
			return 0;
		if (!a && !route_find(&w->pkt.key.saddr))
			return 0;
	}
	if (!egress_outside(&w->fwd.daddr, bpf_map_lookup_elem(&weir_addrs, &w->fwd.daddr)))
		return 0;
	/* What needs none does not come by the tunnel: no list has it then. */
	w->egress.to.addr = w->fwd.daddr;
	return egress_group() || w->pkt.hook == HOOK_FROM_TUNNEL;
}

/* What egress_asked said of the flow that begins. It is read where it is needed: the verifier would
 * walk what is between once for each value that it knew of. */
static __always_inline int egress_is(const struct scratch *w)
{
	return egress_enabled && *(volatile const __u32 *)&w->egress.asked != 0;
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

/* Gateway i, below GATEWAYS, of a list; in a form by which the verifier knows that. */
static __always_inline ip_addr *egress_at(struct gateway_list *list, __u64 i)
{
	asm volatile("%[i] &= %[mask]" : [i] "+r"(i) : [mask] "i"(GATEWAYS - 1));
	return &list->gateways[i];
}

/* Weighs gateway i of the client that sent the packet, for egress_lead: 0 = there is no such. A
 * function of its own, as egress_fits: the verifier walks it once, not in each turn of a loop. */
__noinline int egress_weigh(__u32 i)
{
	struct scratch *w = scratch_get();
	struct gateway_list *list;
	struct addr_value *n;
	ip_addr *gateway;
	__u32 weight;

	if (!w)
		return 0;
	list = bpf_map_lookup_elem(&weir_gateways, &w->egress.of);
	if (!list || i >= GATEWAYS || i >= list->count)
		return 0;
	gateway = egress_at(list, i);
	if (w->pkt.hook == HOOK_FROM_TUNNEL) {
		n = bpf_map_lookup_elem(&weir_addrs, gateway);
		if (!n || n->kind != ADDR_ENDPOINT)
			return 1;
	}
	weight = egress_weight(w->egress.hash, gateway);
	if (!w->egress.found || weight > w->egress.most) {
		w->egress.found = 1;
		w->egress.most = weight;
		w->egress.best = *gateway;
	}
	return 1;
}

/* Leads the flow of scratch.fwd, which begins, to its gateway: to the node of that, or where it is
 * on this node, out of the cluster with its address. Returns 0 or the reason to drop. */
static __always_inline int egress_lead(struct __sk_buff *skb, struct scratch *w, struct settings *s)
{
	struct addr_value *n;
	ip_addr home;
	int tunnel;

	/* The ends of the flow as all nodes on its way see them. */
	w->egress.hash = maglev_hash(&w->pkt.key.saddr, w->pkt.key.sport, 0) ^
			 maglev_hash(&w->fwd.daddr, w->fwd.dport, 0) * 3;
	w->egress.found = 0;
	for (__u32 i = 0; i < GATEWAYS; i++) {
		if (!egress_weigh(i))
			break;
	}
	if (!w->egress.found)
		return DROP_NO_GATEWAY;
	w->fwd.state |= STATE_GATEWAY;
	n = bpf_map_lookup_elem(&weir_addrs, &w->egress.best);
	if (n && n->kind == ADDR_ENDPOINT) {
		/* Its packets would leave with this address, too. */
		w->fwd.saddr = n->flags & ADDR_NAT_OUTGOING ? s->node : w->egress.best;
		w->fwd.flags |= FLOW_SNAT;
		return route_fib(skb, &w->fwd.saddr, &w->fwd.daddr, &w->fwd);
	}
	home = route_home(&w->egress.best, &tunnel);
	if (addr_is_none(&home))
		return DROP_NO_GATEWAY;
	w->fwd.flags |= FLOW_VIA_NODE | FLOW_CLAMP;
	/* Whatever the pools say: what comes by a link without the tunnel would be routed on there,
	 * with its own address, by a node that does not know of the gateway (yet). */
	return route_node(skb, &home, BY_TUNNEL, &w->fwd);
}

/* The rest of flow_begin, after policy, for what leaves by a gateway; returns what that does. It is
 * part of that: a call more would be too deep. */
static __always_inline int egress_begin(struct __sk_buff *skb, struct scratch *w,
					struct settings *s)
{
	int ret, snat;

	ret = egress_lead(skb, w, s);
	if (ret) {
		w->fwd.rule = 0;
		return ret;
	}
	if (host_on(s)) {
		ret = host_begin(skb);
		if (ret)
			return ret;
	}
	snat = (w->fwd.flags & FLOW_SNAT) != 0;
	if (w->pkt.hook == HOOK_FROM_WORKLOAD)
		source_expect(w, snat);
	w->port.change = snat ? PORT_MUST : 0;
	return DROP_NONE;
}

/* Does the open flow of scratch.pkt, which leaves as scratch.egress.open says, do so by gateway i
 * of the client that sent the packet? -1 = there is no such. */
__noinline int egress_fits(__u32 i)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct gateway_list *list;
	struct addr_value *n;
	ip_addr home, *gateway;
	int tunnel;

	if (!w || !s)
		return -1;
	list = bpf_map_lookup_elem(&weir_gateways, &w->egress.of);
	if (!list || i >= GATEWAYS || i >= list->count)
		return -1;
	gateway = egress_at(list, i);
	n = bpf_map_lookup_elem(&weir_addrs, gateway);
	if (n && n->kind == ADDR_ENDPOINT)
		return w->egress.open.action != ACT_TUNNEL &&
		       addr_same(&w->egress.open.saddr,
				 n->flags & ADDR_NAT_OUTGOING ? &s->node : gateway);
	if (w->egress.open.action != ACT_TUNNEL || w->pkt.hook != HOOK_FROM_WORKLOAD)
		return 0;
	home = route_home(gateway, &tunnel);
	return addr_same(&home, &w->egress.open.nexthop);
}

/* Does the open flow f of scratch.pkt leave otherwise than it would have to now? A gateway that is
 * there keeps its flows when others come. */
static __noinline int egress_differs(struct flow_value *f)
{
	struct scratch *w = scratch_get();
	struct addr_value *a;
	int wanted, fits;

	if (!w || !f)
		return 1;
	if (f->flags & (FLOW_REPLY | FLOW_HAND_ON))
		return 0;
	a = bpf_map_lookup_elem(&weir_addrs, &w->pkt.key.saddr);
	if (w->pkt.hook == HOOK_FROM_WORKLOAD)
		wanted = a && (a->flags & ADDR_GATEWAYS);
	else
		wanted = w->pkt.hook == HOOK_FROM_TUNNEL && (!a || a->kind == ADDR_POD) &&
			 (f->state & STATE_GATEWAY);
	wanted = wanted && egress_outside(&f->daddr, bpf_map_lookup_elem(&weir_addrs, &f->daddr));
	w->egress.to.addr = f->daddr;
	if (wanted && !egress_group() && w->pkt.hook == HOOK_FROM_WORKLOAD)
		wanted = 0;
	if (wanted != !!(f->state & STATE_GATEWAY))
		return 1;
	if (!wanted)
		return 0;
	w->egress.open.action = f->action;
	w->egress.open.saddr = f->saddr;
	w->egress.open.nexthop = f->nexthop;
	for (__u32 i = 0; i < GATEWAYS; i++) {
		fits = egress_fits(i);
		if (fits)
			return fits < 0;
	}
	return 1;
}

#endif
