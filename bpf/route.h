/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* route.h: where an address is, as fields of a flow. */
#ifndef WEIR_ROUTE_H
#define WEIR_ROUTE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "reasons.h"
#include "mtu.h"
#include "ipip.h"

/* What the routes say of an address: flags, 0 when no prefix holds it. */
static __always_inline struct route_value *route_find(const ip_addr *dst)
{
	struct prefix_key key = { .len = ADDR_BITS, .addr = *dst };

	return bpf_map_lookup_elem(&weir_routes, &key);
}

/* One look-up in the kernel's routes. A length to check, even of one byte, makes the kernel tell
 * the route's MTU (5.12). */
static __always_inline long route_ask(struct __sk_buff *skb, struct bpf_fib_lookup *fib,
				      const ip_addr *src, const ip_addr *dst, __u16 len)
{
	fib->family = ADDR_AF;
	fib->ifindex = skb->ifindex;
	fib->tot_len = len;
	addr_store(fib->ipv6_src, src); /* a union with the IPv4 fields */
	addr_store(fib->ipv6_dst, dst);
	return bpf_fib_lookup(skb, fib, sizeof(*fib), 0);
}

/* The kernel's own routing (bpf_fib_lookup): gateway, or dst when it is on-link. */
static __noinline int route_fib(struct __sk_buff *skb, const ip_addr *src, const ip_addr *dst,
				struct flow_value *f)
{
	struct settings *s = settings_get();
	struct bpf_fib_lookup fib = {}, again = {};
	__u16 mtu;
	long ret;

	if (!src || !dst || !f || !s)
		return DROP_INTERNAL;
	ret = route_ask(skb, &fib, src, dst, 1);
	mtu = fib.mtu_result;
	/* Without a neighbour the kernel stops before it tells the MTU, unless that is what it stops
	 * for. */
	if (ret == BPF_FIB_LKUP_RET_NO_NEIGH &&
	    route_ask(skb, &again, src, dst, MTU_NONE) == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		mtu = again.mtu_result;
	/* A missing neighbour entry is found by bpf_redirect_neigh. */
	if (ret != BPF_FIB_LKUP_RET_SUCCESS && ret != BPF_FIB_LKUP_RET_NO_NEIGH)
		return DROP_NO_ROUTE;
	/* A pool's or the Services' route: our maps know no way. */
	if (fib.ifindex == s->host_ifindex)
		return DROP_NO_ROUTE;
	f->action = ACT_NEIGH;
	f->ifindex = fib.ifindex;
	f->mtu = mtu_bounded(mtu);
	addr_load(&f->nexthop, fib.ipv6_dst);
	return DROP_NONE;
}

/* Does f lead to a pod of this node? */
static __always_inline int flow_is_local(const struct flow_value *f)
{
	return f->action == ACT_LOCAL || f->action == ACT_QUEUE;
}

/* Does the kernel's route to dst lead anywhere, and to another device than weir0? fib says where,
 * and may be used again when it does not. */
static __always_inline int route_leads(struct __sk_buff *skb, const ip_addr *src,
				       const ip_addr *dst, struct bpf_fib_lookup *fib)
{
	struct settings *s = settings_get();
	long ret = route_ask(skb, fib, src, dst, 0);

	if (s && fib->ifindex != s->host_ifindex &&
	    (ret == BPF_FIB_LKUP_RET_SUCCESS || ret == BPF_FIB_LKUP_RET_NO_NEIGH ||
	     ret == BPF_FIB_LKUP_RET_FRAG_NEEDED))
		return 1;
	__builtin_memset(fib, 0, sizeof(*fib));
	return 0;
}

/* How a packet goes to a node, or to what lives there. */
enum route_by {
	BY_LINK = 0,
	BY_VXLAN = 1,
	BY_IPIP = 2,
	BY_TUNNEL = 3, /* the one by which nodes hand on */
	BY_LEARNED = 4, /* as the kernel routes the address itself, else BY_LINK */
};

/* Can that node not take IP in IP? */
static __always_inline int route_no_ipip(const ip_addr *node)
{
	struct addr_value *a = bpf_map_lookup_elem(&weir_addrs, node);

	return a && a->kind == ADDR_NODE && (a->flags & ADDR_NO_IPIP);
}

/* The open flow f keeps its way, but for IP in IP to a node that cannot take it any more: it goes
 * on by VXLAN. */
static __always_inline void route_kept(const struct settings *s, struct flow_value *f)
{
	if (WEIR_FAMILY != 4 || f->action != ACT_TUNNEL || !ipip_leads(f) ||
	    !route_no_ipip(&f->nexthop))
		return;
	f->ifindex = 0;
	f->mtu = mtu_bounded(s->tunnel_mtu);
}

/* To the node `node`, or to what lives there: enum route_by. */
static __always_inline int route_node(struct __sk_buff *skb, const ip_addr *node, int by,
				      struct flow_value *f)
{
	struct settings *s = settings_get();
	int ret;

