/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow.h: finding, judging again, beginning and ending flows. docs/design/datapath.md says what and why. */
#ifndef WEIR_FLOW_H
#define WEIR_FLOW_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "clock.h"
#include "parse.h"
#include "policy.h"
#include "hosts.h"
#include "lb.h"
#include "dsr.h"
#include "route.h"
#include "rpf.h"
#include "tunnel.h"
#include "share.h"
#include "snat.h"
#include "source.h"
#include "reasons.h"
#include "known.h"

#define CLAIM_TRIES 3

static __always_inline __u32 flow_timeout(const struct settings *s, __u8 proto, __u8 state, __u8 flags)
{
	switch (proto) {
	case IPPROTO_TCP:
	case IPPROTO_SCTP:
		if (state & STATE_CLOSING)
			return s->timeouts[state & STATE_RESET ? TIMEOUT_TCP_CLOSING : TIMEOUT_TCP_FINS];
		if (!(state & STATE_REPLIED))
			return s->timeouts[TIMEOUT_TCP_SYN];
		return s->timeouts[proto == IPPROTO_TCP ? TIMEOUT_TCP_EST : TIMEOUT_OTHER];
	case IPPROTO_UDP: /* what nobody has answered ends soon; of what is handed on answers may not come by here */
		if ((state & (STATE_REPLIED | STATE_ANSWERED)) || (flags & FLOW_HAND_ON))
			return s->timeouts[TIMEOUT_UDP];
		return s->timeouts[TIMEOUT_UDP] >> UNANSWERED_SHIFT;
	case IP_ICMP:
		return s->timeouts[TIMEOUT_ICMP];
	}
	return s->timeouts[TIMEOUT_OTHER];
}

static __always_inline int flow_expired(const struct flow_value *f, const struct settings *s, __u8 proto, __u32 now)
{
	return clock_past(now, f->seen, flow_timeout(s, proto, f->state, f->flags));
}

/* The key of the entry of the other direction. */
static __always_inline void flow_partner(struct flow_key *k, const struct flow_value *f, __u8 proto)
{
	k->saddr = f->daddr;
	k->daddr = f->saddr;
	k->sport = f->dport;
	k->dport = f->sport;
	k->proto = proto;
	k->pad[0] = k->pad[1] = k->pad[2] = 0;
}

/* Does the packet come from a pod, and from the one that the flow's packets come from; or neither does? */
static __always_inline int flow_enters(const struct flow_value *f, const struct pkt *p, __u32 ifindex)
{
	if (p->hook == HOOK_FROM_WORKLOAD)
		return f->from == FROM_POD && f->source.w[0] == ifindex;
	return f->from != FROM_POD;
}

/* Is f the entry of the other direction of the flow of p's key? The key may have gone to another flow since. */
static __always_inline int flow_leads_back(const struct flow_value *f, const struct pkt *p)
{
	return addr_same(&f->saddr, &p->key.daddr) && addr_same(&f->daddr, &p->key.saddr) && f->sport == p->key.dport &&
	       f->dport == p->key.sport;
}

/* May scratch.fwd take the reply key scratch.rkey, because it is free, or its own already? scratch.own_port says whether it belongs to a flow of the
 * same sender that is not established. */
__noinline int flow_reply_free(__u32 now)
{
	struct flow_value *half_open, *f;
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();

	if (!w || !s)
		return 0;
	half_open = bpf_map_lookup_elem(&weir_flows_new, &w->rkey); /* first: what is promoted in between is in both for a moment */
	f = bpf_map_lookup_elem(&weir_flows, &w->rkey);
	w->stale = f != NULL;
	w->own_port = 0;
	if (!f)
		f = half_open;
	if (!f || flow_expired(f, s, w->pkt.key.proto, now) || (f->state & STATE_CLOSING))
		return 1;
	w->own_port = !w->stale && (f->flags & FLOW_REPLY) && addr_same(&f->daddr, &w->pkt.key.saddr);
	w->own_seen = f->seen;
	return flow_leads_back(f, &w->pkt);
}

