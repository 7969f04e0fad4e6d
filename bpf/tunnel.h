/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* tunnel.h: packets that a node could take for those of a tunnel between nodes. */
#ifndef WEIR_TUNNEL_H
#define WEIR_TUNNEL_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "parse.h"
#include "route.h"

/* Is VXLAN's port of an address closed to pods? Of any address, for nodes have such that nobody
 * listed, and source NAT makes the packet one of this node's. Where the setting opens it, the
 * addresses that nodes are known by stay closed. */
static __always_inline int tunnel_closed(const struct settings *s, const ip_addr *dst)
{
	struct addr_value *b;

	if (!(s->flags & SET_VXLAN_FROM_PODS))
		return 1;
	b = bpf_map_lookup_elem(&weir_addrs, dst);
	return b && (b->kind == ADDR_HOST || b->kind == ADDR_NODE);
}

/* Is it IP in IP to a node that takes such from nodes? It stays closed to pods where the setting
 * opens IP in IP: source NAT would make it a node's. */
static __noinline int tunnel_ipip_closed(const struct pkt *p, const struct settings *s)
{
	struct addr_value *b;

	if (WEIR_FAMILY != 4 || !(s->flags & SET_IPIP) || p->l4 != L4_NONE ||
	    p->key.proto != IPPROTO_IPIP)
		return 0;
	b = bpf_map_lookup_elem(&weir_addrs, &p->daddr);
	return b && (b->kind == ADDR_HOST || b->kind == ADDR_NODE);
}

/* Does a pod send the packet into a tunnel, where policy does not see what is inside? */
static __always_inline int tunnel_from_pod(const struct pkt *p, const struct settings *s)
{
	if (p->l4 == L4_UDP && p->key.dport == s->tunnel_port)
		return tunnel_closed(s, &p->daddr);
	if (tunnel_ipip_closed(p, s))
		return 1;
	return p->l4 == L4_NONE && (p->key.proto == IPPROTO_IPIP || p->key.proto == IPPROTO_IPV6) &&
	       !(s->flags & SET_IPIP_FROM_PODS);
}

/* Does a Service lead the flow f of the packet to VXLAN's port of something else than a pod, where
 * its source would become the node's? */
static __always_inline int tunnel_by_service(const struct pkt *p, const struct settings *s,
					     const struct flow_value *f)
{
	struct addr_value *b;

	if (p->key.proto != IPPROTO_UDP || flow_svc(f)->proto != IPPROTO_UDP ||
	    flow_backend(f)->port != s->tunnel_port)
		return 0;
	if (p->hook == HOOK_FROM_WORKLOAD)
		return tunnel_closed(s, &flow_backend(f)->addr);
	b = bpf_map_lookup_elem(&weir_addrs, &flow_backend(f)->addr);
	return b ? b->kind != ADDR_ENDPOINT && b->kind != ADDR_POD :
		   !route_find(&flow_backend(f)->addr);
}

#endif
