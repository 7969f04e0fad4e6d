/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* conns.h: how many connections of TCP a pod may have open, those that it began and those that it
 * accepted. They are counted at its interface, as it sees them, in a table of their own, so that
 * the table of flows, which forgets what is used least, changes no count. User space takes out what
 * has no flow any more (package podlimits). docs/design/datapath.md, "Limited pods". */
#ifndef WEIR_CONNS_H
#define WEIR_CONNS_H

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "parse.h"
#include "reply.h"
#include "events.h"
#include "limits.h"

MAP(weir_conns, BPF_MAP_TYPE_HASH, struct conn_key, struct conn, 262144, BPF_F_NO_PREALLOC);

/* The connection of scratch.pkt, and what there is of it. */
struct conn_work {
	struct conn_key key;
	__u32 direction; /* enum limit_direction, of a connection that the packet opens */
	__u32 opens; /* it was counted because of this packet */
	__u32 len; /* limited_before: of the packet */
};
MAP(weir_conn_work, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct conn_work, 1, 0);

static __always_inline struct conn_work *conn_work(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_conn_work, &zero);
}

/* Reads the packet into scratch.pkt. 1 = it is of TCP, with its ports and flags, -1 = it cannot be
 * read. A function of its own: what it has on the stack is gone while the rest runs. */
static __noinline int conn_read(struct __sk_buff *skb, __u32 sent)
{
	struct scratch *w = scratch_get();
	int parsed;

	if (!w)
		return -1;
	w->pkt.hook = sent ? HOOK_FROM_WORKLOAD : HOOK_TO_WORKLOAD;
	w->pkt.missed = 0;
	w->pkt.untracked = UNTRACKED_UNKNOWN;
	w->pkt.tunnel_src = addr_none();
	parsed = parse_packet(cursor_of_tc(skb), &w->pkt);
	if (parsed == PARSED_FRAGMENT) {
		/* Of the first one the flags are where they seem to be. */
		if (ip_fragment(skb, &w->pkt, &w->frag) || w->frag.begin)
			return -1;
	} else if (parsed != PARSED_OK) {
		return -1;
	}
	return w->pkt.l4 == L4_TCP;
}

/* Tells user space of a packet that a limit drops for reason. Of fragments but the first, and of
 * what is not of IP, it does not. */
__noinline int limit_event(struct __sk_buff *skb, __u32 reason, __u32 sent)
{
	struct scratch *w = scratch_get();

	if (!w || conn_read(skb, sent) < 0)
		return 0;
	policy_forget(w);
	flow_clear(&w->fwd);
	w->policy.src = w->pkt.key.saddr;
	w->policy.dst = w->pkt.key.daddr;
	policy_ports(w, w->pkt.key.proto, w->pkt.key.sport, w->pkt.key.dport);
	w->policy.ends = sent ? EVENT_EGRESS : EVENT_INGRESS;
	return event_put(skb->ifindex, reason);
}

/* Drops a packet that is one too many. */
static __always_inline int limit_drop(struct __sk_buff *skb, __u32 reason, __u32 sent)
{
	drop_count(skb, reason, 0);
	limit_event(skb, reason, sent);
	return drop_verdict(skb, reason, 0);
}

/* One connection less. */
static __always_inline void conn_uncount(struct limit_state *s)
{
	if (s->open)
		s->open--;
}

static __noinline struct limit_state *conn_state(__u32 ifindex, __u32 direction)
{
	struct limit_key key = { .ifindex = ifindex, .direction = direction };

	return bpf_map_lookup_elem(&weir_limit_states, &key);
}

/* Is another connection one too many? Under the lock of s. */
static __always_inline int conn_over(const struct limit_state *s, __u32 settled, __u32 most)
{
	__u32 open = s->open - settled;

	return (__s32)open > 0 && open >= most;
}

/* The packet opens a connection. 1 = it is one too many. */
static __noinline int conn_open(__u32 ifindex)
{
	struct conn_work *k = conn_work();
	struct limit_state *s;
	struct limit_key of = {};
	struct conn first = {}, *c;
	int over = 0;
	struct limit *l;

	if (!k)
		return 0;
	of.ifindex = ifindex;
	of.direction = k->direction;
	l = limit_get(&of);
	if (!l || !l->most)
		return 0;
	s = bpf_map_lookup_elem(&weir_limit_states, &of);
	if (!s)
		return 0;
	c = bpf_map_lookup_elem(&weir_conns, &k->key);
	if (c && !c->ended)
		return 0; /* the same SYN again */
	bpf_spin_lock(&s->lock);
	if (conn_over(s, l->settled, l->most))
		over = 1;
	else
		s->open++;
	bpf_spin_unlock(&s->lock);
	if (over)
		return 1;
	first.direction = k->direction;
	first.begun = bpf_ktime_get_ns();
	if (c) /* an ended one had the ports */
		bpf_map_delete_elem(&weir_conns, &k->key);
	k->opens = !bpf_map_update_elem(&weir_conns, &k->key, &first, BPF_NOEXIST);
	if (!k->opens) { /* another processor was faster, or there is no room to count it */
		bpf_spin_lock(&s->lock);
		conn_uncount(s);
		bpf_spin_unlock(&s->lock);
	}
	return 0;
}

