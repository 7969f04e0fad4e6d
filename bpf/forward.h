/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* forward.h: a packet goes the way that its flow says. */
#ifndef WEIR_FORWARD_H
#define WEIR_FORWARD_H

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "parse.h"
#include "nat.h"
#include "drop.h"
#include "route.h"

static __always_inline void forward_trace(struct __sk_buff *skb, __u32 action, __u32 ifindex,
					  const ip_addr *nexthop, __u32 rule)
{
	if (trace_enabled) {
		skb->cb[0] = 1 + action;
		skb->cb[1] = ifindex;
		skb->cb[2] = trace_addr(nexthop);
		skb->cb[3] = rule;
	}
}

static __always_inline int forward_pass(struct __sk_buff *skb)
{
	forward_trace(skb, ACT_PASS, 0, NULL, 0);
	return TC_ACT_OK;
}

static __always_inline void forward_mark(struct __sk_buff *skb, __u32 mark)
{
	skb->mark = (skb->mark & ~MARK_MASK) | mark;
}

/* TTL (which is more than 1) and the Ethernet addresses of a pod's interface, in one look at the
 * header. */
static __always_inline int forward_headers(struct __sk_buff *skb, int ttl, const __u8 *mac)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	ip_head *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > (void *)(long)skb->data_end) {
		if (cursor_pull_tc(skb, ETH_SIZE + sizeof(*ip)))
			return DROP_REWRITE;
		eth = (void *)(long)skb->data;
		ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > (void *)(long)skb->data_end)
			return DROP_REWRITE;
	}
	if (ttl)
		ip_hop(skb, ip);
	if (mac) {
		__builtin_memcpy(eth->h_dest, mac, 6);
		__builtin_memset(eth->h_source, 0xee, 6);
	}
	return DROP_NONE;
}

/* Into the stack by weir0, whose MAC address is that of all host sides. */
static __always_inline int forward_to_host(struct __sk_buff *skb, struct settings *s)
{
	struct ethhdr *eth = (void *)(long)skb->data;

	if ((void *)(eth + 1) <= (void *)(long)skb->data_end)
		__builtin_memset(eth->h_dest, 0xee, 6);
	return bpf_redirect(s->host_ifindex, BPF_F_INGRESS);
}

static __always_inline int forward_tunnel(struct __sk_buff *skb, struct settings *s,
					  const ip_addr *node)
{
	struct scratch *w = scratch_get();
	struct bpf_tunnel_key *key;

	if (!s->tunnel_ifindex || !w)
		return drop_packet(skb, DROP_NO_ROUTE, 0);
	key = &w->tunnel;
	__builtin_memset(key, 0, sizeof(*key));
	key->tunnel_id = s->vni;
	key->tunnel_ttl = 64;
	ip_outer_set(key, node, &s->node);
	if (bpf_skb_set_tunnel_key(skb, key, sizeof(*key), IP_TUNNEL_SET))
		return drop_packet(skb, DROP_REWRITE, 0);
	forward_mark(skb, MARK_DONE);
	return bpf_redirect(s->tunnel_ifindex, 0);
}

/* To the node that the flow entry f leads to, by the tunnel that it says. */
static __always_inline int forward_encapsulated(struct __sk_buff *skb, struct settings *s,
						const struct flow_value *f)
{
#if WEIR_FAMILY == 4
	__u32 gateway;
	int ret;

	if (ipip_leads(f)) {
		__builtin_memcpy(&gateway, f->mac, 4);
		ret = ipip_send(skb, f->ifindex, f->nexthop.w[0], gateway);
		return ret < 0 ? drop_packet(skb, DROP_REWRITE, 0) : ret;
	}
#endif
	return forward_tunnel(skb, s, &f->nexthop);
}

/* Does the packet's TTL end here? What came through the host's own stack keeps it. */
static __always_inline int forward_expires(const struct pkt *p, const struct flow_value *f)
{
	return p->ttl <= 1 && f->action != ACT_PASS && p->hook != HOOK_TO_UPLINK &&
	       p->hook != HOOK_TO_WORKLOAD;
}

static __always_inline int forward_rewrite(struct __sk_buff *skb, struct pkt *p,
					   struct flow_value *f)
{
	if (p->l4 == L4_ERROR)
		return nat_rewrite_error(skb, p, f);
	return f->flags & FLOW_REWRITE ? nat_rewrite(skb, p, f) : DROP_NONE;
}

