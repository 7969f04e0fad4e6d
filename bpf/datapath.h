/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* datapath.h: one packet at one hook. The fast path is one look-up; all else is flow_slow. */
#ifndef WEIR_DATAPATH_H
#define WEIR_DATAPATH_H

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "clock.h"
#include "parse.h"
#include "drop.h"
#include "policy.h"
#include "names.h"
#include "host_policy.h"
#include "lb.h"
#include "route.h"
#include "rpf.h"
#include "tunnel.h"
#include "quota.h"
#include "source.h"
#include "host_socket.h"
#include "flow.h"
#include "frame.h"
#include "dsr_fallback.h"
#include "forward.h"
#include "reply.h"
#include "mss.h"
#include "frag.h"
#include "events.h"
#include "account.h"
#include "foreign.h"
#include "neigh.h"
#include "resolve.h"
#include "untracked.h"
#include "slow_call.h"

/* The programs for IPv4 are what is attached: they call those for IPv6, which are loaded when the
 * node carries it. */
static __always_inline void datapath_family(struct __sk_buff *skb, __u32 hook)
{
	if (WEIR_FAMILY == 4 && skb->protocol == bpf_htons(ETH_P_IPV6))
		bpf_tail_call(skb, &weir_ipv6, hook);
}

/* Sends scratch.pkt on as scratch.fwd says, or answers it. */
__noinline int datapath_send(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();

	if (!s || !w)
		return drop_packet(skb, DROP_NO_ROUTE, 0);
	if (forward_expires(&w->pkt, &w->fwd))
		return reply_refuse(skb, DROP_TTL, 0);
	if (resolve_asked(&w->pkt, &w->fwd) && resolve_spent(skb))
		return drop_packet(skb, DROP_NEIGHBOURS, 0);
	if (mtu_exceeds(skb, &w->pkt, &w->fwd)) {
		if (reply_too_big(skb, &w->pkt, &w->fwd))
			return reply_refuse(skb, DROP_TOO_BIG, 0);
		if (forward_can_fragment(&w->pkt, &w->fwd, s))
			return forward_fragmented(skb, &w->pkt, &w->fwd, s);
	}
	if ((w->fwd.flags & FLOW_CLAMP) && (w->pkt.tcp & TCP_SYN))
		mss_clamp(skb, &w->pkt, mss_tunnel(s));
	if (WEIR_FAMILY == 4 && w->pkt.fragment && !w->frag.begin && w->fwd.action == ACT_TUNNEL &&
	    ipip_leads(&w->fwd) && frag_ahead(skb) < 0)
		return drop_packet(skb, DROP_REWRITE, 0);
	return forward_flow(skb, &w->pkt, &w->fwd, s);
}

static __always_inline int datapath_forward(struct __sk_buff *skb, struct scratch *w,
					    struct flow_value *f)
{
	flow_copy(&w->fwd, f);
	return datapath_send(skb);
}

/* An ICMP error, in scratch.pkt, about no flow that is known. It begins none: what the node itself
 * reports goes on, and no pod sends or gets one. */
__noinline int datapath_stray(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct addr_value *a, *b;
	struct pkt *p;
	int ret;

	if (!s || !w)
		return drop_packet(skb, DROP_NO_ROUTE, 0);
	p = &w->pkt;
	a = bpf_map_lookup_elem(&weir_addrs, &p->saddr);
	if (p->hook == HOOK_FROM_WORKLOAD)
		return drop_packet(skb,
				   a && a->kind == ADDR_ENDPOINT && a->ifindex == skb->ifindex ?
					   DROP_ERROR_NO_FLOW :
					   DROP_SPOOFED,
				   0);
	if ((p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL) && a &&
	    (a->kind == ADDR_HOST || a->kind == ADDR_ENDPOINT))
		return drop_packet(skb, DROP_SPOOFED, 0);
	if (source_is_outside(p) && ip_is_loopback(&p->daddr))
		return drop_packet(skb, DROP_NO_ROUTE, 0);
	if (rpf_asked(p, s) && rpf_fails(skb))
		return drop_packet(skb, DROP_REVERSE_PATH, 0);
	b = bpf_map_lookup_elem(&weir_addrs, &p->daddr);
	if (!(a && a->kind == ADDR_HOST) &&
	    (p->hook == HOOK_TO_WORKLOAD || (b && b->kind == ADDR_ENDPOINT)))
		return drop_packet(skb, DROP_ERROR_NO_FLOW, 0);
	if (p->hook != HOOK_TO_UPLINK || skb->ifindex != s->host_ifindex)
		return forward_pass(skb);
	flow_clear(&w->fwd);
	ret = route_to(skb, &p->saddr, &p->daddr, &w->fwd);
	if (ret)
		return drop_packet(skb, ret, 0);
	w->fwd.mtu = MTU_NONE; /* nobody could be told */
	p->l4 = L4_NONE; /* nothing in it is translated */
	return datapath_send(skb);
}

