/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* own.h: connections of this node's own processes that the tables must not take: those that are
 * open when a Service comes, and the agent's to the API server, whose sockets bear MARK_OWN.
 * docs/design/datapath.md, "The agent's own connections", says what and why. */
#ifndef WEIR_OWN_H
#define WEIR_OWN_H

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "scratch.h"
#include "parse.h"
#include "flow.h"

/* The mask under which MARK_DONE and MARK_OWN are one value, so that the fast path compares
 * once. */
#define MARK_SENT_ON (MARK_MASK & ~(MARK_DONE ^ MARK_OWN))

/* May a packet pass that leaves by an uplink or by weir0, and whose mark is MARK_DONE or MARK_OWN?
 * The agent's own passes wherever the kernel's routes lead it but by weir0. What the table of flows
 * has of its connection is of another one: it ends with the SYN. */
__noinline int own_leaves(struct __sk_buff *skb)
{
	struct settings *s = settings_get();
	struct scratch *w = scratch_get();
	struct flow_value *f;
	struct pkt *p;

	if (!s || !w)
		return 0;
	if (skb->ifindex == s->host_ifindex)
		return 0;
	p = &w->pkt;
	p->hook = HOOK_TO_UPLINK;
	p->missed = 0;
	p->untracked = UNTRACKED_NONE;
	p->tunnel_src = addr_none();
	if (parse_packet(cursor_of_tc(skb), p) != PARSED_OK || p->l4 != L4_TCP ||
	    !(p->tcp & TCP_SYN))
		return 1;
	w->rkey = p->key;
	p->key.saddr = w->rkey.daddr;
	p->key.daddr = w->rkey.saddr;
	p->key.sport = w->rkey.dport;
	p->key.dport = w->rkey.sport;
	f = bpf_map_lookup_elem(&weir_flows, &p->key);
	if (!f)
		f = bpf_map_lookup_elem(&weir_flows_new, &p->key);
	if (f)
		flow_end(p, f);
	return 1;
}

#endif
