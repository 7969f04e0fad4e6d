/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* source.h: does a packet come from where its source lives? docs/design/datapath.md, "Sources",
 * says what and why. Each packet of an open flow is compared with what its entry says
 * (source_fits); where that differs, and for a new flow, the tables are asked (source_check). */
#ifndef WEIR_SOURCE_H
#define WEIR_SOURCE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "parse.h"
#include "route.h"
#include "reasons.h"

/* The MAC address that sent a frame, laid out so that both of its parts are aligned: the verifier
 * insists on that on the stack. */
struct source_sender {
	__u16 pad;
	__u8 mac[6];
} __attribute__((aligned(4)));

/* What stands for a MAC address in flow_value.source. The four bytes of an address of IPv4 have no
 * room for six: the upper two are added to the lower four. Who could choose a MAC address with the
 * same sum could choose the node's own; the tables are asked for all six (source_differs). */
static __always_inline void source_link(ip_addr *to, const __u8 *mac)
{
	__u32 low = *(const __u16 *)mac, high = *(const __u32 *)(mac + 2);

	*to = addr_none();
	to->w[0] = ADDR_WORDS == 1 ? high + low : high;
	if (ADDR_WORDS > 1)
		to->w[ADDR_WORDS - 1] = low;
}

static __always_inline int source_is_outside(const struct pkt *p)
{
	return p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL;
}

/* Does the packet come by the way that its flow's packets come? No look-up: this is asked of every
 * packet. */
static __always_inline int source_fits(struct __sk_buff *skb, const struct pkt *p,
				       const struct flow_value *f, __u8 hook)
{
	struct ethhdr *eth;
	ip_addr link;

	switch (hook) {
	case HOOK_FROM_WORKLOAD: return FROM_IS_POD(f->from) && f->source.w[0] == skb->ifindex;
	case HOOK_FROM_TUNNEL:
		if (f->from == FROM_TUNNEL)
			return addr_same(&f->source, &p->tunnel_src);
		return f->from == FROM_ANYWHERE;
	case HOOK_FROM_UPLINK:
		if (f->from != FROM_LINK)
			return f->from == FROM_ANYWHERE || f->from == FROM_ROUTER;
		eth = (void *)(long)skb->data;
		if ((void *)(eth + 1) > (void *)(long)skb->data_end)
			return 0;
		source_link(&link, eth->h_source);
		return addr_same(&f->source, &link);
	}
	return f->from == FROM_STACK && f->source.w[0] == skb->ingress_ifindex;
}

/* Is the MAC address one that a node publishes, and another than the sender's? */
static __always_inline int source_differs(const struct addr_value *node,
					  const struct source_sender *sender)
{
	const __u8 *mac = node->mac;
	__u32 low = *(const __u16 *)mac, high = *(const __u32 *)(mac + 2);

	return (low | high) &&
	       (low != *(const __u16 *)sender->mac || high != *(const __u32 *)(sender->mac + 2));
}

/* Is scratch.pkt a packet of the tunnel that bears a node's address, and was sent by another
 * machine on the link? The kernel takes the outer Ethernet header off before from_tunnel. a is what
 * is known of its source, b of its destination. */
static __always_inline int source_forges_tunnel(struct __sk_buff *skb, const struct pkt *p,
						const struct settings *s,
						const struct addr_value *a,
						const struct addr_value *b)
{
	struct source_sender sender = {};

	if (p->hook != HOOK_FROM_UPLINK || p->l4 != L4_UDP || p->key.dport != s->tunnel_port ||
	    !a || a->kind != ADDR_NODE || !(a->flags & ADDR_SAME_LINK) || !b ||
	    b->kind != ADDR_HOST)
		return 0;
	bpf_skb_load_bytes(skb, 6, sender.mac, 6);
	return source_differs(a, &sender);
}

/* Nothing that the tables said before counts for the packet at hand. */
static __always_inline void source_forget(struct scratch *w)
{
	w->source.known = SOURCE_UNKNOWN;
	w->balance.front_kind = 0;
}