/* A packet of a connection that is open, or was. What goes on after a RST was not ended by it:
 * anybody may forge one, so it takes a place again. 1 = there is none. */
static __noinline int conn_follow(__u32 ifindex, __u32 sent)
{
	struct scratch *w = scratch_get();
	struct conn_work *k = conn_work();
	struct limit_key of = {};
	struct limit_state *s;
	int closed = 0, over = 0;
	struct limit *l;
	struct conn *c;

	if (!w || !k)
		return 0;
	c = bpf_map_lookup_elem(&weir_conns, &k->key);
	if (!c)
		return 0;
	if (w->pkt.tcp & TCP_FIN) {
		if (sent)
			c->fin_sent = 1;
		else
			c->fin_got = 1;
		closed = c->fin_sent && c->fin_got;
	}
	if (!(w->pkt.tcp & TCP_RST) == !c->ended && !closed)
		return 0;
	of.ifindex = ifindex;
	of.direction = c->direction;
	l = limit_get(&of);
	s = bpf_map_lookup_elem(&weir_limit_states, &of);
	if (!l || !s)
		return 0;
	bpf_spin_lock(&s->lock);
	if (closed || (w->pkt.tcp & TCP_RST)) {
		if (!c->ended)
			conn_uncount(s);
		c->ended = 1;
	} else if (c->ended) {
		over = l->most && conn_over(s, l->settled, l->most);
		if (!over) {
			s->open++;
			c->ended = 0;
		}
	}
	bpf_spin_unlock(&s->lock);
	if (closed)
		bpf_map_delete_elem(&weir_conns, &k->key);
	return over;
}

/* Counts what a pod at whose interface the packet is has open, with sent what it sends. 1 = the
 * packet opens a connection too many, or goes on with one. What the node's own processes open is
 * not counted: the kubelet asks whether the pod lives. */
static __noinline int conn_packet(struct __sk_buff *skb, __u32 sent)
{
	struct limit_key of = { .ifindex = skb->ifindex };
	struct scratch *w = scratch_get();
	struct conn_work *k = conn_work();
	struct limit *in, *out;

	if (!w || !k)
		return 0;
	k->opens = 0;
	w->answered = 0;
	in = limit_get(&of);
	of.direction = LIMIT_EGRESS;
	out = limit_get(&of);
	if (!(in && in->most) && !(out && out->most))
		return 0;
	if (conn_read(skb, sent) <= 0)
		return 0;
	k->key.ifindex = skb->ifindex;
	addr_widen(k->key.pod, sent ? &w->pkt.saddr : &w->pkt.daddr);
	addr_widen(k->key.peer, sent ? &w->pkt.daddr : &w->pkt.saddr);
	k->key.port = sent ? w->pkt.key.sport : w->pkt.key.dport;
	k->key.peer_port = sent ? w->pkt.key.dport : w->pkt.key.sport;
	if ((w->pkt.tcp & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN)
		return conn_follow(skb->ifindex, sent);
	k->direction = sent ? LIMIT_EGRESS : LIMIT_INGRESS;
	if (!sent && limit_of_host(skb))
		return 0;
	return conn_open(skb->ifindex);
}

/* What the packet opened goes nowhere. */
static __noinline int conn_undo(void)
{
	struct conn_work *k = conn_work();
	struct limit_state *s;
	struct conn *c;

	if (!k || !k->opens)
		return 0;
	c = bpf_map_lookup_elem(&weir_conns, &k->key);
	s = conn_state(k->key.ifindex, k->direction);
	if (!c || !s)
		return 0;
	bpf_spin_lock(&s->lock);
	if (!c->ended)
		conn_uncount(s);
	c->ended = 1;
	bpf_spin_unlock(&s->lock);
	return bpf_map_delete_elem(&weir_conns, &k->key);
}

/* scratch.pkt would open a connection too many to the pod: it becomes the reset that the pod would
 * send, and comes in by the pod's interface, so that it goes back translated as all that the pod
 * sends. */
__noinline int conn_refuse_got(struct __sk_buff *skb)
{
	struct reply_work *r = reply_get();
	struct scratch *w = scratch_get();

	if (!r || !w || !reply_may(skb, w, r))
		return drop_packet(skb, DROP_CONNECTIONS, 0);
	if (!reply_take(r)) {
		reply_count(ANSWER_LIMITED);
		return drop_packet(skb, DROP_CONNECTIONS, 0);
	}
	drop_count(skb, DROP_CONNECTIONS, 0);
	if (reply_reset(skb, &w->pkt, r) || reply_replace(skb)) {
		reply_count(ANSWER_FAILED);
		return TC_ACT_SHOT;
	}
	reply_count(ANSWER_RESET);
	skb->mark = (skb->mark & ~MARK_MASK) | MARK_QUEUED;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

#endif