/* Ends the half-open flow that has the reply key scratch.rkey: its port goes to a newer flow of the same sender. */
static __noinline int flow_replace(void)
{
	struct scratch *w = scratch_get();
	struct flow_value *f;

	if (!w)
		return 0;
	f = bpf_map_lookup_elem(&weir_flows_new, &w->rkey);
	if (!f || !addr_same(&f->daddr, &w->pkt.key.saddr))
		return 0;
	flow_partner(&w->okey, f, w->pkt.key.proto);
	bpf_map_delete_elem(&weir_flows_new, &w->okey);
	bpf_map_delete_elem(&weir_flows_new, &w->rkey);
	return 1;
}

/* Makes port the source port of scratch.fwd; of an ICMP query it is the identifier, which is in both. */
static __always_inline void flow_set_port(struct scratch *w, __u16 port)
{
	__u16 apart = bpf_ntohs(w->pkt.key.dport) - bpf_ntohs(w->pkt.key.sport);

	w->fwd.sport = bpf_htons(port);
	w->rkey.dport = w->fwd.sport;
	if (w->pkt.l4 == L4_QUERY)
		w->rkey.sport = w->fwd.dport = bpf_htons((__u16)(port + apart));
}

/* Looks at the port of the try i, and returns whether it is free. Else it notes whether a flow of the same sender has it that would be replaced first. */
__noinline int flow_try_port(__u32 i, __u32 now)
{
	struct scratch *w = scratch_get();

	if (!w)
		return 0;
	flow_set_port(w, snat_at(&w->walk, i));
	if (flow_reply_free(now))
		return 1;
	if (w->own_port && (!w->walk.own || (__s32)(w->walk.oldest - w->own_seen) > 0)) {
		w->walk.own = i + 1;
		w->walk.oldest = w->own_seen;
	}
	return 0;
}

/* Sets w->fwd's source port so that the reply key is unique, and w->rkey. A pod that has used up the ports that it may have takes that of the flow of its own,
 * among those looked at, that is not established and was used least recently. */
__noinline int flow_pick_port(int must_change)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	__u32 now = clock_now();
	struct pkt *p;

	if (!w || !s)
		return DROP_NO_PORT;
	p = &w->pkt;
	flow_partner(&w->rkey, &w->fwd, p->key.proto);
	if (!must_change && flow_reply_free(now))
		return DROP_NONE;
	if (!parse_has_ports(p) && p->l4 != L4_QUERY)
		return must_change && flow_reply_free(now) ? DROP_NONE : DROP_NO_PORT;
	if (s->snat_max < s->snat_min)
		return DROP_NO_PORT;
	snat_begin(&w->walk, s, p);
	for (int i = 0; i < SNAT_TRIES; i++) {
		if (flow_try_port(i, now))
			return DROP_NONE;
	}
	if (p->hook != HOOK_FROM_WORKLOAD)
		return DROP_NO_PORT;
	if (w->walk.own) {
		flow_set_port(w, snat_at(&w->walk, w->walk.own - 1));
		if (flow_replace()) {
			w->stale = 0;
			snat_note(1);
			return DROP_NONE;
		}
	}
	snat_note(0);
	return DROP_NO_PORT;
}

/* Forgets what an ended flow of this key left in the table of established ones. */
static __always_inline void flow_forget(struct pkt *p, struct scratch *w)
{
	struct flow_value *f = bpf_map_lookup_elem(&weir_flows, &p->key);

	if (f) {
		flow_partner(&w->okey, f, p->key.proto);
		f = bpf_map_lookup_elem(&weir_flows, &w->okey);
		if (f && flow_leads_back(f, p))
			bpf_map_delete_elem(&weir_flows, &w->okey);
		bpf_map_delete_elem(&weir_flows, &p->key);
	}
}