/* Whose packets those of a flow must be. */
enum source_whose {
	WHOSE_HERE = 0, /* of nobody who is reached by an uplink or the tunnel */
	WHOSE_OUTSIDE = 1, /* of somebody outside of the cluster */
	WHOSE_PODS = 2, /* of a node's pods */
	WHOSE_NODES = 3, /* of a node itself */
	WHOSE_HANDED = 4, /* what a certain node hands on, or answers to what was handed on to it */
};

/* They are those of the node that the address a is known to live on. */
static __always_inline int source_of(struct scratch *w, const struct addr_value *a, int whose)
{
	w->source.home = a->node;
	w->source.home_flags = (a->flags & ADDR_SAME_LINK ? ROUTE_SAME_LINK : 0) |
			       (a->flags & ADDR_TUNNEL ? ROUTE_TUNNEL : 0);
	return whose;
}

/* Whose packets scratch.pkt's flow, of which scratch.fwd has svc, backend and flags, must be: the
 * node goes to scratch.source.home, its flags (enum route_flag) to scratch.source.home_flags. */
__noinline int source_owner(void)
{
	struct scratch *w = scratch_get();
	struct addr_value *a, *b;
	struct route_value *r;
	__u32 known;
	int answer;

	if (!w)
		return WHOSE_HERE;
	answer = (w->fwd.flags & (FLOW_HAND_ON | FLOW_REPLY)) == (FLOW_HAND_ON | FLOW_REPLY);
	known = answer ? SOURCE_UNKNOWN : w->source.known;
	if (known == SOURCE_ROUTED)
		return !(w->source.home_flags & ROUTE_REMOTE) ? WHOSE_HERE : WHOSE_PODS;
	if (answer)
		w->source.sender = flow_backend(&w->fwd)->addr;
	else
		w->source.sender = w->pkt.key.saddr;
	a = known == SOURCE_UNLISTED ? NULL : bpf_map_lookup_elem(&weir_addrs, &w->source.sender);
	if (a && (a->kind == ADDR_HOST || a->kind == ADDR_ENDPOINT))
		return WHOSE_HERE;
	if (a && (answer || a->kind == ADDR_POD))
		return source_of(w, a, answer ? WHOSE_HANDED : WHOSE_PODS);
	if (!a) {
		r = route_find(&w->source.sender);
		if (r) {
			w->source.home = r->node;
			w->source.home_flags = r->flags;
			return !(r->flags & ROUTE_REMOTE) ? WHOSE_HERE :
			       answer                     ? WHOSE_HANDED :
							    WHOSE_PODS;
		}
		if (answer)
			return WHOSE_HERE;
		w->source.known = SOURCE_OUTSIDE;
	}
	if (flow_svc(&w->fwd)->proto && !(w->fwd.flags & FLOW_REPLY) &&
	    (!w->balance.front_kind || w->balance.front_kind == ADDR_NODE + 1)) {
		b = bpf_map_lookup_elem(&weir_addrs, &w->pkt.key.daddr);
		if (b && b->kind == ADDR_NODE) /* a node port of that node, which hands it on */
			return source_of(w, b, WHOSE_HANDED);
	}
	return a ? source_of(w, a, WHOSE_NODES) : WHOSE_OUTSIDE;
}

/* Is the source of scratch.pkt, which weir_addrs does not have and whose flow has no Service,
 * outside of the cluster? Then it may come from anywhere: what source_check says, without the
 * calls. Otherwise scratch.source.home and home_flags say where, so that source_owner need not
 * look. */
static __always_inline int source_outside(struct scratch *w)
{
	struct route_value *r = route_find(&w->pkt.key.saddr);

	if (r) {
		w->source.home = r->node;
		w->source.home_flags = r->flags;
		w->source.known = SOURCE_ROUTED;
		return 0;
	}
	w->source.known = SOURCE_OUTSIDE;
	w->fwd.from = FROM_ANYWHERE;
	return 1;
}

