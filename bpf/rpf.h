/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* rpf.h: reverse paths (RFC 3704, section 2.2): with bpfEnforceRPF Strict a flow begins only where
 * the route to its source leads out. */
#ifndef WEIR_RPF_H
#define WEIR_RPF_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "parse.h"
#include "route.h"

/* By whose route the source is reached: its own, or that of the node where a pod lives or that
 * handed the packet on, which it bears the MAC address of. None = by no uplink. learned: routers
 * may know the way to the source itself. */
static __always_inline ip_addr rpf_behind(struct __sk_buff *skb, const struct pkt *p, int *learned)
{
	struct addr_value *a = bpf_map_lookup_elem(&weir_addrs, &p->saddr);
	struct link_key link = {};
	struct route_value *r;
	ip_addr *node;

	*learned = 0;
	bpf_skb_load_bytes(skb, 6, link.mac, 6);
	node = bpf_map_lookup_elem(&weir_links, &link);
	if (node)
		return *node;
	if (a) {
		if (a->kind != ADDR_POD)
			return p->saddr;
		*learned = a->flags & ADDR_LEARNED;
		return a->node;
	}
	r = route_find(&p->saddr);
	if (!r)
		return p->saddr;
	*learned = r->flags & ROUTE_LEARNED;
	return r->flags & ROUTE_REMOTE ? r->node : addr_none();
}

/* Does scratch.pkt, which begins a flow or passes without one, come in by an uplink that its source
 * is not reached by? Of a route with an encapsulation the kernel tells no interface: any will
 * do. */
__noinline int rpf_fails(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct bpf_fib_lookup fib = {};
	ip_addr behind;
	int learned;
	long ret;

	if (!s || !w)
		return 1;
	behind = rpf_behind(skb, &w->pkt, &learned);
	if (addr_is_none(&behind))
		return 1;
	if (learned && route_leads(skb, &w->pkt.daddr, &w->pkt.saddr, &fib))
		return fib.ifindex != skb->ifindex;
	ret = route_ask(skb, &fib, &w->pkt.daddr, &behind, 0);
	if (ret == BPF_FIB_LKUP_RET_UNSUPP_LWT)
		return 0;
	if (ret != BPF_FIB_LKUP_RET_SUCCESS && ret != BPF_FIB_LKUP_RET_NO_NEIGH &&
	    ret != BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return 1;
	return fib.ifindex != skb->ifindex;
}

static __always_inline int rpf_asked(const struct pkt *p, const struct settings *s)
{
	return p->hook == HOOK_FROM_UPLINK && (s->flags & SET_RPF_STRICT);
}

#endif
