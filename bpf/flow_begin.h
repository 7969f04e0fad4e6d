/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* flow_begin.h: what becomes of the first packet of a flow: its source, its Service, policy, and
 * where it goes. docs/design/datapath.md says what and why. */
#ifndef WEIR_FLOW_BEGIN_H
#define WEIR_FLOW_BEGIN_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "flow_fields.h"
#include "scratch.h"
#include "clock.h"
#include "parse.h"
#include "policy.h"
#include "host_policy.h"
#include "route.h"
#include "rpf.h"
#include "tunnel.h"
#include "source.h"
#include "granted.h"
#include "egress.h"
#include "host_socket.h"
#include "reasons.h"
#include "flow_balance.h"

/* Is the packet, which no flow has, of a connection of the host's own that is open? By weir0 goes
 * what began with a Service. */
static __always_inline int flow_goes_on(const struct __sk_buff *skb, const struct pkt *p,
					const struct settings *s, const struct addr_value *a)
{
	return p->hook == HOOK_TO_UPLINK && skb->ifindex != s->host_ifindex && parse_connects(p) &&
	       !parse_begins(p) && a && a->kind == ADDR_HOST;
}

/* What follows is read anew where it is needed: of a value that the verifier knew it would walk the
 * rest of flow_begin once for each. */
static __always_inline __u8 flow_hook(const struct pkt *p)
{
	return *(const volatile __u8 *)&p->hook;
}

static __always_inline int flow_from_outside(const struct pkt *p)
{
	return flow_hook(p) == HOOK_FROM_UPLINK || flow_hook(p) == HOOK_FROM_TUNNEL;
}

static __always_inline int flow_has_service(const struct scratch *w)
{
	return *(const volatile __u8 *)&flow_svc(&w->fwd)->proto != 0;
}

/* Does a Service or a floating address lead it elsewhere than it was sent to? */
static __always_inline int flow_led(const struct scratch *w)
{
	return *(const volatile __u8 *)&flow_svc(&w->fwd)->proto |
	       *(const volatile __u32 *)&w->balance.floating;
}

static __always_inline int flow_handed_on(const struct scratch *w)
{
	const volatile __u32 *to = w->balance.hand_on.w;
	__u32 any = 0;

	for (int i = 0; i < ADDR_WORDS; i++)
		any |= to[i];
	return any != 0;
}

static __always_inline int flow_translated(const struct scratch *w)
{
	return *(const volatile __u8 *)&w->fwd.flags & FLOW_SNAT;
}

/* The source becomes the node's. */
static __always_inline void flow_translate(struct scratch *w, const struct settings *s)
{
	w->fwd.saddr = s->node;
	w->fwd.flags |= FLOW_SNAT;
	w->port.change = PORT_MUST;
}

static __always_inline int flow_own(const struct scratch *w)
{
	return *(const volatile __u32 *)&w->own != 0;
}

/* Begins a flow: fills scratch.fwd and .rev, which flow_enter completes. Returns enum
 * stage: STAGE_GO_ON, STAGE_PASS, or a drop reason, of which scratch.fwd.rule names the rule. */
