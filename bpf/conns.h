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
#include "limits.h"

MAP(weir_conns, BPF_MAP_TYPE_HASH, struct conn_key, struct conn, 262144, BPF_F_NO_PREALLOC);

/* The connection of scratch.pkt, and what there is of it. */
struct conn_work {
	struct conn_key key;
	__u32 direction; /* enum limit_direction, of a connection that the packet opens */
	__u32 opens; /* it was counted because of this packet */
};
MAP(weir_conn_work, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct conn_work, 1, 0);

static __always_inline struct conn_work *conn_work(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_conn_work, &zero);
}

/* Reads the packet into scratch.pkt. 1 = it is of TCP, with its ports and flags. A function of its
 * own: what it has on the stack is gone while the rest runs. */
static __noinline int conn_read(struct __sk_buff *skb, __u32 sent)
{
	struct scratch *w = scratch_get();
	int parsed;

	if (!w)
		return 0;
	w->pkt.hook = sent ? HOOK_FROM_WORKLOAD : HOOK_TO_WORKLOAD;
	w->pkt.missed = 0;
	w->pkt.untracked = UNTRACKED_UNKNOWN;
	w->pkt.tunnel_src = addr_none();
	parsed = parse_packet(cursor_of_tc(skb), &w->pkt);
	if (parsed == PARSED_FRAGMENT) {
		/* Of the first one the flags are where they seem to be. */
		if (ip_fragment(skb, &w->pkt, &w->frag) || w->frag.begin)
			return 0;
	} else if (parsed != PARSED_OK) {
		return 0;
	}
	return w->pkt.l4 == L4_TCP;
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

/* The packet opens a connection. 1 = it is one too many. */
static __noinline int conn_open(__u32 ifindex)
{
	struct conn_work *k = conn_work();
	struct limit_state *s;
	struct limit_key of = {};
	struct conn first = {}, *c;
	int over = 0, was = 0;
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
	if (s->open - l->settled >= l->most && (__s32)(s->open - l->settled) > 0)
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
