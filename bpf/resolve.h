/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* resolve.h: how many neighbours a pod makes the kernel look for. Its table of these (gc_thresh3)
 * is the whole node's: an entry that nobody answers for stays for three seconds, one that is new
 * for five, whatever else has to be resolved. */
#ifndef WEIR_RESOLVE_H
#define WEIR_RESOLVE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "route.h"
#include "drop.h"
#include "forward.h"
#include "neigh.h"

#define RESOLVE_POD 16 /* new neighbours of a pod in a window, ... */
/* And of all pods: five seconds of it are less than half of the table as it is by default. */
#define RESOLVE_ALL 96
/* Frames of a pod about its link, from addresses that nobody can tell to be its own. */
#define RESOLVE_LINK 16
#define RESOLVE_WINDOW 30 /* bits of nanoseconds: 1.07 s */
#define RESOLVE_OF_LINK 0x80000000u /* in a key */

/* By the interface of a pod, 0 = all pods. */
struct resolve_rate {
	__u32 window;
	__u32 count;
};
MAP(weir_resolves, BPF_MAP_TYPE_LRU_HASH, __u32, struct resolve_rate, 8192, 0);

/* Takes one of the `most` that a key has in a window; 0 = none is left. CPUs that begin a window at
 * once may lose a few counts. */
static __noinline int resolve_take(__u32 key, __u32 most)
{
	struct resolve_rate first = { .count = 1 }, *r;
	__u32 now = bpf_ktime_get_ns() >> RESOLVE_WINDOW;

	r = bpf_map_lookup_elem(&weir_resolves, &key);
	if (!r) {
		first.window = now;
		bpf_map_update_elem(&weir_resolves, &key, &first, BPF_NOEXIST);
		return 1;
	}
	if (r->window != now) {
		r->window = now;
		r->count = 0;
	}
	if (r->count >= most)
		return 0;
	__sync_fetch_and_add(&r->count, 1);
	return 1;
}

/* Would scratch.pkt, of a flow of a pod's that nobody has answered (scratch.fwd), make the kernel
 * look for one neighbour too many? Gateways and nodes are not the pod's to choose. */
__noinline int resolve_spent(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct bpf_fib_lookup fib = {};

	if (trace_enabled) /* a rehearsal makes the kernel look for nobody */
		return 0;
	if (!w || !addr_same(&w->fwd.nexthop, &w->fwd.daddr) ||
	    bpf_map_lookup_elem(&weir_addrs, &w->fwd.daddr))
		return 0;
	if (route_ask(skb, &fib, &w->pkt.key.saddr, &w->fwd.daddr, 0) != BPF_FIB_LKUP_RET_NO_NEIGH)
		return 0;
	return !resolve_take(skb->ifindex, RESOLVE_POD) || !resolve_take(0, RESOLVE_ALL);
}

static __always_inline int resolve_asked(const struct pkt *p, const struct flow_value *f)
{
	return (p->hook == HOOK_FROM_WORKLOAD || (f->state & STATE_GATEWAY)) &&
	       f->action == ACT_NEIGH && !(f->flags & FLOW_REPLY) &&
	       !(f->state & (STATE_ANSWERED | STATE_REPLIED));
}

/* Is the sender that a frame about the link names the pod's own? The kernel enters who asks it. */
static __always_inline int resolve_owns(struct __sk_buff *skb, const ip_addr *sender)
{
	struct addr_value *a = bpf_map_lookup_elem(&weir_addrs, sender);

	return a && a->kind == ADDR_ENDPOINT && a->ifindex == skb->ifindex;
}

/* ARP, neighbour discovery and reports of multicast listeners of a pod. Who has no address yet is
 * not entered. */
__noinline int resolve_link(struct __sk_buff *skb)
{
	ip_addr sender = {};
#if WEIR_FAMILY == 4
	struct neigh_arp arp;

	if (bpf_skb_load_bytes(skb, 0, &arp, sizeof(arp)))
		return forward_pass(skb);
	__builtin_memcpy(&sender, arp.sender, 4);
#else
	struct scratch *w = scratch_get();

	if (!w)
		return drop_packet(skb, DROP_NO_ROUTE, 0);
	sender = w->pkt.saddr;
	if (ip6_is_cast(&sender)) /* link-local: a pod may have any */
		return trace_enabled || resolve_take(skb->ifindex | RESOLVE_OF_LINK, RESOLVE_LINK) ?
			       forward_pass(skb) :
			       drop_packet(skb, DROP_NEIGHBOURS, 0);
#endif
	if (addr_is_none(&sender) || resolve_owns(skb, &sender))
		return forward_pass(skb);
	return drop_packet(skb, DROP_SPOOFED, 0);
}

#endif