/* Is scratch.pkt for this node's own processes, and for no Service, nor of a flow that a program
 * leads elsewhere? What pods send there comes without the tunnel. */
static __always_inline int source_for_host(const struct scratch *w)
{
	struct addr_value *b;

	if (w->pkt.hook != HOOK_FROM_UPLINK || flow_svc(&w->fwd)->proto ||
	    w->fwd.action != ACT_PASS)
		return 0;
	b = bpf_map_lookup_elem(&weir_addrs, &w->pkt.key.daddr);
	return b && b->kind == ADDR_HOST;
}

/* May scratch.pkt, which came from outside, come from there by the tables? scratch.fwd is its flow:
 * svc, backend and flags are read, from and source written. Returns 0 or the reason to drop. */
__noinline int source_check(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct source_sender sender = {};
	struct link_key link = {};
	struct addr_value *n;
	int whose, request;

	if (!w)
		return DROP_INTERNAL;
	w->fwd.from = FROM_ANYWHERE;
	w->fwd.source = addr_none();
	whose = source_owner();
	if (whose == WHOSE_OUTSIDE)
		return DROP_NONE;
	if (whose == WHOSE_HERE)
		return DROP_SPOOFED;
	/* A node's own request may be handed on by another node. */
	request = whose == WHOSE_NODES && flow_svc(&w->fwd)->proto && !(w->fwd.flags & FLOW_REPLY);
	if (w->pkt.hook == HOOK_FROM_TUNNEL) {
		if (!addr_same(&w->pkt.tunnel_src, &w->source.home))
			return request ? DROP_NONE : DROP_SPOOFED;
		w->fwd.from = FROM_TUNNEL;
		w->fwd.source = w->source.home;
		return DROP_NONE;
	}
	if (whose == WHOSE_NODES && source_for_host(w))
		return DROP_NONE;
	if (!(w->source.home_flags & ROUTE_SAME_LINK)) {
		if (whose == WHOSE_HANDED ||
		    ((w->source.home_flags & ROUTE_TUNNEL) && !source_for_host(w)))
			return DROP_SPOOFED;
		w->fwd.from = FROM_ROUTER;
		return DROP_NONE;
	}
	n = bpf_map_lookup_elem(&weir_addrs, &w->source.home);
	bpf_skb_load_bytes(skb, 6, sender.mac, 6);
	/* A node's other addresses may be on other interfaces. */
	if (!n || n->kind != ADDR_NODE || !(*(__u16 *)n->mac | *(__u32 *)(n->mac + 2)) ||
	    (whose == WHOSE_NODES && !addr_same(&w->pkt.key.saddr, &w->source.home))) {
		w->fwd.from = FROM_ROUTER;
		return DROP_NONE;
	}
	__builtin_memcpy(link.mac, sender.mac, 6);
	if (source_differs(n, &sender))
		return request && bpf_map_lookup_elem(&weir_links, &link) ? DROP_NONE :
									    DROP_SPOOFED;
	w->fwd.from = FROM_LINK;
	source_link(&w->fwd.source, sender.mac);
	return DROP_NONE;
}

/* Where the answers to a pod's flow scratch.fwd come from, as far as its own route tells: by the
 * tunnel from the node that it leads to, or from the MAC address of the next hop where that is a
 * node. What comes otherwise is checked against the tables, as without this. outside: the other end
 * is in none of the tables. */
static __always_inline void source_expect(struct scratch *w, int outside)
{
	struct addr_value *n;

	if (w->fwd.action == ACT_TUNNEL) {
		w->rev.from = FROM_TUNNEL;
		w->rev.source = w->fwd.nexthop;
		return;
	}
	if (w->fwd.action != ACT_NEIGH)
		return;
	if (outside) {
		w->rev.from = FROM_ANYWHERE;
		return;
	}
	n = bpf_map_lookup_elem(&weir_addrs, &w->fwd.nexthop);
	if (!n || n->kind != ADDR_NODE || !(n->flags & ADDR_SAME_LINK) ||
	    !(*(__u16 *)n->mac | *(__u32 *)(n->mac + 2)))
		return;
	w->rev.from = FROM_LINK;
	source_link(&w->rev.source, n->mac);
}