	if (!s)
		return DROP_INTERNAL;
	if (by == BY_LINK)
		return route_fib(skb, &s->node, node, f);
	if (WEIR_FAMILY == 4 && (by == BY_IPIP || (by == BY_TUNNEL && (s->flags & SET_IPIP_NODES) &&
						   !route_no_ipip(node)))) {
		ret = route_fib(skb, &s->node, node, f);
		if (!ret)
			ipip_route(f, s, node);
		return ret;
	}
	f->action = ACT_TUNNEL;
	f->ifindex = 0;
	f->mtu = mtu_bounded(s->tunnel_mtu);
	f->nexthop = *node;
	return DROP_NONE;
}

/* To dst, which lives on the node `node`. Where the kernel was told no way to dst (BGP), it has the
 * pool's, by weir0, which route_fib refuses. Another CNI plugin's routes may depend on the source:
 * each interface with those of its own addresses. */
static __always_inline int route_remote(struct __sk_buff *skb, const ip_addr *src,
					const ip_addr *dst, const ip_addr *node, int by,
					struct flow_value *f)
{
	if (by == BY_LEARNED) {
		if (!route_fib(skb, src, dst, f))
			return DROP_NONE;
		by = BY_LINK;
	}
	return route_node(skb, node, by, f);
}

/* The way to dst, of which weir_addrs says a (NULL: nothing). Returns 0 or the reason to drop. */
static __always_inline int route_known(struct __sk_buff *skb, const ip_addr *src,
				       const ip_addr *dst, const struct addr_value *a,
				       struct flow_value *f)
{
	struct route_value *r;

	if (a) {
		switch (a->kind) {
		case ADDR_HOST:
			f->action = ACT_PASS;
			f->mtu = MTU_NONE;
			return DROP_NONE;
		case ADDR_ENDPOINT:
			f->action = a->flags & ADDR_QUEUE ? ACT_QUEUE : ACT_LOCAL;
			f->ifindex = a->ifindex;
			f->mtu = mtu_of_link(skb, a->ifindex);
			__builtin_memcpy(f->mac, a->mac, 6);
			return DROP_NONE;
		case ADDR_POD:
			return route_remote(skb, src, dst, &a->node,
					    a->flags & ADDR_TUNNEL ?
						    a->flags & ADDR_IPIP ? BY_IPIP : BY_VXLAN :
					    a->flags & ADDR_LEARNED ? BY_LEARNED :
								      BY_LINK,
					    f);
		case ADDR_NODE:
			if (a->flags & ADDR_TUNNEL)
				return route_node(skb, &a->node, BY_VXLAN, f);
			break;
		}
		return route_fib(skb, src, dst, f);
	}
	r = route_find(dst);
	if (r) {
		if (r->flags & ROUTE_REMOTE)
			return route_remote(skb, src, dst, &r->node,
					    r->flags & ROUTE_TUNNEL ?
						    r->flags & ROUTE_IPIP ? BY_IPIP : BY_VXLAN :
					    r->flags & ROUTE_LEARNED ? BY_LEARNED :
								       BY_LINK,
					    f);
		return r->flags & ROUTE_LOCAL ? DROP_NO_ENDPOINT : DROP_NO_ROUTE;
	}
	return route_fib(skb, src, dst, f);
}

static __noinline int route_to(struct __sk_buff *skb, const ip_addr *src, const ip_addr *dst,
			       struct flow_value *f)
{
	if (!src || !dst || !f)
		return DROP_INTERNAL;
	return route_known(skb, src, dst, bpf_map_lookup_elem(&weir_addrs, dst), f);
}

/* The node where an address lives; none when it lives here or on no node. */
static __always_inline ip_addr route_home(const ip_addr *dst, int *tunnel)
{
	struct addr_value *a = bpf_map_lookup_elem(&weir_addrs, dst);
	struct route_value *r;

	*tunnel = 0;
	if (a) {
		if (a->kind != ADDR_NODE && a->kind != ADDR_POD)
			return addr_none();
		*tunnel = !(a->flags & ADDR_SAME_LINK);
		return a->node;
	}
	r = route_find(dst);
	if (!r || !(r->flags & ROUTE_REMOTE))
		return addr_none();
	*tunnel = !(r->flags & ROUTE_SAME_LINK);
	return r->node;
}

#endif
