/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow_balance.h: which Service a packet is for, which backend it gets, and the node that handed it
 * on. */
#ifndef WEIR_FLOW_BALANCE_H
#define WEIR_FLOW_BALANCE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "clock.h"
#include "parse.h"
#include "lb.h"
#include "dsr.h"
#include "route.h"
#include "reasons.h"
#include "flow_table.h"
#include "floating.h"

/* The node that handed the packet on to this one; 0 when it came from outside. b is what is known
 * of the packet's destination. */
static __always_inline int flow_handed_by(struct __sk_buff *skb, struct pkt *p,
					  const struct addr_value *b, int node_port, ip_addr *via)
{
	struct link_key link = {};
	ip_addr *node;

	if (node_port) {
		if (!b || b->kind != ADDR_NODE)
			return 0;
		*via = b->node;
		return 1;
	}
	if (!addr_is_none(&p->tunnel_src)) {
		*via = p->tunnel_src;
		return 1;
	}
	bpf_skb_load_bytes(skb, 6, link.mac, 6);
	node = bpf_map_lookup_elem(&weir_links, &link);
	if (!node)
		return 0;
	*via = *node;
	return 1;
}

/* The hash by which all nodes choose the backend of scratch.pkt. */
__noinline int flow_hash(int affine)
{
	struct scratch *w = scratch_get();

	if (!w)
		return 0;
	w->hash = maglev_hash(&w->pkt.key.saddr, w->pkt.key.sport, affine);
	return 0;
}

/* Which service, which backend. Returns 0, or the reason to drop; scratch.fwd gets the destination,
 * and `svc` and `backend` when there is a service; scratch.balance.via and scratch.balance.hand_on
 * are set where they apply. */
__noinline int flow_balance(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct addr_value *b;
	struct svc_value *v;
	__u8 kind;
	int node_port, tunnel, scope, ret;
	struct backend *be;
	struct pkt *p;

	if (!w || !s)
		return DROP_INTERNAL;
	p = &w->pkt;
	if ((s->flags & SET_FLOATING) && floating_leads(skb))
		return DROP_NONE;
	if (!parse_has_ports(p) || lb_no_port(s, p->key.dport, p->key.proto, PORT_TCP_FRONTEND))
		return DROP_NONE;
	if (p->hook == HOOK_TO_UPLINK && !(s->flags & SET_HOST_NAT))
		return DROP_NONE;
	/* Frontends there are for sockets of this node alone. */
	if (addr_is_loopback(&p->key.daddr))
		return DROP_NONE;
	b = bpf_map_lookup_elem(&weir_addrs, &p->key.daddr);
	kind = b ? b->kind : ADDR_NONE;
	w->balance.front_kind = kind + 1;
	v = lb_find(&p->key.daddr, p->key.dport, p->key.proto, b, &node_port);
	if (!v)
		return DROP_NONE;
	if (p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL) {
		scope = v->flags & SVC_LOCAL ? SCOPE_LOCAL : SCOPE_ALL;
		if (flow_handed_by(skb, p, b, node_port, &w->balance.via))
			scope = SCOPE_LOCAL;
	} else {
		scope = lb_scope_inside(v, kind, node_port);
		if (scope < 0)
			return DROP_NONE;
	}
	*flow_svc(&w->fwd) = v->id;
	w->fwd.rule = v->rule;
	if (!lb_admits(v, &p->key.saddr))
		return DROP_SOURCE_RANGE;
	if (!addr_is_none(&w->balance.via) && dsr_wanted(s, v))
		w->fwd.flags |= FLOW_DSR;
	__builtin_memset(&w->balance.client, 0, sizeof(w->balance.client));
	w->balance.client.addr = p->key.saddr;
	w->hash = 0;
	if (v->table) {
		w->balance.maglev = node_port ? MAGLEV_USED : MAGLEV_USED | MAGLEV_WATCH;
		flow_hash(v->affinity != 0);
	}
	be = flow_backend(&w->fwd);
	ret = lb_choose(v, scope, &w->balance.client, w->hash, be);
	if (ret)
		return ret;
	if (scope == SCOPE_ALL && (p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL)) {
		w->balance.hand_on = route_home(&be->addr, &tunnel);
		if (!addr_is_none(&w->balance.hand_on)) {
			w->fwd.flags |= FLOW_HAND_ON;
			w->fwd.action = tunnel ? ACT_TUNNEL : ACT_NEIGH;
			return DROP_NONE;
		}
	}
	w->fwd.daddr = be->addr;
	w->fwd.dport = be->port;
	return DROP_NONE;
}

/* From now on the way back follows the node that hands the flow's packets on: via, 0 = none. */
static __always_inline void flow_watch(struct flow_value *f, const ip_addr *via)
{
	f->state |= STATE_WATCHED;
	f->nexthop = *via;
}

/* A packet of the watched flow f: did another node than before hand it on? Then the answers go back
 * by that one; where none did, straight to the client. */
static __noinline int flow_follow(struct __sk_buff *skb, struct pkt *p, struct flow_value *f)
{
	struct scratch *w = scratch_get();
	struct flow_value *rev;
	struct addr_value *a;
	int handed, ret;

	if (!w || !p || !f)
		return 0;
	w->balance.via = addr_none();
	handed = flow_handed_by(skb, p, NULL, 0, &w->balance.via);
	if (addr_same(&w->balance.via, &f->nexthop))
		return 0;
	flow_partner(&w->okey, f, p->key.proto);
	rev = bpf_map_lookup_elem(&weir_flows, &w->okey);
	if (!rev)
		rev = bpf_map_lookup_elem(&weir_flows_new, &w->okey);
	if (!rev)
		return 0;
	flow_clear(&w->rev);
	if (handed) {
		a = bpf_map_lookup_elem(&weir_addrs, &w->balance.via);
		ret = route_node(skb, &w->balance.via,
				 a && (a->flags & ADDR_SAME_LINK) ? BY_LINK : BY_TUNNEL, &w->rev);
	} else {
		ret = route_to(skb, &p->key.daddr, &p->key.saddr, &w->rev);
	}
	if (ret)
		return 0;
	rev->action = w->rev.action;
	rev->ifindex = w->rev.ifindex;
	rev->mtu = w->rev.mtu;
	rev->nexthop = w->rev.nexthop;
	__builtin_memcpy(rev->mac, w->rev.mac, 6);
	rev->flags = (rev->flags & ~FLOW_VIA_NODE) | (handed ? FLOW_VIA_NODE : 0);
	f->nexthop = w->balance.via;
	return 0;
}

#endif