/* An ICMP error about a flow that is known: may it come from where it says? From outside it may
 * bear an address of this node's or of a pod here only as the other end of the flow does: so
 * answers come from the node that has the backend. */
static __always_inline int datapath_error_spoofed(struct __sk_buff *skb, const struct pkt *p)
{
	struct addr_value *a = bpf_map_lookup_elem(&weir_addrs, &p->saddr);

	if (p->hook == HOOK_FROM_WORKLOAD)
		return !a || a->kind != ADDR_ENDPOINT || a->ifindex != skb->ifindex;
	return (p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL) && a &&
	       (a->kind == ADDR_HOST || a->kind == ADDR_ENDPOINT) &&
	       !addr_same(&p->saddr, &p->key.saddr);
}

/* Everything but the fast path, for the packet in scratch.pkt. */
__noinline int datapath_slow(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct flow_value *f;
	__u32 now = clock_now();
	int half_open = 0, ret;
	struct pkt *p;
	__u32 was;

	if (!s || !w)
		return drop_packet(skb, DROP_NO_ROUTE, 0);
	p = &w->pkt;
	policy_forget(w);
	w->reset = 0;
	if (p->hook == HOOK_FROM_WORKLOAD && tunnel_from_pod(p, s))
		return drop_packet(skb, DROP_TUNNEL_FROM_POD, 0);
	f = p->missed ? NULL : bpf_map_lookup_elem(&weir_flows, &p->key);
	if (!f) {
		f = bpf_map_lookup_elem(&weir_flows_new, &p->key);
		half_open = 1;
	}
	if (f && !flow_enters(f, p, skb->ifindex) && !source_moved(skb, f))
		f = NULL;
	if (f && (f->state & STATE_CLOSING) && (p->tcp & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
		/* The new connection is the other data plane's: this is not to meet its packets. A RST
		 * anybody may forge. */
		if ((s->flags & SET_HAND_OVER) && !(f->state & STATE_RESET))
			flow_end(p, f);
		f = NULL;
	}
	if (f && flow_expired(f, s, p->key.proto, now))
		f = NULL;
	if (f && p->l4 == L4_ERROR && datapath_error_spoofed(skb, p))
		return drop_packet(skb, DROP_SPOOFED, 0);
	if (f && p->hook != HOOK_FROM_WORKLOAD && p->l4 != L4_ERROR &&
	    (f->epoch != s->epoch || !source_fits(skb, p, f, p->hook))) {
		ret = source_again(skb, f);
		if (ret)
			return drop_packet(skb, ret, 0);
	}
	if (f && f->epoch != s->epoch && !host_passes(p, f)) {
		if (p->untracked == UNTRACKED_ALLOWED && untracked_plain(p, f)) {
			p->untracked = UNTRACKED_PASSED;
			return forward_pass(skb);
		}
		was = f->epoch;
		ret = flow_revalidate(skb, p, f);
		if (p->l4 == L4_ERROR && untracked_comes(s, p))
			f->epoch = was;
		event_report(skb, s, w, ret);
		w->reset = f->state & (STATE_REPLIED | STATE_ANSWERED);
		if (ret > 0)
			return reply_refuse(skb, ret, w->fwd.rule);
		w->reset = 0;
		if (ret == STAGE_ANEW)
			f = NULL;
	}
	if (!f) {
		if (s->flags & SET_HAND_OVER)
			return forward_pass(skb);
		if (p->l4 == L4_ERROR)
			return datapath_stray(skb);
		ret = flow_begin(skb);
		if (ret == STAGE_GO_ON && account_interval)
			account_begin(skb);
		if (ret == STAGE_GO_ON)
			ret = flow_enter(skb);
		if (!ret && account_interval)
			account_entered();
		event_report(skb, s, w, ret);
		if (ret == STAGE_PASS)
			return forward_pass(skb);
		if (ret)
			return reply_refuse(skb, ret, w->fwd.rule);
		return datapath_send(skb);
	}
	if (p->l4 == L4_ERROR)
		return datapath_forward(skb, w, f);
	if (f->seen != now)
		f->seen = now;
	if (f->state & STATE_WATCHED)
		flow_follow(skb, p, f);
	if (half_open && ((f->flags & FLOW_DSR) && parse_connects(p) ? dsr_fallback_follow(skb) :
								       flow_proven(p, f, w))) {
		flow_promote(p, f);
		f = bpf_map_lookup_elem(&weir_flows, &p->key);
		if (!f)
			return datapath_send(skb);
	}
	if (!half_open && (f->flags & FLOW_REPLY) && !(f->state & STATE_REPLIED))
		flow_replied(p, f, w);
	if (account_interval)
		w->account_was = f->state;
	flow_closing(p, f, w, half_open);
	if (account_interval)
		account_state(skb, f);
	return datapath_forward(skb, w, f);
}

/* A fragment that is not the first, by the flow that the first one had. */
static __always_inline int datapath_later(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct frag_value *v;
	struct flow_value *f;
	__u32 now = clock_now(), was;
	struct pkt *p;
	int ret;

	if (!s || !w)
		return TC_ACT_SHOT;
	p = &w->pkt;
	policy_forget(w);
	v = frag_find(w, s);
	if (!v)
		return frag_wait(skb);
	if (v->flags & FRAG_PASS)
		return forward_pass(skb);
	if (w->frag.begin < v->end)
		return frag_refuse(skb, DROP_FRAGMENT_BAD);
	p->key.proto = v->proto;
	p->key.sport = v->sport;
	p->key.dport = v->dport;
	f = bpf_map_lookup_elem(&weir_flows, &p->key);
	if (!f)
		f = bpf_map_lookup_elem(&weir_flows_new, &p->key);
	if (!f || flow_expired(f, s, p->key.proto, now) || !flow_enters(f, p, skb->ifindex))
		return frag_refuse(skb, DROP_FRAGMENT_NO_FIRST);
	if (p->hook != HOOK_FROM_WORKLOAD && !w->frag.again &&
	    (f->epoch != s->epoch || !source_fits(skb, p, f, p->hook))) {
		ret = source_again(skb, f);
		if (ret)
			return drop_packet(skb, ret, 0);
	}
	if (f->epoch != s->epoch && !host_passes(p, f)) {
		was = f->epoch;
		ret = flow_revalidate(skb, p, f);
		if (untracked_comes(s, p))
			f->epoch = was;
		event_report(skb, s, w, ret);
		if (ret > 0)
			return drop_packet(skb, ret, w->fwd.rule);
		if (ret == STAGE_ANEW)
			return frag_refuse(skb, DROP_FRAGMENT_NO_FIRST);
	}
	if (f->seen != now)
		f->seen = now;
	account_packet(skb, &p->key, f);
	return datapath_forward(skb, w, f);
}

/* A fragment, for the packet in scratch.pkt. -1 = it is a first one, and to be treated as a whole
 * packet. */
__noinline int datapath_fragment(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();

	if (!s || !w)
		return TC_ACT_SHOT;
	if (!s->timeouts[TIMEOUT_FRAG])
		return frag_refuse(skb, DROP_FRAGMENT);
	if (w->pkt.malformed || frag_look(skb))
		return frag_refuse(skb, DROP_FRAGMENT_BAD);
	return w->frag.begin ? datapath_later(skb) : -1;
}

/* Packets that no flow can be made of, and fragments. */
static __always_inline int datapath_odd(struct __sk_buff *skb, struct pkt *p, int parsed, int copy)
{
	if (p->fragment) {
		struct scratch *w = scratch_get();
		struct settings *s = settings_get();
		int ret;

		if (!w || !s)
			return TC_ACT_SHOT;
		p->malformed = parsed != PARSED_FRAGMENT;
		p->missed = !p->malformed && !bpf_map_lookup_elem(&weir_flows, &p->key);
		if (copy)
			w->pkt = *p;
		w->answered = 0;
		ret = datapath_fragment(skb);
		if (ret >= 0)
			return ret;
		if (untracked_arrival(skb, p->hook))
			return TC_ACT_SHOT;
		ret = p->missed && foreign_is(skb, p, s) ? forward_pass(skb) : datapath_slow(skb);
		return frag_first(skb, ret);
	}
	if (p->hook == HOOK_FROM_WORKLOAD) {
		switch (parsed) {
		case PARSED_LINK: return resolve_link(skb);
		case PARSED_OTHER:
			return drop_packet(skb,
					   frame_is_tagged(skb)    ? DROP_VLAN :
					   frame_is_discovery(skb) ? DROP_FAMILY_LINK :
								     DROP_FAMILY,
					   0);
		case PARSED_CAST: return drop_packet(skb, DROP_NO_ROUTE, 0);
		}
		return drop_packet(skb, DROP_MALFORMED, 0);
	}
	if (parsed == PARSED_MALFORMED && p->hook == HOOK_TO_WORKLOAD)
		return drop_packet(skb, DROP_MALFORMED, 0);
	/* Where the upper layer begins is known only when the addresses are. */
	if (parsed == PARSED_HIDDEN || (parsed == PARSED_MALFORMED && p->l4_off)) {
		struct addr_value *b = bpf_map_lookup_elem(&weir_addrs, &p->daddr);

		if (p->hook == HOOK_TO_WORKLOAD || (b && b->kind == ADDR_ENDPOINT) ||
		    host_is_guarded(skb, p))
			return drop_packet(skb, DROP_MALFORMED, 0);
	}
	/* What concerns a link alone is for nobody behind this node. The stack forwards some of it. */
	if (WEIR_FAMILY == 6 && (p->hook == HOOK_FROM_UPLINK || p->hook == HOOK_FROM_TUNNEL) &&
	    (parsed == PARSED_LINK || parsed == PARSED_CAST)) {
		struct addr_value *b = bpf_map_lookup_elem(&weir_addrs, &p->daddr);

		if (b && b->kind == ADDR_ENDPOINT)
			return drop_packet(skb, DROP_NO_ROUTE, 0);
	}
	if (p->hook == HOOK_FROM_UPLINK && parsed == PARSED_LINK)
		return neigh_answer(skb);
	return forward_pass(skb);
}

/* A packet that can have a flow, and is not for the fast path; with copy it is in p alone, and not
 * in scratch.pkt. */
static __always_inline int datapath_hard(struct __sk_buff *skb, struct pkt *p, __u8 hook, int copy)
{
	struct scratch *w = scratch_get();

	if (!w)
		return TC_ACT_SHOT;
	if (copy)
		w->pkt = *p;
	if (p->untracked == UNTRACKED_UNKNOWN && untracked_arrival(skb, hook))
		return TC_ACT_SHOT;
	return datapath_slow(skb);
}

/* Programs of pods' interfaces have it all: they go on as filters without any agent or pin, when
 * weir_slow_calls is empty. Where parsed is a constant, and the hook, no more is compiled than that
 * needs, which keeps the fast path's registers free. */
static __always_inline int datapath_leave(struct __sk_buff *skb, struct pkt *p, __u8 hook,
					  int parsed, __u32 flags)
{
	if (hook != HOOK_FROM_WORKLOAD && hook != HOOK_TO_WORKLOAD)
		return datapath_call(skb, p, parsed, flags);
	if (parsed != PARSED_OK)
		return datapath_odd(skb, p, parsed, WEIR_FAMILY == 4);
	return datapath_hard(skb, p, hook, WEIR_FAMILY == 4);
}

/* A packet that was read. */
static __always_inline int datapath_parsed(struct __sk_buff *skb, struct pkt *p, __u8 hook,
					   int parsed, __u32 flags)
{
	struct settings *s;
	struct flow_value *f;
	__u32 now, limit;

	if (parsed != PARSED_OK) {
		if (parsed == PARSED_OTHER) {
			datapath_family(skb, p->hook);
			/* A link outlives the map of IPv6's programs where pins are removed. The filter
			 * behind it has them without that map. */
			if (WEIR_FAMILY == 4 && p->hook == HOOK_TO_WORKLOAD) {
				forward_pass(skb);
				return TC_ACT_UNSPEC;
			}
		}
		if (p->fragment && hook == HOOK_FROM_UPLINK)
			ipip_again(skb);
		return datapath_leave(skb, p, hook, parsed, flags);
	}
	s = settings_get();
	if (!s)
		return TC_ACT_SHOT;
	if (hook == HOOK_FROM_WORKLOAD && p->key.dport == bpf_htons(DNS_PORT) &&
	    (p->l4 == L4_UDP || p->l4 == L4_TCP))
		names_ask(skb, p);
	f = bpf_map_lookup_elem(&weir_flows, &p->key);
	if (!f) {
		if (hook == HOOK_FROM_UPLINK)
			ipip_comes(skb, p);
		if (foreign_is(skb, p, s))
			return forward_pass(skb);
		p->missed = 1;
		return datapath_leave(skb, p, hook, PARSED_OK, flags);
	}
	if (hook == HOOK_FROM_UPLINK && (s->flags & SET_UNTRACKED) &&
	    untracked_known_arrival(skb, p))
		return TC_ACT_SHOT;
	if (f->epoch != s->epoch || !source_fits(skb, p, f, hook) || p->ttl <= 1 ||
	    mtu_exceeds(skb, p, f) || (p->tcp & (TCP_SYN | TCP_FIN | TCP_RST)) ||
	    (f->state & (STATE_CLOSING | STATE_WATCHED)) || p->l4 == L4_ERROR ||
	    ((f->flags & FLOW_REPLY) && !(f->state & STATE_REPLIED)))
		return datapath_leave(skb, p, hook, PARSED_OK, flags);
	now = clock_now();
	if (now != f->seen) {
		limit = p->l4 == L4_TCP ? s->timeouts[f->state & STATE_REPLIED ? TIMEOUT_TCP_EST :
										 TIMEOUT_TCP_SYN] :
			p->l4 == L4_UDP ? flow_timeout(s, IPPROTO_UDP, f->state, f->flags) :
					  s->timeouts[TIMEOUT_ICMP];
		if (clock_past(now, f->seen, limit))
			return datapath_leave(skb, p, hook, PARSED_OK, flags);
		f->seen = now;
	}
	/* Of IPv6 the packet is in scratch.pkt, and there is no stack to spare. */
	if (WEIR_FAMILY == 4) {
		account_segment(skb, p, f);
		account_packet(skb, &p->key, f);
	} else if (account_interval) {
		account_scratch(skb, f);
	}
	return forward_flow(skb, p, f, s);
}

static __always_inline int datapath_packet(struct __sk_buff *skb, __u8 hook,
					   const ip_addr *tunnel_src, __u32 flags)
{
	struct pkt local, *p = &local;

	/* Addresses that long leave too little of the stack to the slow path. */
	if (WEIR_FAMILY == 6) {
		struct scratch *w = scratch_get();

		if (!w)
			return TC_ACT_SHOT;
		p = &w->pkt;
	}
	p->hook = hook;
	p->missed = 0;
	p->untracked = UNTRACKED_UNKNOWN;
	p->tunnel_src = tunnel_src ? *tunnel_src : addr_none();
	return datapath_parsed(skb, p, hook, parse_packet(cursor_of_tc(skb), p), flags);
}

#endif