/* May scratch.pkt, which the stack sends to a pod or by an uplink, have come in by the interface by
 * which it did, 0 = it was sent here? By those that are neither an uplink nor the tunnel, such as
 * containers' bridges, no pod of another node comes, unless its node is reached there; and a pod of
 * this node by its own alone. An address of the node itself may be there by masquerading.
 * scratch.fwd's from and source are written. Returns 0 or the reason to drop. */
__noinline int source_routed(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct bpf_fib_lookup fib = {};
	struct route_value *r;
	struct addr_value *a;
	int learned;
	__u32 in;
	long ret;

	if (!s || !w)
		return DROP_INTERNAL;
	in = skb->ingress_ifindex;
	w->fwd.from = FROM_STACK;
	w->fwd.source = addr_none();
	w->fwd.source.w[0] = in;
	if (!in || in == s->host_ifindex || in == s->tunnel_ifindex ||
	    bpf_map_lookup_elem(&weir_uplinks, &in))
		return DROP_NONE;
	w->source.sender = w->pkt.key.saddr;
	a = bpf_map_lookup_elem(&weir_addrs, &w->source.sender);
	if (a) {
		if (a->kind == ADDR_ENDPOINT)
			return a->ifindex == in ? DROP_NONE : DROP_SPOOFED;
		if (a->kind != ADDR_POD)
			return DROP_NONE;
		w->source.home = a->node;
		learned = a->flags & ADDR_LEARNED;
	} else {
		r = route_find(&w->source.sender);
		if (!r)
			return DROP_NONE;
		if (!(r->flags & ROUTE_REMOTE))
			return DROP_SPOOFED;
		w->source.home = r->node;
		learned = r->flags & ROUTE_LEARNED;
	}
	if (learned && route_leads(skb, &s->node, &w->source.sender, &fib))
		return fib.ifindex == in ? DROP_NONE : DROP_SPOOFED;
	ret = route_ask(skb, &fib, &s->node, &w->source.home, 0);
	if (ret != BPF_FIB_LKUP_RET_SUCCESS && ret != BPF_FIB_LKUP_RET_NO_NEIGH &&
	    ret != BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return DROP_SPOOFED;
	return fib.ifindex == in ? DROP_NONE : DROP_SPOOFED;
}

/* The packet of the open flow f does not come as its packets do, or the tables changed: may it?
 * Then f's packets come so from now on. */
static __noinline int source_again(struct __sk_buff *skb, struct flow_value *f)
{
	struct scratch *w = scratch_get();
	int ret;

	if (!w || !f)
		return DROP_INTERNAL;
	flow_copy(&w->fwd, f);
	source_forget(w);
	ret = source_is_outside(&w->pkt) ? source_check(skb) : source_routed(skb);
	if (!ret) {
		f->from = w->fwd.from;
		f->source = w->fwd.source;
	}
	return ret;
}

/* Has the source of scratch.pkt, which is a packet of the flow f of an older epoch, come to this
 * node's pod that sends it, or gone to another node? So does the address of a virtual machine that
 * is moved. What comes from outside is compared with the tables by source_again. */
static __noinline int source_moved(struct __sk_buff *skb, struct flow_value *f)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct addr_value *a;

	if (!s || !w || !f || f->epoch == s->epoch || w->pkt.l4 == L4_ERROR)
		return 0;
	a = bpf_map_lookup_elem(&weir_addrs, &w->pkt.key.saddr);
	if (!a)
		return 0;
	if (source_is_outside(&w->pkt))
		return a->kind == ADDR_POD;
	if (w->pkt.hook != HOOK_FROM_WORKLOAD || FROM_IS_POD(f->from) || a->kind != ADDR_ENDPOINT ||
	    a->ifindex != skb->ifindex)
		return 0;
	f->from = FROM_POD;
	f->source = addr_none();
	f->source.w[0] = skb->ifindex;
	return 1;
}

#endif