/* Can the host's stack do the fragmenting? What goes into the tunnel is fragmented outside of it,
 * by the stack too. */
static __always_inline int forward_can_fragment(const struct pkt *p, const struct flow_value *f,
						const struct settings *s)
{
	return p->l4 != L4_ERROR && p->hook != HOOK_TO_UPLINK && p->hook != HOOK_TO_WORKLOAD &&
	       s->host_ifindex && (f->action == ACT_NEIGH || flow_is_local(f)) &&
	       !(f->flags & (FLOW_VIA_NODE | FLOW_HAND_ON));
}

/* Translates the packet and leaves the rest to the host's stack, which routes and fragments it. The
 * mark lets it pass the programs that it meets then. */
static __always_inline int forward_fragmented(struct __sk_buff *skb, struct pkt *p,
					      struct flow_value *f, struct settings *s)
{
	int ret = forward_rewrite(skb, p, f);

	if (ret)
		return drop_packet(skb, ret, 0);
	forward_trace(skb, ACT_PASS, 0, NULL, f->rule);
	forward_mark(skb, MARK_DONE);
	return forward_to_host(skb, s);
}

/* Sends the packet on as the flow entry f says. */
static __always_inline int forward_flow(struct __sk_buff *skb, struct pkt *p, struct flow_value *f,
					struct settings *s)
{
	int host = p->hook == HOOK_TO_UPLINK || p->hook == HOOK_TO_WORKLOAD;
	int ret = forward_rewrite(skb, p, f);

	if (ret)
		return drop_packet(skb, ret, 0);
	if (p->hook == HOOK_TO_WORKLOAD) {
		forward_trace(skb, ACT_PASS, 0, NULL, f->rule);
		return TC_ACT_OK;
	}
	if ((f->state & STATE_STACK) && !host) {
		forward_trace(skb, ACT_PASS, 0, NULL, f->rule);
		forward_mark(skb, MARK_DONE);
		return TC_ACT_OK;
	}
	forward_trace(skb, f->action == ACT_QUEUE ? ACT_LOCAL : f->action,
		      f->action == ACT_PASS ? 0 : f->ifindex,
		      f->action == ACT_NEIGH || f->action == ACT_TUNNEL ? &f->nexthop : NULL,
		      f->rule);
	switch (f->action) {
	case ACT_LOCAL:
		ret = forward_headers(skb, !host, f->mac);
		if (ret)
			return drop_packet(skb, ret, 0);
		if (host) {
			forward_mark(skb, MARK_DONE);
			return bpf_redirect(f->ifindex, 0);
		}
		return bpf_redirect_peer(f->ifindex, 0);
	case ACT_QUEUE: /* bpf_redirect_peer passes by the queue */
		ret = forward_headers(skb, !host, f->mac);
		if (ret)
			return drop_packet(skb, ret, 0);
		forward_mark(skb, MARK_DONE);
		return bpf_redirect(f->ifindex, 0);
	case ACT_NEIGH: {
		struct bpf_redir_neigh nh = { .nh_family = ADDR_AF };

		addr_store(nh.ipv6_nh, &f->nexthop); /* a union with the IPv4 field */
		ret = forward_headers(skb, !host, NULL);
		if (ret)
			return drop_packet(skb, ret, 0);
		forward_mark(skb, MARK_DONE);
		return bpf_redirect_neigh(f->ifindex, &nh, sizeof(nh), 0);
	}
	case ACT_TUNNEL:
		ret = forward_headers(skb, !host, NULL);
		if (ret)
			return drop_packet(skb, ret, 0);
		return forward_encapsulated(skb, s, f);
	}
	if (!host && (s->flags & SET_APART) && (f->flags & FLOW_REWRITE))
		forward_mark(skb, MARK_SEEN);
	/* An answer that a host process gets from the Service's address: it comes in by weir0, where
	 * reverse-path checks expect it. A pod's interface has no address of its own: even loose checks
	 * fail there. What has the pod's own address comes in by its interface, and is expected nowhere
	 * else. */
	if ((f->flags & (FLOW_REPLY | FLOW_REWRITE | FLOW_FROM_HOST)) ==
		    (FLOW_REPLY | FLOW_REWRITE | FLOW_FROM_HOST) &&
	    !host && s->host_ifindex &&
	    !(p->hook == HOOK_FROM_WORKLOAD && addr_same(&f->saddr, &p->key.saddr)))
		return forward_to_host(skb, s);
	return TC_ACT_OK;
}

#endif