__noinline int flow_begin(struct __sk_buff *skb)
{
	struct scratch *w = scratch_get();
	struct settings *s = settings_get();
	struct addr_value *a, *b;
	__u32 now = clock_now();
	int ret, open;
	struct pkt *p;

	if (!w || !s)
		return DROP_INTERNAL;
	p = &w->pkt;
	w->balance.via = w->balance.hand_on = addr_none();
	w->balance.maglev = w->balance.floating = 0;
	w->own = 0;
	w->port.change = 0;
	w->egress.asked = 0;
	w->policy.about = EVALUATED_NEW;
	flow_clear(&w->fwd);
	flow_clear(&w->rev);
	w->fwd.mtu = w->rev.mtu = MTU_NONE;
	w->fwd.saddr = p->key.saddr;
	w->fwd.daddr = p->key.daddr;
	w->fwd.sport = p->key.sport;
	w->fwd.dport = p->key.dport;
	w->fwd.epoch = w->rev.epoch = s->epoch;
	w->fwd.seen = w->rev.seen = now;

	open = flow_hook(p) == HOOK_FROM_UPLINK && parse_connects(p) && !parse_begins(p) ?
		       host_socket_of(skb) :
		       HOST_SOCKET_NONE;
	if (open == HOST_SOCKET_AGENT)
		return STAGE_PASS;
	a = bpf_map_lookup_elem(&weir_addrs, &p->key.saddr);
	source_forget(w);
	w->source.known = a ? SOURCE_LISTED : SOURCE_UNLISTED;
	if (flow_goes_on(skb, p, s, a))
		open = HOST_SOCKET_OPEN;
	if (flow_hook(p) == HOOK_FROM_WORKLOAD) {
		a = granted_pod(skb, w, a);
		if (!a)
			return DROP_SPOOFED;
		/* To one machine, where a router of the link would take it for the node's word. */
		if (ip_is_listeners(p))
			return DROP_NO_ROUTE;
		w->fwd.source.w[0] = skb->ifindex;
	} else if (!flow_from_outside(p)) {
		ret = source_routed(skb);
		if (ret)
			return ret;
	} else if (a && (a->kind == ADDR_HOST || a->kind == ADDR_ENDPOINT)) {
		return DROP_SPOOFED;
	} else if (a && a->kind == ADDR_NODE && p->l4 == L4_UDP && p->key.dport == s->tunnel_port &&
		   source_forges_tunnel(skb, p, s, a,
					bpf_map_lookup_elem(&weir_addrs, &p->key.daddr))) {
		return DROP_TUNNEL_SOURCE;
	}
	/* The stack takes such packets where somebody set route_localnet. */
	if (flow_from_outside(p) && ip_is_loopback(&p->key.daddr))
		return DROP_NO_ROUTE;
	if (rpf_asked(p, s) && rpf_fails(skb))
		return DROP_REVERSE_PATH;
	if (s->flags & SET_HOSTS) {
		ret = host_arrives(skb);
		if (ret)
			return ret;
	}

	if (flow_hook(p) != HOOK_TO_WORKLOAD && open == HOST_SOCKET_NONE) {
		ret = flow_balance(skb);
		if (ret)
			return ret;
	}
	/* The interface of a pod that is not known yet. */
	if ((s->flags & SET_CHAINED) && flow_hook(p) == HOOK_TO_WORKLOAD) {
		b = bpf_map_lookup_elem(&weir_addrs, &w->fwd.daddr);
		if (!b || b->kind != ADDR_ENDPOINT || b->ifindex != skb->ifindex)
			return DROP_NO_ENDPOINT;
	}
	b = bpf_map_lookup_elem(&weir_addrs, &w->fwd.daddr);
	if (tunnel_by_service(p, s, &w->fwd))
		return DROP_TUNNEL_FROM_POD;
	if (egress_enabled && (s->flags & SET_GATEWAYS) &&
	    (flow_hook(p) == HOOK_FROM_TUNNEL || flow_hook(p) == HOOK_FROM_WORKLOAD))
		w->egress.asked = egress_asked();
	if (!flow_has_service(w)) {
		if (flow_from_outside(p) && !egress_is(w) && !(b && b->kind == ADDR_ENDPOINT))
			w->own = 1;
		if (flow_hook(p) == HOOK_TO_UPLINK && skb->ifindex != s->host_ifindex)
			w->own = 1;
	}
	/* What the host's own processes get is not evaluated without host endpoints; what the stack
	 * routes on is. */
	if (flow_from_outside(p) &&
	    !(flow_own(w) && !(s->flags & SET_HOSTS) && flow_hook(p) == HOOK_FROM_UPLINK && b &&
	      b->kind == ADDR_HOST)) {
		ret = !a && !flow_has_service(w) && source_outside(w) ? DROP_NONE :
									source_check(skb);
		if (ret) {
			w->fwd.rule = 0;
			return ret;
		}
	}
	if (!flow_has_service(w)) {
		if (flow_own(w) && (!(s->flags & SET_HOSTS) || (p->untracked == UNTRACKED_ALLOWED &&
								!(a && a->kind == ADDR_ENDPOINT))))
			return STAGE_PASS;
	}
	/* In the middle of a flow: where all nodes choose equally, the backend's node may know it. */
	if (!parse_begins(p) && !(w->balance.maglev && flow_handed_on(w)) &&
	    (flow_led(w) || (a && a->kind == ADDR_ENDPOINT && (a->ingress_set | a->egress_set)) ||
	     (b && b->kind == ADDR_ENDPOINT && (b->ingress_set | b->egress_set))))
		return DROP_NO_FLOW;

	if (flow_handed_on(w)) {
		ret = route_node(skb, &w->balance.hand_on,
				 w->fwd.action == ACT_TUNNEL ? BY_TUNNEL : BY_LINK, &w->fwd);
		if (ret)
			return ret;
		w->rev.flags |= FLOW_HAND_ON;
		if (w->fwd.action == ACT_TUNNEL)
			w->fwd.flags |= FLOW_CLAMP;
	} else {
		w->policy.src = p->key.saddr;
		w->policy.dst = w->fwd.daddr;
		if ((a && a->kind == ADDR_ENDPOINT && a->egress_set) ||
		    (b && b->kind == ADDR_ENDPOINT && b->ingress_set)) {
			ret = policy_between(a, b, p->key.proto, p->key.sport, w->fwd.dport);
			if (w->policy.rule)
				w->fwd.rule = w->policy.rule;
			if (ret)
				return ret;
			flow_name(&w->fwd, w->policy.named);
		} else {
			policy_note(w, a, b, p->key.proto, p->key.sport, w->fwd.dport);
		}
		if (egress_is(w))
			return egress_begin(skb, w, s);
		if (flow_hook(p) == HOOK_TO_WORKLOAD || flow_own(w)) {
			w->fwd.action = ACT_PASS;
		} else {
			ret = route_known(skb, &p->key.saddr, &w->fwd.daddr, b, &w->fwd);
			if (ret) {
				w->fwd.rule = 0;
				return ret;
			}
		}
		/* To a node that is reached through the tunnel it is as to one by its link. */
		if (w->fwd.action == ACT_NEIGH ||
		    (w->fwd.action == ACT_TUNNEL && !flow_from_outside(p) && b &&
		     b->kind == ADDR_NODE)) {
			if (flow_hook(p) == HOOK_FROM_WORKLOAD) {
				if (a && (a->flags & ADDR_NAT_OUTGOING) &&
				    w->source.known == SOURCE_LISTED &&
				    !(b &&
				      (b->kind == ADDR_POD || (b->flags & ADDR_KEEP_SOURCE))) &&
				    !route_find(&w->fwd.daddr))
					flow_translate(w, s);
			} else if (flow_from_outside(p) && flow_has_service(w)) {
				/* A backend on no node must answer to us. */
				flow_translate(w, s);
			} else if (flow_has_service(w) && flow_hook(p) == HOOK_TO_UPLINK &&
				   !(b && b->kind == ADDR_POD) && !route_find(&w->fwd.daddr)) {
				/* Direct connections of the host to there have no flow to collide
				 * with. */
				w->port.change = PORT_MUST | PORT_MAY;
			}
		} else if (flow_has_service(w) && flow_from_outside(p) &&
			   w->fwd.action == ACT_PASS) {
			/* Nor have those to the host's own ports. */
			w->port.change = PORT_MUST | PORT_MAY;
		} else if (flow_led(w) && flow_hook(p) == HOOK_FROM_WORKLOAD &&
			   addr_same(&w->fwd.daddr, &p->key.saddr)) {
			/* A pod refuses packets from its own address. */
			flow_translate(w, s);
		}
		if (!flow_translated(w) && (s->flags & SET_CHAINED) &&
		    flow_hook(p) == HOOK_FROM_WORKLOAD && w->fwd.action == ACT_NEIGH &&
		    !(b && b->kind == ADDR_POD) && !route_find(&w->fwd.daddr)) {
			w->fwd.state |= STATE_STACK;
			w->rev.state |= STATE_STACK;
		}
	}
	if (host_on(s)) {
		ret = host_begin(skb);
		if (ret)
			return ret;
	}
	if (b && b->kind == ADDR_ENDPOINT && !flow_handed_on(w)) {
		w->rev.from = FROM_POD;
		w->rev.source.w[0] = b->ifindex;
	} else if (flow_hook(p) == HOOK_FROM_WORKLOAD) {
		source_expect(w, flow_translated(w) && !b);
	}
	if (a && a->kind == ADDR_HOST) {
		w->fwd.flags |= FLOW_FROM_HOST;
		w->rev.flags |= FLOW_FROM_HOST;
	}
	return DROP_NONE;
}

#endif