/* Forgets a flow of this node, f, whichever table has it. */
static __noinline int flow_end(struct pkt *p, struct flow_value *f)
{
	struct scratch *w = scratch_get();

	if (!w || !p || !f)
		return 0;
	flow_partner(&w->okey, f, p->key.proto);
	f = bpf_map_lookup_elem(&weir_flows, &w->okey);
	if (f && flow_leads_back(f, p))
		bpf_map_delete_elem(&weir_flows, &w->okey);
	f = bpf_map_lookup_elem(&weir_flows_new, &w->okey);
	if (f && flow_leads_back(f, p))
		bpf_map_delete_elem(&weir_flows_new, &w->okey);
	bpf_map_delete_elem(&weir_flows, &p->key);
	bpf_map_delete_elem(&weir_flows_new, &p->key);
	return 0;
}

/* The node that handed the packet on to this one; 0 when it came from outside. b is what is known of the packet's
 * destination. */
static __always_inline int flow_handed_by(struct __sk_buff *skb, struct pkt *p, const struct addr_value *b, int node_port,
					  ip_addr *via)
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

/* Which service, which backend. Returns 0, or the reason to drop; scratch.fwd gets the destination, and `svc` and
 * `backend` when there is a service; scratch.via and scratch.hand_on are set where they apply. */
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
		return DROP_NO_BACKEND;
	p = &w->pkt;
	if (!parse_has_ports(p) || lb_no_port(s, p->key.dport, p->key.proto, PORT_TCP_FRONTEND))
		return DROP_NONE;
	if (p->hook == HOOK_TO_UPLINK && !(s->flags & SET_HOST_NAT))
		return DROP_NONE;
	if (addr_is_loopback(&p->key.daddr)) /* frontends there are for sockets of this node alone */
		return DROP_NONE;
	b = bpf_map_lookup_elem(&weir_addrs, &p->key.daddr);
	kind = b ? b->kind : ADDR_NONE;
	w->front_kind = kind + 1;
	v = lb_find(&p->key.daddr, p->key.dport, p->key.proto, b, &node_port);
	if (!v)
		return DROP_NONE;
	if (p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL) {
		scope = v->flags & SVC_LOCAL ? SCOPE_LOCAL : SCOPE_ALL;
		if (flow_handed_by(skb, p, b, node_port, &w->via))
			scope = SCOPE_LOCAL;
	} else {
		scope = lb_scope_inside(v, kind, node_port);
		if (scope < 0)
			return DROP_NONE;
	}
	w->fwd.svc = v->id;
	w->fwd.rule = v->rule;
	if (!lb_admits(v, &p->key.saddr))
		return DROP_SOURCE_RANGE;
	if (!addr_is_none(&w->via) && dsr_wanted(s, v))
		w->fwd.flags |= FLOW_DSR;
	__builtin_memset(&w->client, 0, sizeof(w->client));
	w->client.addr = p->key.saddr;
	w->hash = 0;
	if (v->table) {
		w->maglev = node_port ? MAGLEV_USED : MAGLEV_USED | MAGLEV_WATCH;
		flow_hash(v->affinity != 0);
	}
	be = &w->fwd.backend;
	ret = lb_choose(v, scope, &w->client, w->hash, be);
	if (ret)
		return ret;
	if (scope == SCOPE_ALL && (p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL)) {
		w->hand_on = route_home(&be->addr, &tunnel);
		if (!addr_is_none(&w->hand_on)) {
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

/* A packet of the watched flow f: did another node than before hand it on? Then the answers go back by that one; where
 * none did, straight to the client. */
static __noinline int flow_follow(struct __sk_buff *skb, struct pkt *p, struct flow_value *f)
{
	struct scratch *w = scratch_get();
	struct flow_value *rev;
	struct addr_value *a;
	int handed, ret;

	if (!w || !p || !f)
		return 0;
	w->via = addr_none();
	handed = flow_handed_by(skb, p, NULL, 0, &w->via);
	if (addr_same(&w->via, &f->nexthop))
		return 0;
	flow_partner(&w->okey, f, p->key.proto);
	rev = bpf_map_lookup_elem(&weir_flows, &w->okey);
	if (!rev)
		rev = bpf_map_lookup_elem(&weir_flows_new, &w->okey);
	if (!rev)
		return 0;
	__builtin_memset(&w->rev, 0, sizeof(w->rev));
	if (handed) {
		a = bpf_map_lookup_elem(&weir_addrs, &w->via);
		ret = route_node(skb, &w->via, !a || !(a->flags & ADDR_SAME_LINK), &w->rev);
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
	f->nexthop = w->via;
	return 0;
}

/* The way back of a new flow. */
static __always_inline int flow_way_back(struct __sk_buff *skb, struct pkt *p, struct settings *s, struct scratch *w)
{
	int via = !addr_is_none(&w->via);
	struct addr_value *a;

	if (p->hook == HOOK_TO_WORKLOAD || p->hook == HOOK_TO_UPLINK) {
		w->rev.action = ACT_PASS;
		return DROP_NONE;
	}
	/* The stack routes the answers of the host; but those that it routes to weir0 need the way from there. */
	if (w->own && !route_find(&p->key.saddr)) {
		a = bpf_map_lookup_elem(&weir_addrs, &p->key.saddr);
		if (!a || a->kind != ADDR_POD) {
			w->rev.action = ACT_PASS;
			return DROP_NONE;
		}
	}
	if (w->fwd.flags & FLOW_DSR) {
		if (!dsr_refused(&p->key.saddr) && !dsr_failed(p, s)) {
			w->rev.flags |= FLOW_DSR;
			return route_fib(skb, &p->key.daddr, &p->key.saddr, &w->rev);
		}
		w->fwd.flags &= ~FLOW_DSR;
	}
	if (via) {
		a = bpf_map_lookup_elem(&weir_addrs, &w->via);
		w->rev.flags |= FLOW_VIA_NODE;
		return route_node(skb, &w->via, !a || !(a->flags & ADDR_SAME_LINK), &w->rev);
	}
	if (!addr_is_none(&p->tunnel_src)) {
		a = bpf_map_lookup_elem(&weir_addrs, &p->key.saddr);
		if (a && a->kind == ADDR_NODE) {
			w->rev.flags |= FLOW_VIA_NODE;
			return route_node(skb, &p->tunnel_src, 1, &w->rev);
		}
	}
	if (w->source_known == SOURCE_OUTSIDE)
		return route_fib(skb, &p->key.daddr, &p->key.saddr, &w->rev);
	return route_to(skb, &p->key.daddr, &p->key.saddr, &w->rev);
}

enum flow_port {
	PORT_MUST = 1, /* the source port becomes one of the node's range */
	PORT_MAY = 2,  /* where none of these is free it stays */
};

/* Notes in a new flow whether its packets are changed. */
static __always_inline void flow_rewrites(struct scratch *w, const struct pkt *p)
{
	if (addr_same(&w->fwd.saddr, &p->key.saddr) && addr_same(&w->fwd.daddr, &p->key.daddr) && w->fwd.sport == p->key.sport &&
	    w->fwd.dport == p->key.dport)
		return;
	w->fwd.flags |= FLOW_REWRITE;
	w->rev.flags |= FLOW_REWRITE;
}

/* Enters the reply key, which was free when the port was chosen. Returns -1 when it went to another flow since: two that share a source port
 * may begin on two CPUs at once, and the answers of both would be taken for those of one. */
static __always_inline int flow_claim(struct scratch *w, void *table)
{
	if (table != &weir_flows && w->stale)
		bpf_map_delete_elem(&weir_flows, &w->rkey);
	if (!bpf_map_update_elem(table, &w->rkey, &w->rev, BPF_NOEXIST))
		return 0;
	if (!flow_reply_free(clock_now()))
		return -1;
	bpf_map_update_elem(table, &w->rkey, &w->rev, BPF_ANY); /* an ended flow had it, or this one has it */
	return 0;
}

/* Enters both keys of a new flow, with another source port where the chosen one is gone. Returns 0 or the reason to drop. */
__noinline int flow_write(int established)
{
	struct scratch *w = scratch_get();
	void *table = established ? (void *)&weir_flows : (void *)&weir_flows_new;
	int ret;

	if (!w)
		return DROP_NO_PORT;
	for (int i = 0; flow_claim(w, table); i++) {
		if (i == CLAIM_TRIES)
			return DROP_NO_PORT;
		ret = flow_pick_port(0);
		if (ret)
			return ret;
		flow_rewrites(w, &w->pkt);
	}
	bpf_map_update_elem(table, &w->pkt.key, &w->fwd, BPF_ANY);
	return DROP_NONE;
}

/* Ends what flow_begin began, once it is known where the packet goes: ports, the way back, the entries. Returns 0 or the reason to drop. */
__noinline int flow_enter(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	int ret, from_outside, hand_on;
	struct pkt *p;

	if (!w || !s)
		return DROP_NO_ROUTE;
	p = &w->pkt;
	from_outside = p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL;
	hand_on = !addr_is_none(&w->hand_on);
	ret = flow_pick_port(w->port & PORT_MUST);
	if (ret && (w->port & PORT_MAY)) {
		w->fwd.sport = p->key.sport;
		ret = flow_pick_port(0);
	}
	if (ret)
		return ret;
	flow_rewrites(w, p);

	w->rev.flags |= FLOW_REPLY;
	if (!addr_is_none(&w->via) && !addr_is_none(&p->tunnel_src))
		w->rev.flags |= FLOW_CLAMP;
	w->rev.saddr = p->key.daddr;
	w->rev.daddr = p->key.saddr;
	w->rev.sport = p->key.dport;
	w->rev.dport = p->key.sport;
	w->rev.rule = w->fwd.rule;
	w->rev.svc = w->fwd.svc;
	w->rev.backend = w->fwd.backend;
	ret = flow_way_back(skb, p, s, w);
	if (ret)
		return ret;
	if (p->hook == HOOK_FROM_WORKLOAD && share_spent(s->flows_each, s->flows_most)) {
		w->fwd.rule = 0;
		return DROP_SHARE;
	}
	if ((w->maglev & MAGLEV_WATCH) && from_outside && !hand_on && !(w->fwd.flags & FLOW_DSR) &&
	    (w->fwd.action == ACT_LOCAL || w->fwd.action == ACT_PASS))
		flow_watch(&w->fwd, &w->via);
	if (!p->missed)
		flow_forget(p, w);
	/* What the node's own processes ask of Services cannot be forged from outside; and the answers are found by the one look-up that traffic
	 * of the host is spared no less. */
	return flow_write(p->hook == HOOK_TO_UPLINK && (w->fwd.svc.proto || !(s->flags & SET_HOSTS)));
}

/* Is the packet, which no flow has, of a connection of the host's own that is open? By weir0 goes what began with a Service. */
static __always_inline int flow_goes_on(const struct __sk_buff *skb, const struct pkt *p, const struct settings *s, const struct addr_value *a)
{
	return p->hook == HOOK_TO_UPLINK && skb->ifindex != s->host_ifindex && parse_connects(p) && !parse_begins(p) && a && a->kind == ADDR_HOST;
}

/* Begins a flow: fills scratch.fwd and .rev, which flow_enter completes. Returns 0 to go on with it, a drop reason
 * (scratch.fwd.rule names the rule), or -1 to let the packet pass without a flow. */
__noinline int flow_begin(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct addr_value *a, *b;
	__u32 now = clock_now();
	int ret, snat = 0, repoint = 0, from_outside, hand_on, svc, open;
	struct pkt *p;

	if (!w || !s)
		return DROP_NO_ROUTE;
	p = &w->pkt;
	w->via = w->hand_on = addr_none();
	w->maglev = 0;
	w->own = 0;
	w->judged.about = JUDGED_NEW;
	from_outside = p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL;
	__builtin_memset(&w->fwd, 0, sizeof(w->fwd));
	__builtin_memset(&w->rev, 0, sizeof(w->rev));
	w->fwd.mtu = w->rev.mtu = MTU_NONE;
	w->fwd.saddr = p->key.saddr;
	w->fwd.daddr = p->key.daddr;
	w->fwd.sport = p->key.sport;
	w->fwd.dport = p->key.dport;
	w->fwd.epoch = w->rev.epoch = s->epoch;
	w->fwd.seen = w->rev.seen = now;

	open = p->hook == HOOK_FROM_UPLINK ? known_packet(skb) : KNOWN_NOT;
	if (open == KNOWN_OWN)
		return -1;
	a = bpf_map_lookup_elem(&weir_addrs, &p->key.saddr);
	source_forget(w);
	w->source_known = a ? SOURCE_LISTED : SOURCE_UNLISTED;
	if (flow_goes_on(skb, p, s, a))
		open = KNOWN_OPEN;
	if (p->hook == HOOK_FROM_WORKLOAD) {
		if (!a || a->kind != ADDR_ENDPOINT || a->ifindex != skb->ifindex)
			return DROP_SPOOFED;
		/* To one machine, where a router of the link would take it for the node's word. */
		if (ip_is_listeners(p))
			return DROP_NO_ROUTE;
		w->fwd.from = FROM_POD;
		w->fwd.source.w[0] = skb->ifindex;
	} else if (!from_outside) {
		ret = source_routed(skb);
		if (ret)
			return ret;
	} else if (a && (a->kind == ADDR_HOST || a->kind == ADDR_ENDPOINT)) {
		return DROP_SPOOFED;
	} else if (a && a->kind == ADDR_NODE && p->l4 == L4_UDP && p->key.dport == s->tunnel_port &&
		   source_forges_tunnel(skb, p, s, a, bpf_map_lookup_elem(&weir_addrs, &p->key.daddr))) {
		return DROP_TUNNEL_SOURCE;
	}
	/* The stack takes such packets where somebody set route_localnet. */
	if (from_outside && ip_is_loopback(&p->key.daddr))
		return DROP_NO_ROUTE;
	if (rpf_asked(p, s) && rpf_fails(skb))
		return DROP_REVERSE_PATH;
	if (s->flags & SET_HOSTS) {
		ret = host_arrives(skb);
		if (ret)
			return ret;
	}

	if (p->hook != HOOK_TO_WORKLOAD && open == KNOWN_NOT) {
		ret = flow_balance(skb);
		if (ret)
			return ret;
	}
	svc = w->fwd.svc.proto;
	hand_on = !addr_is_none(&w->hand_on);
	b = bpf_map_lookup_elem(&weir_addrs, &w->fwd.daddr);
	if (tunnel_by_service(p, s, &w->fwd))
		return DROP_TUNNEL_FROM_POD;
	if (!svc) {
		if (from_outside && !(b && b->kind == ADDR_ENDPOINT))
			w->own = 1;
		if (p->hook == HOOK_TO_UPLINK && skb->ifindex != s->host_ifindex)
			w->own = 1;
	}
	/* What the host's own processes get is not judged without host endpoints; what the stack routes on is. */
	if (from_outside && !(w->own && !(s->flags & SET_HOSTS) && p->hook == HOOK_FROM_UPLINK && b && b->kind == ADDR_HOST)) {
		ret = source_judge(skb);
		if (ret) {
			w->fwd.rule = 0;
			return ret;
		}
	}
	if (!svc) {
		if (w->own && (!(s->flags & SET_HOSTS) || (p->untracked == UNTRACKED_ALLOWED && !(a && a->kind == ADDR_ENDPOINT))))
			return -1;
	}
	/* In the middle of a flow: where all nodes choose equally, the backend's node may know it. */
	if (!parse_begins(p) && !(w->maglev && hand_on) &&
	    (svc || (a && a->kind == ADDR_ENDPOINT && (a->ingress_set | a->egress_set)) ||
	     (b && b->kind == ADDR_ENDPOINT && (b->ingress_set | b->egress_set))))
		return DROP_NO_FLOW;

	if (hand_on) {
		ret = route_node(skb, &w->hand_on, w->fwd.action == ACT_TUNNEL, &w->fwd);
		if (ret)
			return ret;
		w->rev.flags |= FLOW_HAND_ON;
		if (w->fwd.action == ACT_TUNNEL)
			w->fwd.flags |= FLOW_CLAMP;
	} else {
		if ((a && a->kind == ADDR_ENDPOINT && a->egress_set) || (b && b->kind == ADDR_ENDPOINT && b->ingress_set)) {
			ret = policy_judge(w, &p->key.saddr, &w->fwd.daddr, p->key.proto, p->key.sport, w->fwd.dport);
			if (w->rule)
				w->fwd.rule = w->rule;
			if (ret)
				return ret;
		} else {
			w->judged.src = p->key.saddr;
			w->judged.dst = w->fwd.daddr;
			policy_note(w, a, b, p->key.proto, p->key.sport, w->fwd.dport);
		}
		if (p->hook == HOOK_TO_WORKLOAD || w->own) {
			w->fwd.action = ACT_PASS;
		} else {
			ret = route_known(skb, &p->key.saddr, &w->fwd.daddr, b, &w->fwd);
			if (ret) {
				w->fwd.rule = 0;
				return ret;
			}
		}
		if (w->fwd.action == ACT_NEIGH) {
			if (p->hook == HOOK_FROM_WORKLOAD)
				snat = a && (a->flags & ADDR_NAT_OUTGOING) &&
				       !(b && (b->kind == ADDR_POD || (b->flags & ADDR_KEEP_SOURCE))) &&
				       !route_find(&w->fwd.daddr);
			else if (from_outside && svc)
				snat = 1; /* a backend on no node must answer to us */
			else if (svc && p->hook == HOOK_TO_UPLINK && !(b && b->kind == ADDR_POD) && !route_find(&w->fwd.daddr))
				repoint = 1; /* direct connections of the host to there have no flow to collide with */
		} else if (svc && from_outside && w->fwd.action == ACT_PASS) {
			repoint = 1; /* nor have those to the host's own ports */
		} else if (svc && p->hook == HOOK_FROM_WORKLOAD && addr_same(&w->fwd.daddr, &p->key.saddr)) {
			snat = 1; /* a pod refuses packets from its own address */
		}
		if (snat) {
			w->fwd.saddr = s->node;
			w->fwd.flags |= FLOW_SNAT;
		}
	}
	if (host_on(s)) {
		ret = host_begin(skb);
		if (ret)
			return ret;
	}
	if (b && b->kind == ADDR_ENDPOINT && !hand_on) {
		w->rev.from = FROM_POD;
		w->rev.source.w[0] = b->ifindex;
	} else if (p->hook == HOOK_FROM_WORKLOAD) {
		source_expect(w, snat && !b);
	}
	if (a && a->kind == ADDR_HOST) {
		w->fwd.flags |= FLOW_FROM_HOST;
		w->rev.flags |= FLOW_FROM_HOST;
	}
	w->port = (snat || repoint ? PORT_MUST : 0) | (repoint ? PORT_MAY : 0);
	return DROP_NONE;
}

/* A flow judged in an older epoch. 0 = goes on, -1 = begins anew, else the reason to drop (w->fwd.rule). */
static __noinline int flow_revalidate(struct __sk_buff *skb, struct pkt *p, struct flow_value *f)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct flow_value *way;
	__u32 rule = 0, epoch;
	int ret;

	if (!w || !s || !p || !f)
		return DROP_NO_FLOW;
	epoch = *(volatile __u32 *)&s->epoch; /* what changes while this judges is judged by the next packet */
	if (f->svc.proto && f->svc.proto != IPPROTO_TCP && !lb_lists(&f->svc, &f->backend))
		return -1;
	w->fwd.rule = 0;
	w->fwd.svc = f->svc;
	w->judged.about = JUDGED_AGAIN;
	if (!(f->flags & FLOW_REPLY) && tunnel_by_service(p, s, f)) {
		w->fwd.rule = f->rule;
		return DROP_TUNNEL_FROM_POD;
	}
	if ((s->flags & SET_HOSTS) && !(f->flags & FLOW_REPLY)) {
		ret = host_arrival(skb);
		if (ret)
			return ret;
	}
	if (!(f->flags & FLOW_HAND_ON)) {
		if (f->flags & FLOW_REPLY)
			ret = policy_judge(w, &f->daddr, &p->key.saddr, p->key.proto, policy_other_port(p, f), p->key.sport);
		else
			ret = policy_judge(w, &p->key.saddr, &f->daddr, p->key.proto, p->key.sport, policy_other_port(p, f));
		rule = w->rule;
		w->fwd.rule = rule;
		if (ret)
			return ret;
	}
	if (!(f->flags & (FLOW_VIA_NODE | FLOW_HAND_ON | FLOW_DSR)) && f->action != ACT_PASS &&
	    p->hook != HOOK_TO_WORKLOAD) {
		way = &w->rev;
		__builtin_memset(way, 0, sizeof(*way));
		ret = route_to(skb, &f->saddr, &f->daddr, way);
		if (ret) {
			w->fwd.rule = 0;
			return ret;
		}
		f->action = way->action;
		f->mtu = way->mtu;
		f->ifindex = way->ifindex;
		if (!(f->state & STATE_WATCHED) || way->action == ACT_NEIGH || way->action == ACT_TUNNEL) {
			f->nexthop = way->nexthop;
			f->state &= ~STATE_WATCHED;
		}
		__builtin_memcpy(f->mac, way->mac, 6);
	}
	if (host_on(s)) {
		w->rev = *f;
		ret = host_again(skb);
		f->ifindex = w->rev.ifindex;
		if (w->rule)
			rule = w->rule;
		if (ret) {
			w->fwd.rule = w->rule;
			return ret;
		}
	}
	if (rule)
		f->rule = rule;
	f->epoch = epoch;
	return DROP_NONE;
}

/* Does the packet prove that both ends of the half-open flow f want it? Whoever forges a source does not get the answer,
 * and so does not go on after it. */
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

/* Moves both entries of a half-open flow to the established ones. f is the entry of this direction. */
static __noinline int flow_promote(struct pkt *p, struct flow_value *f)
{
	struct scratch *w = scratch_get();
	struct flow_value *other;

	if (!w || !p || !f)
		return 0;
	w->fwd = *f;
	w->fwd.state |= STATE_REPLIED;
	flow_partner(&w->rkey, f, p->key.proto);
	other = bpf_map_lookup_elem(&weir_flows_new, &w->rkey);
	if (other && !flow_leads_back(other, p))
		other = NULL; /* its port went to another flow since */
	if (other) {
		w->rev = *other;
		w->rev.state |= STATE_REPLIED;
		bpf_map_update_elem(&weir_flows, &w->rkey, &w->rev, BPF_ANY);
	}
	bpf_map_update_elem(&weir_flows, &p->key, &w->fwd, BPF_ANY);
	share_take(other != NULL);
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
	if (other)
		other->state |= STATE_REPLIED;
}

/* FIN and RST. */
static __always_inline void flow_closing(struct pkt *p, struct flow_value *f, struct scratch *w, int half_open)
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
	    ((f->flags & (FLOW_HAND_ON | FLOW_REPLY)) == FLOW_HAND_ON && !(f->state & STATE_ANSWERED))) {
		f->state |= closing;
		if (other)
			other->state |= closing;
	}
}

#endif
